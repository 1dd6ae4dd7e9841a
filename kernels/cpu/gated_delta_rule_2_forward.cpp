// Forward of gated delta rule 2, chunked (kernels/gated_delta_rule_2.h; docs/gdn.md 12.3): entry points. Knows no gradients.
#include "kernels/gated_delta_rule_2.h"

#include <string>

#include "kernels/cpu/simd_targets.h"
#include "kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_delta_rule_2_forward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/delta_rule_drive-inl.h"
#include "kernels/cpu/gated_delta_rule_2_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

// Returns the bytes of workspace; runs unless `count_only`.
std::int64_t delta_rule_2_forward(const GatedDeltaRule2ForwardArgs& args, const ChunkPlan& plan, ThreadPool& pool,
                                  bool count_only) {
  return drive<DeltaRuleForward, ChannelForward>(args, channel_gate_inputs(args), plan, pool, count_only);
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(delta_rule_2_forward);

std::int64_t gated_delta_rule_2_forward_workspace_bytes(const GatedDeltaRule2ForwardArgs& args, const StreamHandle& stream) {
  const ChunkPlan plan = make_chunk_plan(channel_gate_inputs(args), stream.pool->threads());
  return HWY_DYNAMIC_DISPATCH(delta_rule_2_forward)(args, plan, *stream.pool, true);
}

void gated_delta_rule_2_forward(const GatedDeltaRule2ForwardArgs& args, const StreamHandle& stream) {
  const ChunkPlan plan = make_chunk_plan(channel_gate_inputs(args), stream.pool->threads());
  const std::int64_t needed = HWY_DYNAMIC_DISPATCH(delta_rule_2_forward)(args, plan, *stream.pool, true);
  DELTRON_CHECK_GE(args.workspace.bytes, needed, "workspace of gated_delta_rule_2_forward");
  HWY_DYNAMIC_DISPATCH(delta_rule_2_forward)(args, plan, *stream.pool, false);
}

const char* gated_delta_rule_2_kernel_name() {
  static const std::string name = std::string("cpu.chunked64x16.") + instruction_set();
  return name.c_str();
}

}  // namespace deltron::kernels::cpu
#endif
