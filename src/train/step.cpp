// See step.h.
#include "src/train/step.h"

#include "src/autograd/engine.h"
#include "src/autograd/offload_manager.h"
#include "src/model/flops.h"
#include "src/tensor/ops.h"
#include "src/tensor/profile.h"
#include "src/train/updates.h"

namespace deltron {
namespace {

StepResult result_of(const BatchCounts& counts) {
  StepResult result;
  result.tokens = counts.tokens;
  result.valid_tokens = counts.valid_tokens;
  result.attention_flops = counts.attention_flops;
  return result;
}

// `overlap`: gradients of the last micro-batch may go to other ranks while backward runs.
// Gradients into the main gradients; the loss F64 [1] stays on the device, summed over the micro-batches in their order.
Tensor accumulate_gradients(Session& session, const std::vector<HostBatch>& micro_batches, std::int64_t valid_tokens, const MicroBatchHook& hook,
                            std::int64_t only, bool overlap) {
  Context& ctx = *session.ctx;
  OffloadManager& offload = ctx.slot<OffloadManager>();
  const Tensor sum = Tensor::zeros(ctx, {1}, DType::F64, "loss of the step", MemoryTag::Workspace);
  // A batch without a single valid token is legal: its loss and gradients are zero.
  const double scale = valid_tokens > 0 ? 1.0 / static_cast<double>(valid_tokens) : 0.0;
  const ForwardMode mode{.training = true, .without_linear_mixers = false, .recompute = make_recompute_plan(session.config.recompute)};
  for (std::int64_t m = 0; m < static_cast<std::int64_t>(micro_batches.size()); ++m) {
    if (only >= 0 && m != only) continue;
    const HostBatch& batch = micro_batches[static_cast<std::size_t>(m)];
    const ProfileRange range(ctx, RangeKind::MicroBatch, ("micro-batch " + std::to_string(m)).c_str());
    const DeviceBatch device = upload(ctx, batch);
    offload.begin_micro_batch(ctx);
    Tensor loss;
    {
      session.says("forward");
      const ProfileRange forward(ctx, RangeKind::Forward, "forward");
      loss = session.model->loss(ctx, device.ids, device.labels, device.layout, mode, scale);
    }
    const Tensor seed = make_tensor(ctx, {1}, DType::F64, {1.0}, "loss seed");
    {
      session.says("backward");
      const ProfileRange backwards(ctx, RangeKind::Backward, "backward");
      if (session.reducer) session.reducer->begin_backward(ctx, only < 0 && m + 1 == static_cast<std::int64_t>(micro_batches.size()) && overlap);
      backward(ctx, {loss}, {seed});
      if (session.reducer) session.reducer->end_backward();
    }
    if (hook) hook(m);
    accumulate(ctx, loss.detached(), sum);
  }
  offload.reset(ctx);
  return sum;
}

}  // namespace

BatchCounts counts_of(const RunConfig& config, const std::vector<HostBatch>& micro_batches) {
  BatchCounts counts;
  for (const HostBatch& batch : micro_batches) {
    counts.tokens += batch.num_tokens();
    counts.valid_tokens += batch.valid_tokens();
    std::vector<std::int64_t> lengths;
    for (std::size_t n = 0; n + 1 < batch.cu_seqlens.size(); ++n) lengths.push_back(batch.cu_seqlens[n + 1] - batch.cu_seqlens[n]);
    counts.attention_flops += attention_core_flops(config.model, lengths);
  }
  return counts;
}

LaunchedStep::~LaunchedStep() {
  if (landing_) landed_.wait();
}

StepResult LaunchedStep::read() const {
  landed_.wait();
  StepResult result = known_;
  result.loss = landing_->loss;
  result.gradient_norm = landing_->norm.norm;
  result.nonfinite = landing_->norm.nonfinite != 0;
  result.parameter_norms = norms_->norms(landing_->norm);
  return result;
}

LaunchedStep launch_step(Session& session, const std::vector<HostBatch>& micro_batches, double lr, const MicroBatchHook& hook,
                         const std::optional<BatchCounts>& whole) {
  Context& ctx = *session.ctx;
  Optimizer& optimizer = *session.optimizer;
  LaunchedStep step;
  step.known_ = result_of(whole ? *whole : counts_of(session.config, micro_batches));
  auto landing = std::make_unique<LaunchedStep::Landing>();
  step.norms_ = &optimizer.norm();
  step.updates_before_ = optimizer.updates();
  session.model->parameters().start_main_gradients(ctx);
  const Tensor loss = accumulate_gradients(session, micro_batches, step.known_.valid_tokens, hook, -1, !hook);  // a hook changes gradients
  session.model->parameters().finish_main_gradients(ctx);
  session.says("gradients over ranks");
  sum_gradients_over_ranks(session);
  // Every rank has the part of its rows; those of one tensor-parallel group have the same.
  if (const auto& group = parallel_state(ctx).data_context) group->all_reduce(ctx, loss, "loss of the step");
  session.says("update");
  optimizer.watch(ctx, loss);
  optimizer.step(ctx, lr);
  if (session.weight_gather) session.weight_gather->run(ctx);
  copy_to_host_later(ctx, loss, &landing->loss);
  step.landed_ = optimizer.norm().read_later(ctx, landing->norm);
  step.landing_ = std::move(landing);
  return step;
}

StepResult train_step(Session& session, const std::vector<HostBatch>& micro_batches, double lr, const MicroBatchHook& hook,
                      const std::optional<BatchCounts>& whole) {
  return launch_step(session, micro_batches, lr, hook, whole).read();
}

StepResult forward_backward(Session& session, const std::vector<HostBatch>& micro_batches, const MicroBatchHook& hook, std::int64_t only,
                            const std::optional<BatchCounts>& whole) {
  StepResult result = result_of(whole ? *whole : counts_of(session.config, micro_batches));
  const Tensor loss = accumulate_gradients(session, micro_batches, result.valid_tokens, hook, only, false);
  if (!session.ctx->is_meta()) copy_to_host(*session.ctx, loss, &result.loss);
  return result;
}

std::vector<std::string> untouched_parameters(const HybridLanguageModel& model) {
  std::vector<std::string> names;
  for (const ParameterPtr& parameter : model.parameters().all()) {
    if (leaf_of(parameter->value)->accumulations == 0) names.push_back(parameter->spec.name);
  }
  return names;
}

}  // namespace deltron
