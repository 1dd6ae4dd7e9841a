// Differentiable pieces of the Gated DeltaNet mixer: convolution with q/k norm, the gated delta rule, the gated output norm.
// Mathematics, and what each keeps for backward: docs/gdn.md.
#pragma once

#include <optional>

#include "kernels/gated_delta_rule.h"
#include "src/autograd/delta_rule_layout.h"
#include "src/autograd/functions_linear.h"

namespace deltron {

struct QkvPrepOptions {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  bool use_qk_l2norm = true;
  double epsilon = 1e-6;
};

// qkv [T, 2 Hk K + Hv V] -> the same shape: causal convolution and SiLU (4.1) with conv_weight [C,kc], then the L2 norm (4.3) of
// every q and k head. Saves the input and the output (which the delta rule keeps anyway), not what lies between.
Tensor gdn_qkv_prep(Context& ctx, const Tensor& qkv, const Tensor& conv_weight, const LayoutPtr& layout, const QkvPrepOptions& options,
                    const char* name);

enum class GateHeads : std::uint8_t {
  Keys,    // decay and erase gate have the key heads; value heads of a group share them (gated_delta_rule_2 only)
  Values,  // every value head has its own
};

// Public, with gated_delta_rule_2 (docs/gdn.md section 14). Everything is declared here; no mode follows from which tensors are given.
struct GatedDeltaRuleOptions {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  GateHeads gate_heads = GateHeads::Values;  // Keys is refused: this rule's gates belong to value heads
  kernels::GateForm gate_form = kernels::GateForm::Activated;
  bool allow_neg_eigval = false;  // raw gates only
  bool use_qk_l2norm = false;     // inside the rule, before the scale on q
  double scale = 0;               // 0: 1/sqrt(K)
  bool output_final_state = false;
  TensorLayout layout = TensorLayout::Thd;
};

// q, k [T,Hk,K], v [T,Hv,V]; activated gates: decay = g [T,Hv] natural log, beta [T,Hv]; raw: decay = alpha, beta = its logit,
// A_log and dt_bias [Hv]. initial_state [N,Hv,K,V] of the compute type, or undefined: zero. With a batch dimension T stands for B,S or S,B.
struct GatedDeltaRuleInputs {
  Tensor q, k, v, decay, beta;
  Tensor A_log, dt_bias;
  Tensor initial_state;
};

struct GatedDeltaRuleResult {
  Tensor out;                         // [T, Hv*V], or [B,S, Hv*V], [S,B, Hv*V]
  std::optional<Tensor> final_state;  // [N,Hv,K,V] of the compute type
};

// Checks everything against the options, from metadata; every condition has its own message (ErrorCode::InvalidOpInput).
GatedDeltaRuleResult gated_delta_rule(Context& ctx, const GatedDeltaRuleInputs& inputs, const LayoutPtr& layout,
                                      const GatedDeltaRuleOptions& options, const char* name);

}  // namespace deltron
