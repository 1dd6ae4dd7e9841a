// Causal softmax attention over packed documents with grouped queries, in blocks with a running maximum
// (FlashAttention, Dao et al. 2022): the score matrix is never kept. Head h of q reads head h/(Hq/Hkv) of k and v.
// Dropout: the decision for (query token, head, key token j of the same document) is word j%4 of block (first_head + head)*2^20 + j/4 of the
// query's row.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/views.h"

namespace deltron::kernels {

struct AttentionForwardArgs {
  std::int64_t tokens = 0, query_heads = 0, kv_heads = 0, dim = 0;
  Documents documents;
  DType dtype = DType::F32;
  double scale = 1;
  HeadView q, k, v;             // [tokens, heads, dim]
  MutableHeadView o;            // [tokens, query_heads, dim]
  void* log_sum_exp = nullptr;  // [tokens, query_heads] of compute_dtype(dtype); null outside training
  TokenRng rng;                 // drop_probability 0: none
  Workspace workspace;
};

struct AttentionBackwardArgs {
  std::int64_t tokens = 0, query_heads = 0, kv_heads = 0, dim = 0;
  Documents documents;
  DType dtype = DType::F32;
  double scale = 1;
  HeadView q, k, v, o, d_o;
  const void* log_sum_exp = nullptr;
  MutableHeadView dq, dk, dv;  // dk, dv summed over the query heads of a group
  TokenRng rng;
  Workspace workspace;
};

namespace cpu {
std::int64_t attention_forward_workspace_bytes(const AttentionForwardArgs& args, const StreamHandle& stream);
void attention_forward(const AttentionForwardArgs& args, const StreamHandle& stream);
std::int64_t attention_backward_workspace_bytes(const AttentionBackwardArgs& args, const StreamHandle& stream);
void attention_backward(const AttentionBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
std::int64_t attention_forward_workspace_bytes(const AttentionForwardArgs& args, const StreamHandle& stream);
void attention_forward(const AttentionForwardArgs& args, const StreamHandle& stream);
std::int64_t attention_backward_workspace_bytes(const AttentionBackwardArgs& args, const StreamHandle& stream);
void attention_backward(const AttentionBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
