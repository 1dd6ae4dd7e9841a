// The linear mixer with gdn_pre_gated_delta_rule_fusion: in_proj's two storages to what the rule reads, by one operation (docs/gdn.md
// section 13). See gdn.h.
#include "src/nn/gdn.h"
#include "src/tensor/ops.h"

namespace deltron {

std::vector<Tensor> GatedDeltaNet::make_ready(Context& ctx, const std::vector<Tensor>& projected, const LayoutPtr& layout,
                                              LayerCache* cache) const {
  if (pre_rule_fusion_) return prepare_fused(ctx, projected, layout, cache);
  std::vector<Tensor> ready = {prepare(ctx, projected[0], layout, cache)};
  const std::vector<Tensor> gates = split_gates(ctx, projected[1]);
  ready.insert(ready.end(), gates.begin(), gates.end());
  return ready;
}

std::vector<Tensor> GatedDeltaNet::prepare_fused(Context& ctx, const std::vector<Tensor>& projected, const LayoutPtr& layout,
                                                 LayerCache* cache) const {
  ScopeGuard scope(ctx, layer_, "gdn_qkv");
  const GdnPreRuleOptions options{.gates = pre_rule_gates(),
                                  .key_heads = key_heads_,
                                  .value_heads = value_heads_,
                                  .key_dim = key_dim_,
                                  .value_dim = value_dim_,
                                  .allow_neg_eigval = allow_neg_eigval_};
  GdnPreRuleInputs inputs{projected[0], projected[1], conv_weight(ctx), A_log(ctx), dt_bias(ctx)};
  const std::int64_t earlier = cache == nullptr ? 0 : conv_weight_->value.size(1) - 1, tokens = projected[0].size(0);
  if (earlier > 0) {
    // The operation takes as many rows of gates as of convolution inputs; those before the new tokens are not looked at afterwards.
    inputs.qkv = cache->with_earlier_inputs(ctx, projected[0], earlier);
    inputs.gates = Tensor::zeros(ctx, {earlier + tokens, projected[1].size(1)}, projected[1].dtype(), "gdn.gates");
    convert(ctx, projected[1], inputs.gates.slice(0, earlier, tokens));
  }
  const GdnPreRuleResult made = gdn_pre_rule(ctx, inputs, earlier > 0 ? cache->conv_layout : layout, options, "gdn.pre_rule");
  std::vector<Tensor> ready = {made.prepared, made.z};
  // In the order of split_gates(): beta, g; or g, b, w.
  if (made.write.defined()) {
    ready.insert(ready.end(), {made.decay, made.strength, made.write});
  } else {
    ready.insert(ready.end(), {made.strength, made.decay});
  }
  if (earlier == 0) return ready;
  for (Tensor& tensor : ready) tensor = tensor.slice(0, earlier, tokens);
  return ready;
}

}  // namespace deltron
