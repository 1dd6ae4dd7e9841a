// The fused preparation of the linear mixers as one differentiable function (docs/gdn.md section 13), for gdn and gdn2: everything between
// in_proj and the rule. Every forward call, a replay included, checks its inputs from their metadata alone and refuses what it cannot do
// (ErrorCode::InvalidOpInput); nothing falls back to other kernels. The other fusion is in functions_gated_norm.h.
#pragma once

#include "kernels/gdn_pre_rule.h"
#include "src/autograd/functions_gdn.h"

namespace deltron {

struct GdnPreRuleOptions {
  kernels::PreRuleGates gates = kernels::PreRuleGates::Heads;  // Heads: gdn; Channels: gdn2
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  bool allow_neg_eigval = false;
  double epsilon = 1e-6;  // of the L2 norm of q and k
};

// Both storages of the projection: qkv [T, 2Dq+Dv]; gates [T, Dv+2Hv] = z | beta | alpha, or [T, 2Dv+2Dq] = z | f | b | w.
struct GdnPreRuleInputs {
  Tensor qkv, gates;
  Tensor conv_weight;     // [2Dq+Dv, kc]
  Tensor A_log, dt_bias;  // [Hv], [Hv], or [Hk], [Dq]; of the compute type
};

struct GdnPreRuleResult {
  Tensor z;         // [T,Hv,V], a view of `gates`; its gradient is written into the one gradient of `gates`
  Tensor prepared;  // [T, 2Dq+Dv] = q | k | v
  Tensor decay;     // g [T,Hv] or [T,Hk,K], of the compute type
  Tensor strength;  // beta [T,Hv] or b [T,Hk,K]
  Tensor write;     // w [T,Hv,V]; gdn2 only
};

// Saves its inputs and nothing else; backward writes one whole gradient of qkv and its part of that of gates.
GdnPreRuleResult gdn_pre_rule(Context& ctx, const GdnPreRuleInputs& inputs, const LayoutPtr& layout, const GdnPreRuleOptions& options,
                              const char* name);

}  // namespace deltron
