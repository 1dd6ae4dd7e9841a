// What happens when a loss or gradient stops being finite: the device has refused the update and every one after it, and the host learns
// of it when the next step has been launched; this finds parameter and micro-batch by running the failed step again on the unchanged
// weights, writes its batches beside the run, and makes the error.
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
  std::int64_t rank = 0;  // of the job
};
// "step=3,param=decoder.layers.0.self_attention.A_log[,micro_batch=1][,rank=2]"; "" is none. UsageError for anything else.
NanInjection parse_nan_injection(const std::string& text);

class NumberGuard {
 public:
  // Steps whose batches are kept: the one that fails, the one before it, and the one that was launched before the failure was read.
  static constexpr std::size_t kRing = 3;

  explicit NumberGuard(NanInjection injection = {}) : injection_(std::move(injection)) {}
  // To be called with every step's batches before it runs, and with what all ranks' are together. Returns what step.h calls after each
  // micro-batch.
  MicroBatchHook begin_step(Session& session, std::int64_t step, const std::vector<HostBatch>& batches,
                            const std::optional<BatchCounts>& whole = std::nullopt);
  // After a `step` whose result is not finite, on every rank; all of them get the same error. `run`: folder for the batches, "" for none.
  // The error is ErrorCode::NonFiniteValue.
  Error explain(Session& session, std::int64_t step, const StepResult& result, const std::string& run);

 private:
  struct Kept {
    std::int64_t step;
    std::vector<HostBatch> batches;
    std::optional<BatchCounts> whole;
  };
  // What running a step again showed on this rank.
  struct Finding {
    std::int64_t micro_batch = -1;  // -1: none alone
    bool loss_is_finite = true;
    std::string parameter;          // nearest to where backward began; "": no gradient is bad
    std::string values;
  };
  Finding find(Session& session, const Kept& failed) const;
  MicroBatchHook hook(Session& session, std::int64_t step) const;
  std::string dump(const Session& session, const std::string& run, std::int64_t step) const;
  const Kept& kept(std::int64_t step) const;
  NanInjection injection_;
  std::deque<Kept> ring_;
};

}  // namespace deltron
