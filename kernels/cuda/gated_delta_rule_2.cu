// Entry points of gated delta rule 2 on CUDA (kernels/gated_delta_rule_2.h). Knows no kernel: see delta_rule_dispatch.cu.
#include "kernels/gated_delta_rule_2.h"

#include "kernels/cuda/delta_rule_problem.h"

namespace deltron::kernels::cuda {
namespace {

RuleOutputs outputs(const GatedDeltaRule2ForwardArgs& a) {
  RuleOutputs out;
  out.o = a.o, out.final_state = static_cast<float*>(a.final_state);
  return out;
}
RuleGradients gradients(const GatedDeltaRule2BackwardArgs& a) {
  RuleGradients out = common_gradients(a);
  out.d_erase = a.d_erase, out.d_write = a.d_write;
  return out;
}

}  // namespace

std::int64_t gated_delta_rule_2_forward_workspace_bytes(const GatedDeltaRule2ForwardArgs& args, const StreamHandle&) {
  return run_forward(channel_problem(args), outputs(args), nullptr, nullptr);
}
void gated_delta_rule_2_forward(const GatedDeltaRule2ForwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK_GE(args.workspace.bytes, gated_delta_rule_2_forward_workspace_bytes(args, stream),
                   "workspace of gated_delta_rule_2_forward");
  run_forward(channel_problem(args), outputs(args), args.workspace.data, static_cast<cudaStream_t>(stream.native));
}
std::int64_t gated_delta_rule_2_backward_workspace_bytes(const GatedDeltaRule2BackwardArgs& args, const StreamHandle&) {
  return run_backward(channel_problem(args), gradients(args), nullptr, nullptr);
}
void gated_delta_rule_2_backward(const GatedDeltaRule2BackwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK_GE(args.workspace.bytes, gated_delta_rule_2_backward_workspace_bytes(args, stream),
                   "workspace of gated_delta_rule_2_backward");
  run_backward(channel_problem(args), gradients(args), args.workspace.data, static_cast<cudaStream_t>(stream.native));
}
const char* gated_delta_rule_2_kernel_name(const GatedDeltaRule2ForwardArgs& args) {
  const RuleProblem p = channel_problem(args);
  return kernel_name(p, tensor_core_forward(p, args.o));
}
const char* gated_delta_rule_2_kernel_name(const GatedDeltaRule2BackwardArgs& args) {
  const RuleProblem p = channel_problem(args);
  return kernel_name(p, tensor_core_backward(p, gradients(args)));
}

}  // namespace deltron::kernels::cuda
