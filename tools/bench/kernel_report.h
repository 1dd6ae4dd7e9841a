// Runs a table of kernel cases and shows what came out: a table for people, JSON for programs.
#pragma once

#include <iosfwd>
#include <regex>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/bench/ceilings.h"
#include "tools/bench/kernel_case.h"
#include "tools/bench/measure.h"

namespace deltron::tools {

struct KernelResult {
  std::string family, name, shape, kernel;
  Work work;
  Timing timing;
  std::int64_t sets = 0;
};

struct KernelBench {
  std::string device;
  KernelSizes sizes;
  DType dtype = DType::F32;
  Ceilings ceilings;
  std::int64_t cache_bytes = 0;
  std::vector<KernelResult> results;
};

struct KernelRun {
  std::int64_t repeats = 20;
  std::int64_t cache_bytes = 0;  // inputs of one case together are at least twice as large
};
// Polls for stop requests between cases. The sets of a case are at least two.
KernelResult run_case(Context& ctx, const KernelCase& one, const KernelRun& run);

nlohmann::ordered_json to_json(const KernelBench& bench);
void write_table(std::ostream& out, const KernelBench& bench);

}  // namespace deltron::tools
