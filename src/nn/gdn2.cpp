// See gdn2.h.
#include "src/nn/gdn2.h"

#include "src/autograd/functions_gdn2.h"

namespace deltron {

GatedDeltaNet2::GatedDeltaNet2(const LayerSetup& setup)
    : GatedDeltaNet(setup, [&setup] {
        const TransformerConfig& config = *setup.config;
        const std::int64_t dq = config.linear_num_key_heads * config.linear_key_head_dim;
        const std::int64_t dv = config.linear_num_value_heads * config.linear_value_head_dim;
        return GateDeclaration{.sections = {{"f", dq}, {"b", dq}, {"w", dv}},
                               .A_log = config.linear_num_key_heads,
                               .dt_bias = dq,
                               .dt_bias_init = InitKind::DtBias};
      }()) {}

std::vector<Tensor> GatedDeltaNet2::split_gates(Context& ctx, const Tensor& gates) const {
  const std::int64_t dq = key_heads_ * key_dim_, dv = value_heads_ * value_dim_;
  return split(ctx, gates, {{dv, value_heads_}, {dq, key_heads_}, {dq, key_heads_}, {dv, value_heads_}}, "gdn.gates.split");
}

Tensor GatedDeltaNet2::rule(Context& ctx, const Tensor& prepared, const std::vector<Tensor>& gates, const LayoutPtr& layout,
                            LayerCache* cache) const {
  ScopeGuard scope(ctx, layer_, "gdn_core_attn");
  const std::vector<Tensor> qkv = split_qkv(ctx, prepared);
  GatedDeltaRule2Options options;
  options.key_heads = key_heads_;
  options.value_heads = value_heads_;
  options.key_dim = key_dim_;
  options.value_dim = value_dim_;
  options.gate_form = gate_form();
  options.allow_neg_eigval = allow_neg_eigval_ && !pre_rule_fusion_;
  options.output_final_state = cache != nullptr;
  GatedDeltaRule2Inputs inputs;
  inputs.q = qkv[0];
  inputs.k = qkv[1];
  inputs.v = qkv[2];
  inputs.decay = gates[0];
  inputs.b = gates[1];
  inputs.w = gates[2];
  if (!pre_rule_fusion_) {
    inputs.A_log = A_log(ctx);
    inputs.dt_bias = dt_bias(ctx);
  }
  if (cache != nullptr) inputs.initial_state = cache->state;
  const GatedDeltaRuleResult result = gated_delta_rule_2(ctx, inputs, layout, options, "gdn.rule");
  if (cache != nullptr) cache->state = *result.final_state;
  return result.out;
}

}  // namespace deltron
