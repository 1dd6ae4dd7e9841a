// The Gated DeltaNet mixer (docs/gdn.md): in_proj writes two storages, `qkv` (the convolution's input) and `gates` (z, beta, alpha), by
// two products, so that what different recompute and offload regions free are different storages. Two stages, callable apart.
// Gated DeltaNet-2 (gdn2.h) is the same mixer with other gates and another rule.
#pragma once

#include "distributed/functions_context_parallel.h"
#include "src/autograd/functions_gated_norm.h"
#include "src/autograd/functions_gdn_fused.h"
#include "src/autograd/recompute.h"
#include "src/nn/decode_cache.h"
#include "src/nn/layer.h"
#include "src/nn/recompute_plan.h"

namespace deltron {

class GatedDeltaNet {
 public:
  explicit GatedDeltaNet(const LayerSetup& setup);
  virtual ~GatedDeltaNet() = default;

  // What the first stage hands to the second: the normed core output [T, Hv*V] (this rank's rows, all heads of its weights), and the regions
  // that still have hooks to place.
  struct StageOne {
    Tensor normed;
    std::shared_ptr<DiscardOutputRegion> in_proj, block, norm_out;
  };

  // x [T,h] (the residual stream; its norm is inside) -> [T,h]. `plan` is empty outside training.
  Tensor forward(Context& ctx, const Tensor& x, const LayoutPtr& layout, const RecomputePlan& plan = {}) const;
  // With a cache: the next tokens of the one sequence that it holds (no graph).
  Tensor forward_cached(Context& ctx, const Tensor& x, const LayoutPtr& layout, LayerCache& cache) const;

  // The two stages apart: projection to normed core output; output projection. Every region but gdn_norm_out works here, as that one is
  // freed and restored around the second stage: it is refused (ErrorCode::InvalidOpInput).
  StageOne forward_pre_attn_and_core_attn(Context& ctx, const Tensor& x, const LayoutPtr& layout, const RecomputePlan& plan = {}) const;
  Tensor forward_post_core_attn(Context& ctx, const StageOne& stage) const;

 protected:
  // What differs between the variants: the sections of `gates` behind z, and the parameters of the decay; whole sizes.
  struct GateDeclaration {
    std::vector<ParameterSection> sections;
    std::int64_t A_log = 0, dt_bias = 0;  // elements
    InitKind dt_bias_init = InitKind::Constant;
  };
  GatedDeltaNet(const LayerSetup& setup, const GateDeclaration& gates);

  // q, k, v side by side and the pieces of `gates` behind z -> [T, Hv*V].
  virtual Tensor rule(Context& ctx, const Tensor& prepared, const std::vector<Tensor>& gates, const LayoutPtr& layout, LayerCache* cache) const;
  virtual std::vector<Tensor> split_gates(Context& ctx, const Tensor& gates) const;  // z and the rest, each [T, heads, dim] or [T, heads]
  std::vector<Tensor> split_qkv(Context& ctx, const Tensor& prepared) const;         // {q, k, v}
  virtual kernels::PreRuleGates pre_rule_gates() const { return kernels::PreRuleGates::Heads; }
  // What `rule` finds in its gates: raw from the projection, or as the fused preparation left them.
  kernels::GateForm gate_form() const { return pre_rule_fusion_ ? kernels::GateForm::Activated : kernels::GateForm::Raw; }

  // The parameters that the rule and what is before it read: those of this context-parallel rank's heads.
  Tensor A_log(Context& ctx) const { return heads_of_parameter(ctx, A_log_->value, {A_log_->spec.shape[0]}, "gdn.A_log"); }
  Tensor dt_bias(Context& ctx) const { return heads_of_parameter(ctx, dt_bias_->value, {dt_bias_->spec.shape[0]}, "gdn.dt_bias"); }
  Tensor conv_weight(Context& ctx) const;

  int layer_;
  std::int64_t key_heads_, value_heads_, key_dim_, value_dim_;  // heads of this rank where its mixer runs: cut over tensor and context ranks
  bool allow_neg_eigval_;
  bool pre_rule_fusion_, output_norm_fusion_;
  ParameterPtr A_log_, dt_bias_;

 private:
  StageOne stage_one(Context& ctx, const Tensor& x, const LayoutPtr& rows, const RecomputePlan& plan, LayerCache* cache) const;
  std::vector<Tensor> project(Context& ctx, const Tensor& x, const LayoutPtr& layout) const;            // {qkv, gates} of all tokens
  Tensor prepare(Context& ctx, const Tensor& qkv, const LayoutPtr& layout, LayerCache* cache) const;    // q, k, v side by side
  // {q, k, v side by side, z, gates of the rule}, raw or, with the fusion (gdn_fused.cpp), as the rule uses them.
  std::vector<Tensor> make_ready(Context& ctx, const std::vector<Tensor>& projected, const LayoutPtr& layout, LayerCache* cache) const;
  std::vector<Tensor> prepare_fused(Context& ctx, const std::vector<Tensor>& projected, const LayoutPtr& layout, LayerCache* cache) const;
  Tensor gate_of_norm(Context& ctx, const Tensor& z) const;  // z itself, which the fused norm reads in place, or a copy
  Tensor output_norm(Context& ctx, const Tensor& core, const Tensor& gate, const LayoutPtr& layout) const;  // of this rank's rows again

  NormOptions input_norm_options_, output_norm_options_;
  ParameterPtr input_norm_, qkv_weight_, gates_weight_, conv_weight_, out_norm_, out_proj_;
};

}  // namespace deltron
