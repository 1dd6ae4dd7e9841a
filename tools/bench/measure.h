// Times of repeated work on one context: on the CPU by the clock, on cuda by events on the compute stream, small work as one CUDA graph
// of many launches, so that launching does not count. Knows no kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/tensor/context.h"

namespace deltron::tools {

struct Spread {
  double median = 0, p10 = 0, p90 = 0, fastest = 0, slowest = 0;
  std::int64_t samples = 0;
};
Spread spread_of(std::vector<double> values);
nlohmann::ordered_json spread_json(const Spread& spread, double factor);  // factor 1e6: microseconds

struct Timing {
  Spread seconds;      // of one call
  std::string method;  // "clock", "events", "graph"
};

inline constexpr double kGraphBelow = 200e-6;  // seconds of a call

// Calls of `sets` in turn, after warm-up; `repeats` samples. A sample of work below a fifth of a millisecond (CPU) or kGraphBelow (cuda)
// is the mean over several calls.
Timing measure(Context& ctx, const std::vector<std::function<void()>>& sets, std::int64_t repeats);

}  // namespace deltron::tools
