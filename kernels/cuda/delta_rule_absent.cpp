// The gated delta rules on cuda: refused with a clear error as long as kernels/cuda has no files for them.
#include "kernels/gated_delta_rule.h"
#include "kernels/gated_delta_rule_2.h"
#include "src/base/error.h"

namespace deltron::kernels::cuda {
namespace {

[[noreturn]] void refuse(const char* rule) {
  throw Error(ErrorCode::DeviceUnavailable, ErrorText{std::string(rule) + " has no kernels on cuda in this build", "", "",
                                                      "every mixer of the model runs on the device", "set training.device: cpu"});
}

}  // namespace

std::int64_t gated_delta_rule_forward_workspace_bytes(const GatedDeltaRuleForwardArgs&, const StreamHandle&) { refuse("gated_delta_rule"); }
void gated_delta_rule_forward(const GatedDeltaRuleForwardArgs&, const StreamHandle&) { refuse("gated_delta_rule"); }
std::int64_t gated_delta_rule_backward_workspace_bytes(const GatedDeltaRuleBackwardArgs&, const StreamHandle&) { refuse("gated_delta_rule"); }
void gated_delta_rule_backward(const GatedDeltaRuleBackwardArgs&, const StreamHandle&) { refuse("gated_delta_rule"); }
std::int64_t gated_delta_rule_2_forward_workspace_bytes(const GatedDeltaRule2ForwardArgs&, const StreamHandle&) { refuse("gated_delta_rule_2"); }
void gated_delta_rule_2_forward(const GatedDeltaRule2ForwardArgs&, const StreamHandle&) { refuse("gated_delta_rule_2"); }
std::int64_t gated_delta_rule_2_backward_workspace_bytes(const GatedDeltaRule2BackwardArgs&, const StreamHandle&) { refuse("gated_delta_rule_2"); }
void gated_delta_rule_2_backward(const GatedDeltaRule2BackwardArgs&, const StreamHandle&) { refuse("gated_delta_rule_2"); }

}  // namespace deltron::kernels::cuda
