// What a person sees of a run: start-up phases with seconds, one line a log interval, a progress bar on a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "src/train/step.h"

namespace deltron {

// A start-up phase: prints "name ... 1.2 s detail" when it ends.
class Phase {
 public:
  explicit Phase(std::string name);
  void done(const std::string& detail = "");

 private:
  std::string name_;
  std::chrono::steady_clock::time_point start_;
};

struct StepLine {
  std::int64_t step = 0, total = 0, tokens = 0;
  double loss = 0, gradient_norm = 0, lr = 0;
  double step_ms = 0, tokens_per_second = 0;
  double mfu = 0;              // share of the measured ceiling; 0: not measured
  std::int64_t memory = 0;     // peak bytes
  double eta_seconds = 0;
};
std::string to_text(const StepLine& line);

// Ceiling of fp32 matrix products on this context, FLOP/s, from a short measurement (a tenth of a second): for MFU only. 0 where the
// memory limit leaves no room for it.
// Its own memory is no part of a run: memory peaks begin anew after it.
double measure_matmul_ceiling(Context& ctx);

}  // namespace deltron
