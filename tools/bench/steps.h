// Whole training steps of one configuration on planned (fully filled) batches of random tokens, timed; recompute regions and offload can
// be changed between runs. On cuda a step ends where its loss has reached the host.
#pragma once

#include <vector>

#include "src/autograd/offload_manager.h"
#include "src/tensor/profile.h"
#include "src/train/session.h"
#include "tools/bench/measure.h"

namespace deltron::tools {

struct StepRun {
  Spread seconds;
  std::int64_t peak_bytes = 0;       // of device memory, over the timed steps
  std::int64_t saved_bytes = 0;      // held for backward, at its peak
  std::int64_t host_peak_bytes = 0;  // of offloaded activations
  OffloadStats offload;              // of the last step
  std::vector<RangeTotal> self_times = {};  // of one further step, if asked for
};

class StepBench {
 public:
  // Throws OutOfMemory where a machine without GPU has no room for it.
  explicit StepBench(const RunConfig& config);
  Context& ctx() { return *session_.ctx; }
  const RunConfig& config() const { return session_.config; }
  std::int64_t tokens_per_step() const;
  // Other regions and offload modules from the next step on.
  void use(const RecomputeConfig& recompute, const OffloadConfig& offload);
  // Polls for stop requests between steps.
  StepRun run(std::int64_t warm_up, std::int64_t steps, bool with_ranges = false);

 private:
  double step();
  Session session_;
  std::vector<HostBatch> batches_;
};

}  // namespace deltron::tools
