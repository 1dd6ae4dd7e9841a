// See steps.h.
#include "tools/bench/steps.h"

#include <chrono>

#include "src/base/signals.h"
#include "src/train/activation_offload.h"
#include "src/train/capacity.h"
#include "src/train/plan.h"
#include "src/train/step.h"

namespace deltron::tools {
namespace {

Session session_with_room(const RunConfig& config) {
  require_room(config);
  return make_session(config, true, config.training.device);
}

}  // namespace

StepBench::StepBench(const RunConfig& config) : session_(session_with_room(config)) {
  HostBatch batch = planned_batch(config);
  RngStream random({1, 0, kRngSiteData}, 0);
  for (std::int32_t& id : batch.tokens) id = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.model.vocab_size)));
  batch.labels = batch.tokens;
  batches_.assign(static_cast<std::size_t>(config.training.global_batch_size / config.training.micro_batch_size), batch);
}

std::int64_t StepBench::tokens_per_step() const { return config().training.global_batch_size * config().training.seq_length; }

void StepBench::use(const RecomputeConfig& recompute, const OffloadConfig& offload) {
  const bool before = session_.config.offload.fine_grained_activation_offloading;
  session_.config.recompute = recompute;
  session_.config.offload = offload;
  ctx().synchronize();
  if (offload.fine_grained_activation_offloading) {
    configure_offload(session_);
  } else if (before) {
    ctx().slot<OffloadManager>().configure(ctx(), {});
  }
  ctx().memory()->release_cached();
  ctx().host_memory()->release_cached();
}

double StepBench::step() {
  poll_stop("the benchmark");
  const auto start = std::chrono::steady_clock::now();
  train_step(session_, batches_, 1e-4);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

StepRun StepBench::run(std::int64_t warm_up, std::int64_t steps, bool with_ranges) {
  for (std::int64_t i = 0; i < warm_up; ++i) step();
  ctx().memory()->reset_peak();
  ctx().host_memory()->reset_peak();
  std::vector<double> seconds;
  for (std::int64_t i = 0; i < steps; ++i) seconds.push_back(step());
  StepRun run;
  run.seconds = spread_of(std::move(seconds));
  run.peak_bytes = ctx().memory()->stats().peak;
  run.saved_bytes = ctx().memory()->stats().peak_saved;
  run.host_peak_bytes = ctx().host_memory()->stats().peak;
  run.offload = ctx().slot<OffloadManager>().last_iteration();
  if (with_ranges) {
    ctx().start_recording();
    {
      const ProfileRange whole(ctx(), RangeKind::Step, "step");
      step();
    }
    run.self_times = self_times(ctx().stop_recording()->ranges());
  }
  return run;
}

}  // namespace deltron::tools
