// Softmax attention of a few new tokens over everything seen so far (generation): queries are the last `tokens` of `context` tokens
// of one sequence, keys and values come from a cache. Query i sees keys 0 .. context - tokens + i. No gradients, no dropout.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

struct AttentionDecodeArgs {
  std::int64_t tokens = 0, context = 0, query_heads = 0, kv_heads = 0, dim = 0;
  DType dtype = DType::F32;
  double scale = 1;
  HeadView q;         // [tokens, query_heads, dim]
  HeadView k, v;      // [context, kv_heads, dim]
  MutableHeadView o;  // [tokens, query_heads, dim]
  Workspace workspace;
};

namespace cpu {
std::int64_t attention_decode_workspace_bytes(const AttentionDecodeArgs& args, const StreamHandle& stream);
void attention_decode(const AttentionDecodeArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
std::int64_t attention_decode_workspace_bytes(const AttentionDecodeArgs& args, const StreamHandle& stream);
void attention_decode(const AttentionDecodeArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
