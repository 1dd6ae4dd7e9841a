// See gdn.h.
#include "src/nn/gdn.h"

#include <cmath>

#include "distributed/functions_tensor_parallel.h"
#include "src/autograd/offload.h"
#include "src/tensor/ops.h"

namespace deltron {

GatedDeltaNet::GatedDeltaNet(const LayerSetup& setup)
    : GatedDeltaNet(setup, {.sections = {{"beta", setup.config->linear_num_value_heads}, {"alpha", setup.config->linear_num_value_heads}},
                            .A_log = setup.config->linear_num_value_heads,
                            .dt_bias = setup.config->linear_num_value_heads,
                            .dt_bias_init = setup.config->linear_dt_bias_init == LinearDtBiasInit::Ones ? InitKind::Constant : InitKind::DtBias}) {}

GatedDeltaNet::GatedDeltaNet(const LayerSetup& setup, const GateDeclaration& gates)
    : layer_(setup.layer),
      key_heads_(setup.config->linear_num_key_heads / (setup.tensor_ranks * setup.context_ranks)),
      value_heads_(setup.config->linear_num_value_heads / (setup.tensor_ranks * setup.context_ranks)),
      key_dim_(setup.config->linear_key_head_dim),
      value_dim_(setup.config->linear_value_head_dim),
      allow_neg_eigval_(setup.config->allow_neg_eigval),
      pre_rule_fusion_(setup.config->gdn_pre_gated_delta_rule_fusion),
      output_norm_fusion_(setup.config->gdn_gated_output_norm_fusion),
      input_norm_options_(setup.norm()),
      output_norm_options_{setup.config->linear_output_norm_zero_centered_gamma, setup.config->layernorm_epsilon} {
  const TransformerConfig& config = *setup.config;
  const std::int64_t h = config.hidden_size, kc = config.linear_conv_kernel_dim, tp = setup.tensor_ranks, ranks = tp * setup.context_ranks;
  const std::int64_t key_heads = config.linear_num_key_heads, value_heads = config.linear_num_value_heads;
  const std::int64_t dq = key_heads * key_dim_, dv = value_heads * value_dim_;
  DELTRON_CHECK(key_heads % ranks == 0 && value_heads % ranks == 0, key_heads, " key heads and ", value_heads, " value heads for ", tp, " x ",
                setup.context_ranks, " ranks");
  const std::string attention = setup.prefix + "self_attention.";
  ParameterStore& store = *setup.store;
  if (setup.input_norm) input_norm_ = setup.declare_norm("input_layernorm.weight");
  const std::vector<ParameterSection> channels = {setup.section("query", dq), setup.section("key", dq), setup.section("value", dv)};
  // The two physical parts of in_proj share the logical name; sections keep them apart.
  qkv_weight_ = store.declare({.name = attention + "in_proj.weight", .shape = {(2 * dq + dv) / tp, h}, .dtype = setup.dtype,
                               .sections = channels, .init = InitKind::Normal,
                               .init_scale = config.init_method_std});
  std::vector<ParameterSection> sections = {setup.section("z", dv)};
  for (const ParameterSection& section : gates.sections) sections.push_back(setup.section(section.name, section.rows));
  std::int64_t gate_rows = 0;
  for (const ParameterSection& section : sections) gate_rows += section.rows;
  gates_weight_ = store.declare({.name = attention + "in_proj.weight#gates", .shape = {gate_rows, h}, .dtype = setup.dtype,
                                 .sections = sections, .init = InitKind::Normal, .init_scale = config.init_method_std});
  conv_weight_ = store.declare({.name = attention + "conv1d.weight", .shape = {(2 * dq + dv) / tp, kc}, .dtype = setup.dtype,
                                .sections = channels, .init = InitKind::Uniform,
                                .init_scale = 1.0 / std::sqrt(static_cast<double>(kc))});
  A_log_ = store.declare({.name = attention + "A_log", .shape = {gates.A_log / tp}, .dtype = setup.stable_dtype(),
                          .cut = setup.cut(0, gates.A_log), .init = InitKind::ALog, .weight_decay = false});
  dt_bias_ = store.declare({.name = attention + "dt_bias", .shape = {gates.dt_bias / tp}, .dtype = setup.stable_dtype(),
                            .cut = setup.cut(0, gates.dt_bias), .init = gates.dt_bias_init, .init_scale = 1.0, .weight_decay = false});
  out_norm_ = store.declare({.name = attention + "out_norm.weight", .shape = {value_dim_}, .dtype = setup.stable_dtype(),
                             .init = InitKind::Constant, .init_scale = output_norm_options_.zero_centered ? 0.0 : 1.0, .weight_decay = false,
                             .partial = {.tensor_parallel = true}});
  out_proj_ = store.declare({.name = attention + "out_proj.weight", .shape = {h, dv / tp}, .dtype = setup.dtype,
                             .cut = setup.cut(1, dv), .init = InitKind::Normal, .init_scale = setup.output_std()});
}

namespace {

// Every section holds whole heads of each context-parallel rank, so that its cut is one into equal parts.
std::vector<HeadSection> head_sections(Context& ctx, const Parameter& parameter) {
  std::vector<HeadSection> sections;
  for (const ParameterSection& section : parameter.spec.sections) sections.push_back({section.rows, parallel_state(ctx).cp()});
  return sections;
}

}  // namespace

std::vector<Tensor> GatedDeltaNet::project(Context& ctx, const Tensor& x, const LayoutPtr& layout) const {
  ScopeGuard scope(ctx, layer_, "gdn_in_proj");
  const std::vector<Tensor> made = project_input(ctx, x, input_norm_, input_norm_options_, {qkv_weight_, gates_weight_}, {"gdn.qkv", "gdn.gates"});
  // Two exchanges, so that the two stay storages of their own.
  return {rows_to_heads(ctx, made[0], head_sections(ctx, *qkv_weight_), layout, "gdn.qkv exchange"),
          rows_to_heads(ctx, made[1], head_sections(ctx, *gates_weight_), layout, "gdn.gates exchange")};
}

Tensor GatedDeltaNet::conv_weight(Context& ctx) const {
  std::vector<std::int64_t> rows;
  for (const ParameterSection& section : conv_weight_->spec.sections) rows.push_back(section.rows);
  return heads_of_parameter(ctx, conv_weight_->value, rows, "gdn.conv1d");
}

std::vector<Tensor> GatedDeltaNet::split_gates(Context& ctx, const Tensor& gates) const {
  return split(ctx, gates, {{value_heads_ * value_dim_, value_heads_}, {value_heads_, 0}, {value_heads_, 0}}, "gdn.gates.split");
}

Tensor GatedDeltaNet::prepare(Context& ctx, const Tensor& qkv, const LayoutPtr& layout, LayerCache* cache) const {
  ScopeGuard scope(ctx, layer_, "gdn_qkv");
  const QkvPrepOptions prep{.key_heads = key_heads_, .value_heads = value_heads_, .key_dim = key_dim_, .value_dim = value_dim_};
  if (cache == nullptr) return gdn_qkv_prep(ctx, qkv, conv_weight(ctx), layout, prep, "gdn.prep");
  const std::int64_t earlier = conv_weight_->value.size(1) - 1;
  const Tensor inputs = cache->with_earlier_inputs(ctx, qkv, earlier);
  return gdn_qkv_prep(ctx, inputs, conv_weight_->value, earlier > 0 ? cache->conv_layout : layout, prep, "gdn.prep")
      .slice(0, earlier, layout->tokens());
}

std::vector<Tensor> GatedDeltaNet::split_qkv(Context& ctx, const Tensor& prepared) const {
  const std::int64_t dq = key_heads_ * key_dim_, dv = value_heads_ * value_dim_;
  return split(ctx, prepared, {{dq, key_heads_}, {dq, key_heads_}, {dv, value_heads_}}, "gdn.qkv.split");
}

Tensor GatedDeltaNet::rule(Context& ctx, const Tensor& prepared, const std::vector<Tensor>& gates, const LayoutPtr& layout,
                           LayerCache* cache) const {
  ScopeGuard scope(ctx, layer_, "gdn_core_attn");
  const std::vector<Tensor> qkv = split_qkv(ctx, prepared);
  GatedDeltaRuleOptions options;
  options.key_heads = key_heads_;
  options.value_heads = value_heads_;
  options.key_dim = key_dim_;
  options.value_dim = value_dim_;
  options.gate_form = gate_form();
  options.allow_neg_eigval = allow_neg_eigval_ && !pre_rule_fusion_;
  GatedDeltaRuleInputs inputs;
  inputs.q = qkv[0];
  inputs.k = qkv[1];
  inputs.v = qkv[2];
  inputs.beta = gates[0];
  inputs.decay = gates[1];
  if (!pre_rule_fusion_) {
    inputs.A_log = A_log(ctx);
    inputs.dt_bias = dt_bias(ctx);
  }
  if (cache != nullptr) {
    inputs.initial_state = cache->state;
    options.output_final_state = true;
  }
  const GatedDeltaRuleResult result = gated_delta_rule(ctx, inputs, layout, options, "gdn.rule");
  if (cache != nullptr) cache->state = *result.final_state;
  return result.out;
}

Tensor GatedDeltaNet::gate_of_norm(Context& ctx, const Tensor& z) const {
  ScopeGuard scope(ctx, layer_, "gdn_gate_copy");
  return output_norm_fusion_ ? z : gate_copy(ctx, z, "gdn.gate_copy");
}

Tensor GatedDeltaNet::output_norm(Context& ctx, const Tensor& core, const Tensor& gate, const LayoutPtr& layout) const {
  ScopeGuard scope(ctx, layer_, "gdn_norm_out");
  const auto norm = output_norm_fusion_ ? gdn_gated_output_norm : gated_rms_norm;
  const Tensor normed = norm(ctx, core, gate, out_norm_->value, output_norm_options_, "gdn.out_norm");
  return heads_to_rows(ctx, normed, layout, "gdn.out_norm exchange");
}

// Hook placement is the contract of docs/recompute_and_offload.md: the preparation is restored on the raw rule output, in_proj (or the
// wide block) on the norm's output and again, before the norm's own hook, on the output projection's. Offload groups start and commit
// outside of every region; they commit behind the preparation's hook, so that in backward its input is back before it is replayed.
GatedDeltaNet::StageOne GatedDeltaNet::stage_one(Context& ctx, const Tensor& x, const LayoutPtr& rows, const RecomputePlan& plan,
                                                 LayerCache* cache) const {
  const LayoutPtr layout = whole_layout(rows);
  const auto project_region = [this, &ctx, rows](const std::vector<Tensor>& in) { return project(ctx, in[0], rows); };
  const auto prepare_region = [this, &ctx, layout, cache](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{prepare(ctx, in[0], layout, cache)};
  };
  const auto rule_region = [this, &ctx, layout, cache](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{rule(ctx, in[0], {in.begin() + 1, in.end()}, layout, cache)};
  };
  const auto norm_region = [this, &ctx, rows](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{output_norm(ctx, in[0], in[1], rows)};
  };
  ScopeGuard scope(ctx, layer_, "gdn");
  StageOne stage;
  if (plan.gdn) {
    const auto whole = [=, this, &ctx](const std::vector<Tensor>& in) {
      const std::vector<Tensor> ready = make_ready(ctx, project(ctx, in[0], rows), layout, cache);
      const Tensor core = rule(ctx, ready[0], {ready.begin() + 2, ready.end()}, layout, cache);
      return std::vector<Tensor>{output_norm(ctx, core, gate_of_norm(ctx, ready[1]), rows)};
    };
    stage.normed = recompute(ctx, "gdn", whole, {x})[0];
    return stage;
  }
  Tensor conv_input;
  std::vector<Tensor> ready;  // make_ready(), perhaps in regions
  DiscardOutputRegion preparation("gdn_qkv");
  if (plan.gdn_qkv_block) {
    const auto block = [=, this, &ctx](const std::vector<Tensor>& in) {
      const std::vector<Tensor> projected = project(ctx, in[0], rows);
      if (pre_rule_fusion_) return prepare_fused(ctx, projected, layout, cache);
      return std::vector<Tensor>{prepare(ctx, projected[0], layout, cache), projected[1]};
    };
    stage.block = std::make_shared<DiscardOutputRegion>("gdn_qkv_block");
    ready = stage.block->run(ctx, block, {x});
  } else {
    std::vector<Tensor> projected;
    if (plan.gdn_in_proj) {
      stage.in_proj = std::make_shared<DiscardOutputRegion>("gdn_in_proj");
      projected = stage.in_proj->run(ctx, project_region, {x});
    } else {
      projected = project(ctx, x, rows);
    }
    if (pre_rule_fusion_) {
      ready = prepare_fused(ctx, projected, layout, cache);
    } else {
      conv_input = offload_group_start(ctx, projected[0], "gdn_qkv");
      OffloadCapture capture(ctx, "gdn_qkv");
      ready = {plan.gdn_qkv ? preparation.run(ctx, prepare_region, {conv_input})[0] : prepare(ctx, conv_input, layout, cache), projected[1]};
    }
  }
  if (!pre_rule_fusion_) {
    const std::vector<Tensor> gates = split_gates(ctx, ready[1]);
    ready = {ready[0]};
    ready.insert(ready.end(), gates.begin(), gates.end());
  }
  const Tensor gate = gate_of_norm(ctx, ready[1]);
  const Tensor prepared = offload_group_start(ctx, ready[0], "gdn_core_attn");
  std::vector<Tensor> rule_inputs = {prepared};
  rule_inputs.insert(rule_inputs.end(), ready.begin() + 2, ready.end());  // z, which the rule does not read, left out
  // What the rule saved leaves with it, but for pieces of the projection's gates where the norm reads z there later, or where in_proj's
  // region frees them.
  const bool gates_stay = output_norm_fusion_ || plan.gdn_in_proj;
  std::vector<Tensor> saved_by_rule;
  for (const Tensor& input : rule_inputs) {
    if (!gates_stay || input.storage() != ready[1].storage()) saved_by_rule.push_back(input);
  }
  ready.clear();
  Tensor core;
  {
    OffloadCapture capture(ctx, "gdn_core_attn");
    core = plan.gdn_core_attn ? recompute(ctx, "gdn_core_attn", rule_region, rule_inputs)[0] : rule_region(rule_inputs)[0];
  }
  if (plan.gdn_qkv) preparation.discard_output_and_register_recompute(core);
  core = offload_group_commit(ctx, core, "gdn_core_attn", saved_by_rule);
  core = offload_group_commit(ctx, core, "gdn_qkv", {conv_input});
  if (plan.gdn_norm_out) {
    stage.norm_out = std::make_shared<DiscardOutputRegion>("gdn_norm_out");
    stage.normed = stage.norm_out->run(ctx, norm_region, {core, gate})[0];
  } else {
    stage.normed = output_norm(ctx, core, gate, rows);
  }
  for (const auto& region : {stage.in_proj, stage.block}) {
    if (region) region->discard_output_and_register_recompute(stage.normed);  // the norm has read the gate
  }
  return stage;
}

GatedDeltaNet::StageOne GatedDeltaNet::forward_pre_attn_and_core_attn(Context& ctx, const Tensor& x, const LayoutPtr& layout,
                                                                      const RecomputePlan& plan) const {
  if (plan.gdn_norm_out) {
    throw Error(ErrorCode::InvalidOpInput, ErrorText{"gdn_norm_out in two-stage execution", "layer " + std::to_string(layer_), "",
                                                     "its output is freed and restored around the output projection, the second stage",
                                                     "leave gdn_norm_out out of recompute_modules, or call forward()"});
  }
  return stage_one(ctx, x, layout, plan, nullptr);
}

Tensor GatedDeltaNet::forward_post_core_attn(Context& ctx, const StageOne& stage) const {
  ScopeGuard scope(ctx, layer_, "gdn_out_proj");
  const Tensor y = linear(ctx, stage.normed, out_proj_->value, "gdn.out_proj", tensor_parallel_exchange(ctx));
  for (const auto& region : {stage.in_proj, stage.block}) {
    if (region) region->restore_on(y);  // before the norm's hook: the norm reads the gate again
  }
  if (stage.norm_out) stage.norm_out->discard_output_and_register_recompute(y);
  return y;
}

Tensor GatedDeltaNet::forward(Context& ctx, const Tensor& x, const LayoutPtr& layout, const RecomputePlan& plan) const {
  return forward_post_core_attn(ctx, stage_one(ctx, x, layout, plan, nullptr));
}

Tensor GatedDeltaNet::forward_cached(Context& ctx, const Tensor& x, const LayoutPtr& layout, LayerCache& cache) const {
  return forward_post_core_attn(ctx, stage_one(ctx, x, layout, {}, &cache));
}

}  // namespace deltron
