// Forward and backward of single layers: mixers and the MLP of a configuration, a few equal ones behind each other, plain and with each
// region that they may have; where their time goes by region. Figures are of one layer.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/tensor/profile.h"
#include "tools/bench/ceilings.h"
#include "tools/bench/measure.h"

namespace deltron::tools {

enum class LayerKind { Gdn, Gdn2, Softmax, Mlp };
const char* layer_kind_name(LayerKind kind);
// Those that the model has; both delta rules where it has one.
std::vector<LayerKind> layer_kinds(const RunConfig& config);

struct LayerRow {
  std::string variant;              // "plain", "gdn_qkv", "offload gdn_qkv"
  Spread forward, both;             // seconds; both: forward and backward
  double predicted_seconds = 0;     // of both: the plain row, and what the region adds to it
  std::int64_t saved_bytes = 0;     // held for backward, at its peak
  std::int64_t peak_bytes = 0;      // above what stood before: inputs, parameters and gradients left out
  std::vector<RangeTotal> regions = {};  // of one run
};

struct LayerTable {
  LayerKind kind = LayerKind::Gdn;
  std::int64_t stacked = 0;
  std::vector<LayerRow> rows;  // the first is "plain"
};

struct LayerOptions {
  std::int64_t repeats = 10;
  std::int64_t stacked = 3;  // the last one's storages are needed at once, so that offload moves one group less
  std::int64_t min_offloaded_tensor_size = 1048576;
};

LayerTable measure_layer(Context& ctx, const RunConfig& config, LayerKind kind, const LayerOptions& options, const Ceilings& ceilings, const HostLink& link);
nlohmann::ordered_json to_json(const LayerTable& table);
void write_table(std::ostream& out, const LayerTable& table);

}  // namespace deltron::tools
