// See mlp.h.
#include "src/nn/mlp.h"

#include "distributed/functions_tensor_parallel.h"

namespace deltron {

Mlp::Mlp(const LayerSetup& setup) : layer_(setup.layer), norm_options_(setup.norm()) {
  const TransformerConfig& config = *setup.config;
  const std::int64_t h = config.hidden_size, ffn = config.ffn_hidden_size;
  norm_ = setup.declare_norm("pre_mlp_layernorm.weight");
  fc1_ = setup.store->declare({.name = setup.prefix + "mlp.linear_fc1.weight", .shape = {2 * ffn / setup.tensor_ranks, h}, .dtype = setup.dtype,
                               .sections = {setup.section("gate", ffn), setup.section("up", ffn)}, .init = InitKind::Normal,
                               .init_scale = config.init_method_std});
  fc2_ = setup.store->declare({.name = setup.prefix + "mlp.linear_fc2.weight", .shape = {h, ffn / setup.tensor_ranks}, .dtype = setup.dtype,
                               .cut = setup.cut(1, ffn), .init = InitKind::Normal, .init_scale = setup.output_std()});
}

Tensor Mlp::forward(Context& ctx, const Tensor& x) const {
  ScopeGuard scope(ctx, layer_, "mlp");
  const Tensor hidden = project_input(ctx, x, norm_, norm_options_, {fc1_}, {"mlp.fc1"})[0];
  return swiglu_linear(ctx, hidden, fc2_->value, "mlp.fc2", tensor_parallel_exchange(ctx));
}

}  // namespace deltron
