// See block.h.
#include "src/nn/block.h"

#include "src/base/rng.h"
#include "src/nn/gdn2.h"

namespace deltron {

TransformerBlock::TransformerBlock(const LayerSetup& setup, std::uint64_t seed)
    : layer_(setup.layer), seed_(seed), drop_probability_(setup.config->hidden_dropout) {
  if (is_linear_layer(*setup.config, setup.layer)) {
    const bool second = setup.config->experimental_attention_variant == ExperimentalAttentionVariant::Gdn2;
    if (second) linear_mixer_ = std::make_unique<GatedDeltaNet2>(setup);
    if (!second) linear_mixer_ = std::make_unique<GatedDeltaNet>(setup);
  } else {
    softmax_mixer_.emplace(setup, seed);
  }
  mlp_.emplace(setup);
}

Tensor TransformerBlock::forward(Context& ctx, const Tensor& x, const LayoutPtr& layout, const ForwardMode& mode) const {
  const double drop = mode.training ? drop_probability_ : 0;
  const auto layer = static_cast<std::uint32_t>(layer_);
  Tensor hidden = x;
  if (!(linear_mixer_ && mode.without_linear_mixers)) {
    const Tensor mixed = linear_mixer_ ? linear_mixer_->forward(ctx, x, layout, mode.recompute)
                                       : softmax_mixer_->forward(ctx, x, layout, mode.training, mode.recompute.core_attn);
    ScopeGuard scope(ctx, layer_, "residual");
    hidden = dropout_add(ctx, mixed, x, layout, {seed_, layer, kRngSiteHiddenDropoutMixer}, drop, "residual");
  }
  const auto mlp_region = [this, &ctx](const std::vector<Tensor>& in) { return std::vector<Tensor>{mlp_->forward(ctx, in[0])}; };
  const Tensor expanded = mode.recompute.mlp ? recompute(ctx, "mlp", mlp_region, {hidden})[0] : mlp_->forward(ctx, hidden);
  ScopeGuard scope(ctx, layer_, "residual");
  return dropout_add(ctx, expanded, hidden, layout, {seed_, layer, kRngSiteHiddenDropoutMlp}, drop, "residual");
}

Tensor TransformerBlock::forward_cached(Context& ctx, const Tensor& x, const LayoutPtr& layout, LayerCache& cache) const {
  const auto layer = static_cast<std::uint32_t>(layer_);
  const Tensor mixed = linear_mixer_ ? linear_mixer_->forward_cached(ctx, x, layout, cache) : softmax_mixer_->forward_cached(ctx, x, layout, cache);
  const Tensor hidden = dropout_add(ctx, mixed, x, layout, {seed_, layer, kRngSiteHiddenDropoutMixer}, 0, "residual");
  return dropout_add(ctx, mlp_->forward(ctx, hidden), hidden, layout, {seed_, layer, kRngSiteHiddenDropoutMlp}, 0, "residual");
}

}  // namespace deltron
