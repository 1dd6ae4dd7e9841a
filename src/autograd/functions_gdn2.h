// Gated delta rule 2 as a differentiable function. Mathematics: docs/gdn.md section 12.
#pragma once

#include "kernels/gated_delta_rule_2.h"
#include "src/autograd/functions_gdn.h"

namespace deltron {

struct GatedDeltaRule2Options {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  GateHeads gate_heads = GateHeads::Keys;
  kernels::GateForm gate_form = kernels::GateForm::Activated;
  bool allow_neg_eigval = false;  // raw gates only: b in (0,2)
  bool use_qk_l2norm = false;     // inside the rule, before the scale on q
  double scale = 0;               // 0: 1/sqrt(K)
  bool output_final_state = false;
  TensorLayout layout = TensorLayout::Thd;
};

// q, k [T,Hk,K], v [T,Hv,V]; activated gates: decay = g [T,Hg,K] natural log, b [T,Hg,K], w [T,Hv,V]; raw: decay = f, b and w the
// logits, A_log [Hg] and dt_bias [Hg*K]. Hg: heads of the gates. initial_state [N,Hv,K,V] of the compute type, or undefined:
// zero. With a batch dimension T stands for B,S or S,B.
struct GatedDeltaRule2Inputs {
  Tensor q, k, v, decay, b, w;
  Tensor A_log, dt_bias;
  Tensor initial_state;
};

// Keeps its inputs for backward and nothing else. Checks everything against the options, from metadata; every condition
// has its own message (ErrorCode::InvalidOpInput).
GatedDeltaRuleResult gated_delta_rule_2(Context& ctx, const GatedDeltaRule2Inputs& inputs, const LayoutPtr& layout,
                                        const GatedDeltaRule2Options& options, const char* name);

}  // namespace deltron
