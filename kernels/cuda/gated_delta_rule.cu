// Entry points of the gated delta rule on CUDA (kernels/gated_delta_rule.h). Knows no kernel: see delta_rule_dispatch.cu.
#include "kernels/gated_delta_rule.h"

#include "kernels/cuda/delta_rule_problem.h"

namespace deltron::kernels::cuda {
namespace {

RuleOutputs outputs(const GatedDeltaRuleForwardArgs& a) {
  RuleOutputs out;
  out.o = a.o, out.final_state = static_cast<float*>(a.final_state), out.t_inverse = a.t_inverse;
  return out;
}
RuleGradients gradients(const GatedDeltaRuleBackwardArgs& a) {
  RuleGradients out = common_gradients(a);
  out.d_erase = a.d_beta;
  return out;
}

}  // namespace

std::int64_t gated_delta_rule_forward_workspace_bytes(const GatedDeltaRuleForwardArgs& args, const StreamHandle&) {
  return run_forward(scalar_problem(args), outputs(args), nullptr, nullptr);
}
void gated_delta_rule_forward(const GatedDeltaRuleForwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK_GE(args.workspace.bytes, gated_delta_rule_forward_workspace_bytes(args, stream),
                   "workspace of gated_delta_rule_forward");
  run_forward(scalar_problem(args), outputs(args), args.workspace.data, static_cast<cudaStream_t>(stream.native));
}
std::int64_t gated_delta_rule_backward_workspace_bytes(const GatedDeltaRuleBackwardArgs& args, const StreamHandle&) {
  return run_backward(scalar_problem(args), gradients(args), nullptr, nullptr);
}
void gated_delta_rule_backward(const GatedDeltaRuleBackwardArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK_GE(args.workspace.bytes, gated_delta_rule_backward_workspace_bytes(args, stream),
                   "workspace of gated_delta_rule_backward");
  run_backward(scalar_problem(args), gradients(args), args.workspace.data, static_cast<cudaStream_t>(stream.native));
}
const char* gated_delta_rule_kernel_name(const GatedDeltaRuleForwardArgs& args) {
  const RuleProblem p = scalar_problem(args);
  return kernel_name(p, tensor_core_forward(p, args.o));
}
const char* gated_delta_rule_kernel_name(const GatedDeltaRuleBackwardArgs& args) {
  const RuleProblem p = scalar_problem(args);
  return kernel_name(p, tensor_core_backward(p, gradients(args)));
}

}  // namespace deltron::kernels::cuda
