// The Gated DeltaNet mixer (docs/gdn.md section 9): in_proj writes two storages, `qkv` (the convolution's input) and `gates` (z,
// beta, alpha), by two products, so that what different recompute and offload regions free are different storages. Two stages, callable apart.
#pragma once

#include "src/autograd/functions_gdn.h"
#include "src/nn/decode_cache.h"
#include "src/nn/layer.h"

namespace deltron {

class GatedDeltaNet {
 public:
  explicit GatedDeltaNet(const LayerSetup& setup);

  struct CoreOutput {
    Tensor core;  // [T, Hv*V] raw output of the rule
    Tensor z;     // [T, Hv, V] view of the gates storage
  };
  // x [T,h] (the residual stream; its norm is inside) up to the delta rule's output.
  // With a cache: the next tokens of the one sequence that it holds (no graph).
  CoreOutput forward_pre_attn_and_core_attn(Context& ctx, const Tensor& x, const LayoutPtr& layout, LayerCache* cache = nullptr) const;
  // Gated norm and output projection: [T,h].
  Tensor forward_post_core_attn(Context& ctx, const CoreOutput& core) const;
  Tensor forward(Context& ctx, const Tensor& x, const LayoutPtr& layout) const;
  Tensor forward_cached(Context& ctx, const Tensor& x, const LayoutPtr& layout, LayerCache& cache) const;

 private:
  int layer_;
  std::int64_t key_heads_, value_heads_, key_dim_, value_dim_;
  bool allow_neg_eigval_;
  NormOptions input_norm_options_, output_norm_options_;
  ParameterPtr input_norm_, qkv_weight_, gates_weight_, conv_weight_, A_log_, dt_bias_, out_norm_, out_proj_;
};

}  // namespace deltron
