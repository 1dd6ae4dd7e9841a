// See gdn.h.
#include "src/nn/gdn.h"

#include <cmath>

#include "src/tensor/ops.h"

namespace deltron {

GatedDeltaNet::GatedDeltaNet(const LayerSetup& setup)
    : layer_(setup.layer),
      key_heads_(setup.config->linear_num_key_heads),
      value_heads_(setup.config->linear_num_value_heads),
      key_dim_(setup.config->linear_key_head_dim),
      value_dim_(setup.config->linear_value_head_dim),
      allow_neg_eigval_(setup.config->allow_neg_eigval),
      input_norm_options_(setup.norm()),
      output_norm_options_{setup.config->linear_output_norm_zero_centered_gamma, setup.config->layernorm_epsilon} {
  const TransformerConfig& config = *setup.config;
  const std::int64_t h = config.hidden_size, dq = key_heads_ * key_dim_, dv = value_heads_ * value_dim_, kc = config.linear_conv_kernel_dim;
  const std::string attention = setup.prefix + "self_attention.";
  ParameterStore& store = *setup.store;
  if (setup.input_norm) input_norm_ = setup.declare_norm("input_layernorm.weight");
  // The two physical parts of in_proj share the logical name; sections keep them apart.
  qkv_weight_ = store.declare({.name = attention + "in_proj.weight", .shape = {2 * dq + dv, h}, .dtype = setup.dtype,
                               .sections = {{"query", dq}, {"key", dq}, {"value", dv}}, .init = InitKind::Normal,
                               .init_scale = config.init_method_std});
  gates_weight_ = store.declare({.name = attention + "in_proj.weight#gates", .shape = {dv + 2 * value_heads_, h}, .dtype = setup.dtype,
                                 .sections = {{"z", dv}, {"beta", value_heads_}, {"alpha", value_heads_}}, .init = InitKind::Normal,
                                 .init_scale = config.init_method_std});
  conv_weight_ = store.declare({.name = attention + "conv1d.weight", .shape = {2 * dq + dv, kc}, .dtype = setup.dtype,
                                .sections = {{"query", dq}, {"key", dq}, {"value", dv}}, .init = InitKind::Uniform,
                                .init_scale = 1.0 / std::sqrt(static_cast<double>(kc))});
  A_log_ = store.declare({.name = attention + "A_log", .shape = {value_heads_}, .dtype = setup.stable_dtype(), .init = InitKind::ALog,
                          .weight_decay = false});
  dt_bias_ = store.declare({.name = attention + "dt_bias", .shape = {value_heads_}, .dtype = setup.stable_dtype(), .init = InitKind::Constant,
                            .init_scale = 1.0, .weight_decay = false});
  out_norm_ = store.declare({.name = attention + "out_norm.weight", .shape = {value_dim_}, .dtype = setup.stable_dtype(),
                             .init = InitKind::Constant, .init_scale = output_norm_options_.zero_centered ? 0.0 : 1.0, .weight_decay = false,
                             .partial = {.tensor_parallel = true}});
  out_proj_ = store.declare({.name = attention + "out_proj.weight", .shape = {h, dv}, .dtype = setup.dtype, .init = InitKind::Normal,
                             .init_scale = setup.output_std()});
}

namespace {

// The convolution's inputs behind the kc-1 that came before them; the last kc-1 of all are kept for the next call.
Tensor with_earlier_inputs(Context& ctx, const Tensor& inputs, LayerCache& cache, std::int64_t earlier) {
  if (earlier == 0) return inputs;
  if (!cache.conv_inputs.defined()) cache.conv_inputs = Tensor::zeros(ctx, {earlier, inputs.size(1)}, inputs.dtype(), "conv inputs");
  const Tensor all = Tensor::empty(ctx, {earlier + inputs.size(0), inputs.size(1)}, inputs.dtype(), "conv inputs");
  convert(ctx, cache.conv_inputs, all.slice(0, 0, earlier));
  convert(ctx, inputs, all.slice(0, earlier, inputs.size(0)));
  convert(ctx, all.slice(0, inputs.size(0), earlier), cache.conv_inputs);
  return all;
}

}  // namespace

GatedDeltaNet::CoreOutput GatedDeltaNet::forward_pre_attn_and_core_attn(Context& ctx, const Tensor& x, const LayoutPtr& layout,
                                                                       LayerCache* cache) const {
  const std::int64_t dq = key_heads_ * key_dim_, dv = value_heads_ * value_dim_;
  std::vector<Tensor> projected;
  {
    ScopeGuard scope(ctx, layer_, "gdn_in_proj");
    projected = project_input(ctx, x, input_norm_, input_norm_options_, {qkv_weight_, gates_weight_}, {"gdn.qkv", "gdn.gates"});
  }
  const std::vector<Tensor> gates =
      split(ctx, projected[1], {{dv, value_heads_}, {value_heads_, 0}, {value_heads_, 0}}, "gdn.gates.split");
  Tensor prepared;
  {
    ScopeGuard scope(ctx, layer_, "gdn_qkv");
    const QkvPrepOptions prep{.key_heads = key_heads_, .value_heads = value_heads_, .key_dim = key_dim_, .value_dim = value_dim_};
    if (cache == nullptr) {
      prepared = gdn_qkv_prep(ctx, projected[0], conv_weight_->value, layout, prep, "gdn.prep");
    } else {
      const std::int64_t earlier = conv_weight_->value.size(1) - 1;
      const Tensor inputs = with_earlier_inputs(ctx, projected[0], *cache, earlier);
      prepared = gdn_qkv_prep(ctx, inputs, conv_weight_->value, earlier > 0 ? cache->conv_layout : layout, prep, "gdn.prep")
                     .slice(0, earlier, layout->tokens());
    }
  }
  ScopeGuard scope(ctx, layer_, "gdn_core_attn");
  const std::vector<Tensor> qkv = split(ctx, prepared, {{dq, key_heads_}, {dq, key_heads_}, {dv, value_heads_}}, "gdn.qkv.split");
  GatedDeltaRuleOptions options;
  options.key_heads = key_heads_;
  options.value_heads = value_heads_;
  options.key_dim = key_dim_;
  options.value_dim = value_dim_;
  options.gate_form = kernels::GateForm::Raw;
  options.allow_neg_eigval = allow_neg_eigval_;
  GatedDeltaRuleInputs inputs;
  inputs.q = qkv[0];
  inputs.k = qkv[1];
  inputs.v = qkv[2];
  inputs.beta = gates[1];
  inputs.decay = gates[2];
  inputs.A_log = A_log_->value;
  inputs.dt_bias = dt_bias_->value;
  if (cache != nullptr) {
    inputs.initial_state = cache->state;
    options.output_final_state = true;
  }
  const GatedDeltaRuleResult result = gated_delta_rule(ctx, inputs, layout, options, "gdn.rule");
  if (cache != nullptr) cache->state = *result.final_state;
  return {result.out, gates[0]};
}

Tensor GatedDeltaNet::forward_post_core_attn(Context& ctx, const CoreOutput& core) const {
  Tensor normed;
  {
    ScopeGuard scope(ctx, layer_, "gdn_norm_out");
    normed = gated_rms_norm(ctx, core.core, core.z, out_norm_->value, output_norm_options_, "gdn.out_norm");
  }
  ScopeGuard scope(ctx, layer_, "gdn_out_proj");
  return linear(ctx, normed, out_proj_->value, "gdn.out_proj");
}

Tensor GatedDeltaNet::forward(Context& ctx, const Tensor& x, const LayoutPtr& layout) const {
  return forward_post_core_attn(ctx, forward_pre_attn_and_core_attn(ctx, x, layout));
}

Tensor GatedDeltaNet::forward_cached(Context& ctx, const Tensor& x, const LayoutPtr& layout, LayerCache& cache) const {
  return forward_post_core_attn(ctx, forward_pre_attn_and_core_attn(ctx, x, layout, &cache));
}

}  // namespace deltron
