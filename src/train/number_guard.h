// What happens when a loss or gradient stops being finite: the update has been refused on the device; this finds parameter and
// micro-batch by running the step again on the unchanged weights, writes the batches beside the run, and makes the error.
// Also the injection of a NaN that tests use.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "src/train/step.h"

namespace deltron {

// One value of one gradient becomes NaN after the backward of one micro-batch of one step.
struct NanInjection {
  std::int64_t step = 0;  // 0: none
  std::string param;      // logical name
  std::int64_t micro_batch = 0;
};
// "step=3,param=decoder.layers.0.self_attention.A_log[,micro_batch=1]"; "" is none. UsageError for anything else.
NanInjection parse_nan_injection(const std::string& text);

class NumberGuard {
 public:
  static constexpr std::size_t kRing = 2;  // steps whose batches are kept: the one that fails and the one before it

  explicit NumberGuard(NanInjection injection = {}) : injection_(std::move(injection)) {}
  // To be called with every step's batches before it runs. Returns what step.h calls after each micro-batch.
  MicroBatchHook begin_step(Session& session, std::int64_t step, const std::vector<HostBatch>& batches);
  // After a step whose result is not finite. `run`: folder for the batches, "" for none. The error is ErrorCode::NonFiniteValue.
  Error explain(Session& session, const StepResult& result, const std::string& run);

 private:
  struct Kept {
    std::int64_t step;
    std::vector<HostBatch> batches;
  };
  MicroBatchHook hook(Session& session, std::int64_t step) const;
  std::string dump(const std::string& run) const;
  NanInjection injection_;
  std::deque<Kept> ring_;
};

}  // namespace deltron
