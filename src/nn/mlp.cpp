// See mlp.h.
#include "src/nn/mlp.h"

namespace deltron {

Mlp::Mlp(const LayerSetup& setup) : layer_(setup.layer), norm_options_(setup.norm()) {
  const TransformerConfig& config = *setup.config;
  const std::int64_t h = config.hidden_size, ffn = config.ffn_hidden_size;
  norm_ = setup.declare_norm("pre_mlp_layernorm.weight");
  fc1_ = setup.store->declare({.name = setup.prefix + "mlp.linear_fc1.weight", .shape = {2 * ffn, h}, .dtype = setup.dtype,
                               .sections = {{"gate", ffn}, {"up", ffn}}, .init = InitKind::Normal, .init_scale = config.init_method_std});
  fc2_ = setup.store->declare({.name = setup.prefix + "mlp.linear_fc2.weight", .shape = {h, ffn}, .dtype = setup.dtype,
                               .init = InitKind::Normal, .init_scale = setup.output_std()});
}

Tensor Mlp::forward(Context& ctx, const Tensor& x) const {
  ScopeGuard scope(ctx, layer_, "mlp");
  const Tensor hidden = norm_linear(ctx, x, norm_->value, norm_options_, {fc1_->value}, {"mlp.fc1"})[0];
  return swiglu_linear(ctx, hidden, fc2_->value, "mlp.fc2");
}

}  // namespace deltron
