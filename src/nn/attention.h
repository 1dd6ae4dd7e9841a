// Softmax attention as in Qwen3.5, each part switchable: output gate, q/k norm, grouped queries, partial rotary embedding.
#pragma once

#include "distributed/functions_context_parallel.h"
#include "src/autograd/functions_attention.h"
#include "src/nn/decode_cache.h"
#include "src/nn/layer.h"

namespace deltron {

class SelfAttention {
 public:
  SelfAttention(const LayerSetup& setup, std::uint64_t seed);
  // x [T,h] (the residual stream; its norm is inside) -> [T,h]. `recompute_core`: the region core_attn.
  Tensor forward(Context& ctx, const Tensor& x, const LayoutPtr& layout, bool training, bool recompute_core = false) const;
  // The same for the next tokens of the one sequence that `cache` holds, which grows by them. No graph.
  Tensor forward_cached(Context& ctx, const Tensor& x, const LayoutPtr& layout, LayerCache& cache) const;

 private:
  Tensor run(Context& ctx, const Tensor& x, const LayoutPtr& layout, bool training, bool recompute_core, LayerCache* cache) const;
  // q [T,Hq,d], k, v [T,G,d] as projected -> [T,Hq*d].
  Tensor core(Context& ctx, const std::vector<Tensor>& qkv, const LayoutPtr& layout, bool training, LayerCache* cache) const;
  int layer_;
  std::uint64_t seed_;
  std::int64_t heads_, groups_, dim_;       // of this rank, where its mixer runs: cut over tensor and context ranks
  std::int64_t first_head_;                 // of heads_, among those of the layer
  std::vector<HeadSection> sections_ = {};  // of qkv_weight_: cut over tensor ranks alone
  bool gated_, qk_norm_;
  std::int64_t rotary_dim_;
  double rotary_base_, drop_probability_;
  AttentionBackend backend_;
  NormOptions norm_options_;
  ParameterPtr input_norm_, qkv_weight_, q_norm_, k_norm_, proj_weight_;
};

}  // namespace deltron
