// Differentiable softmax attention: q/k preparation (optional per-head norm, optional rotary embedding) and the core.
#pragma once

#include "src/autograd/functions_basic.h"
#include "src/base/attention_backend.h"
#include "src/autograd/functions_linear.h"

namespace deltron {

struct HeadPrepOptions {
  bool norm = false;  // RMSNorm over each head, weight [D]
  NormOptions norm_options;
  std::int64_t rotary_dim = 0;  // 0: none
  double rotary_base = 10000;
};

// x [T,H,D] (any token and head stride) -> contiguous [T,H,D]. `weight` is undefined without norm. With neither norm nor rotary
// embedding x itself is returned.
Tensor prepare_heads(Context& ctx, const Tensor& x, const Tensor& weight, const LayoutPtr& layout, const HeadPrepOptions& options,
                     const char* name);

struct AttentionOptions {
  double scale = 0;  // 0: 1/sqrt(D)
  double drop_probability = 0;
  std::int64_t first_head = 0;  // of q, among the heads of the layer: dropout decisions go by it
  RngSite site;
  AttentionBackend backend = AttentionBackend::Auto;
};

// Causal within each document. q [T,Hq,D], k, v [T,Hkv,D] -> [T,Hq*D]. Saves q, k, v, the output and log_sum_exp [T,Hq]
// (its order is that of the kernels which are chosen).
Tensor attention(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const LayoutPtr& layout, const AttentionOptions& options,
                 const char* name);

// Generation: q [T,Hq,D] are the last T tokens of a sequence whose keys and values [S,Hkv,D], S >= T, are given whole -> [T,Hq*D].
// No graph.
Tensor attention_over_cache(Context& ctx, const Tensor& q, const Tensor& keys, const Tensor& values, const char* name);

}  // namespace deltron
