// What each recompute region and the offload of `gdn_qkv` cost and save in whole steps, beside what bytes and operations predict.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/bench/ceilings.h"
#include "tools/bench/steps.h"

namespace deltron::tools {

struct RegionRow {
  std::string name;               // "none", "gdn_qkv", "offload gdn_qkv 0.5"
  std::vector<std::string> modules = {};  // recomputed
  double fraction = 0;            // of gdn_qkv that is offloaded; 0: none
  std::string refused = {};       // why the model cannot have it; then nothing below is set
  StepRun run = {};
  double predicted_seconds = 0;   // the step without regions, and what the row adds to it
  std::int64_t planned_peak = 0;
};

struct RegionTable {
  std::string device;
  Ceilings ceilings;
  HostLink link;
  std::int64_t layers = 0;
  std::vector<RegionRow> rows;  // the first is "none"
  int best_offload = -1;        // row
};

struct RegionOptions {
  std::int64_t warm_up = 2, steps = 6;
  std::int64_t min_offloaded_tensor_size = 1048576;
  std::vector<double> fractions = {0.25, 0.5, 0.75, 1.0};
};

// Every word of recompute_modules alone, the three published regions together, and offload of gdn_qkv at some fractions, each where the
// configuration may have it. `config`: its own regions and offload modules are left out.
std::vector<RegionRow> region_rows(const RunConfig& config, const RegionOptions& options);
RegionTable measure_regions(const RunConfig& config, const RegionOptions& options);

// Seconds that copies of one module add: a group's copy out runs beside the forward of a layer, its copy in beside the backward of one.
double offload_seconds(double groups, double group_bytes, double layer_forward, double layer_backward, const HostLink& link);
// The largest fraction whose step takes at most 2 % longer than the first row's; where there is none, the one that adds the least. -1: no
// offload row.
int best_offload_row(const std::vector<RegionRow>& rows);

nlohmann::ordered_json to_json(const RegionTable& table);
void write_table(std::ostream& out, const RegionTable& table);

}  // namespace deltron::tools
