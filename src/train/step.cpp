// See step.h.
#include "src/train/step.h"

#include <cmath>

#include "src/autograd/engine.h"
#include "src/autograd/offload_manager.h"
#include "src/model/flops.h"
#include "src/tensor/ops.h"

namespace deltron {

namespace {

// The loss is summed on the device, into `total` (fp64, one value): the host reads it once, when the step is over.
StepResult run_micro_batches(Session& session, const std::vector<HostBatch>& micro_batches, const MicroBatchHook& hook, std::int64_t only,
                             const Tensor& total) {
  Context& ctx = *session.ctx;
  OffloadManager& offload = ctx.slot<OffloadManager>();
  StepResult result;
  for (const HostBatch& batch : micro_batches) {
    result.tokens += batch.num_tokens();
    result.valid_tokens += batch.valid_tokens();
    std::vector<std::int64_t> lengths;
    for (std::size_t n = 0; n + 1 < batch.cu_seqlens.size(); ++n) lengths.push_back(batch.cu_seqlens[n + 1] - batch.cu_seqlens[n]);
    result.attention_flops += attention_core_flops(session.config.model, lengths);
  }
  // A batch without a single valid token is legal: its loss and gradients are zero.
  const double scale = result.valid_tokens > 0 ? 1.0 / static_cast<double>(result.valid_tokens) : 0.0;
  const ForwardMode mode{.training = true, .without_linear_mixers = false, .recompute = make_recompute_plan(session.config.recompute)};
  for (std::int64_t m = 0; m < static_cast<std::int64_t>(micro_batches.size()); ++m) {
    if (only >= 0 && m != only) continue;
    const HostBatch& batch = micro_batches[static_cast<std::size_t>(m)];
    const DeviceBatch device = upload(ctx, batch);
    offload.begin_micro_batch(ctx);
    const Tensor loss = session.model->loss(ctx, device.ids, device.labels, device.layout, mode, scale);
    const Tensor seed = make_tensor(ctx, {1}, DType::F64, {1.0}, "loss seed");
    backward(ctx, {loss}, {seed});
    if (hook) hook(m);
    accumulate(ctx, loss.detached(), total);
  }
  offload.reset(ctx);
  return result;
}

Tensor step_loss(Context& ctx) { return Tensor::zeros(ctx, {1}, DType::F64, "step loss", MemoryTag::Workspace); }
double host_value(Context& ctx, const Tensor& value) { return ctx.is_meta() ? 0.0 : to_doubles(ctx, value)[0]; }

}  // namespace

StepResult forward_backward(Session& session, const std::vector<HostBatch>& micro_batches, const MicroBatchHook& hook, std::int64_t only) {
  const Tensor total = step_loss(*session.ctx);
  StepResult result = run_micro_batches(session, micro_batches, hook, only, total);
  result.loss = host_value(*session.ctx, total);
  return result;
}

StepResult train_step(Session& session, const std::vector<HostBatch>& micro_batches, double lr, const MicroBatchHook& hook) {
  Context& ctx = *session.ctx;
  session.model->parameters().zero_main_gradients(ctx);
  const Tensor total = step_loss(ctx);
  StepResult result = run_micro_batches(session, micro_batches, hook, -1, total);
  session.optimizer->refuse_nonfinite(ctx, total);  // no update from a loss that is not finite, whatever its gradients are
  session.optimizer->step(ctx, lr);
  result.loss = host_value(ctx, total);
  result.gradient_norm = session.optimizer->gradient_norm(ctx);
  result.nonfinite = session.optimizer->nonfinite(ctx) || !std::isfinite(result.loss);
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
