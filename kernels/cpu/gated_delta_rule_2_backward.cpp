// Backward of gated delta rule 2, chunked (kernels/gated_delta_rule_2.h; docs/gdn.md 12.4): entry points. Knows no autograd.
#include "kernels/gated_delta_rule_2.h"

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_delta_rule_2_backward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/delta_rule_drive-inl.h"
#include "kernels/cpu/gated_delta_rule_2_gradients-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

// Returns the bytes of workspace; runs unless `count_only`.
std::int64_t delta_rule_2_backward(const GatedDeltaRule2BackwardArgs& args, const ChunkPlan& plan, ThreadPool& pool,
                                   bool count_only) {
  return drive<DeltaRuleBackward, ChannelBackward>(args, channel_gate_inputs(args), plan, pool, count_only);
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(delta_rule_2_backward);

std::int64_t gated_delta_rule_2_backward_workspace_bytes(const GatedDeltaRule2BackwardArgs& args, const StreamHandle& stream) {
  const ChunkPlan plan = make_chunk_plan(channel_gate_inputs(args), stream.pool->threads());
  return HWY_DYNAMIC_DISPATCH(delta_rule_2_backward)(args, plan, *stream.pool, true);
}

void gated_delta_rule_2_backward(const GatedDeltaRule2BackwardArgs& args, const StreamHandle& stream) {
  const ChunkPlan plan = make_chunk_plan(channel_gate_inputs(args), stream.pool->threads());
  const std::int64_t needed = HWY_DYNAMIC_DISPATCH(delta_rule_2_backward)(args, plan, *stream.pool, true);
  DELTRON_CHECK_GE(args.workspace.bytes, needed, "workspace of gated_delta_rule_2_backward");
  HWY_DYNAMIC_DISPATCH(delta_rule_2_backward)(args, plan, *stream.pool, false);
}

}  // namespace deltron::kernels::cpu
#endif
