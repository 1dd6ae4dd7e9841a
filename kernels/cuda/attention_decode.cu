// Attention over a cache on cuda: a block a (query token, head); scores, their maximum and the weighted sum of values in passes
// over a row of workspace. Fixed order throughout.
#include "kernels/attention_decode.h"

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class S>
__global__ void __launch_bounds__(kThreads) decode_kernel(AttentionDecodeArgs a) {
  using C = Compute<S>;
  __shared__ C shared[kThreads / 32];
  const std::int64_t token = blockIdx.x, head = blockIdx.y, kv_head = head / (a.query_heads / a.kv_heads);
  const std::int64_t visible = a.context - a.tokens + token + 1;
  const S* q = static_cast<const S*>(a.q.data) + token * a.q.token_stride + head * a.q.head_stride;
  const S* k = static_cast<const S*>(a.k.data) + kv_head * a.k.head_stride;
  const S* v = static_cast<const S*>(a.v.data) + kv_head * a.v.head_stride;
  S* o = static_cast<S*>(a.o.data) + token * a.o.token_stride + head * a.o.head_stride;
  C* scores = static_cast<C*>(a.workspace.data) + (token * a.query_heads + head) * a.context;
  C top = -INFINITY;
  for (std::int64_t key = threadIdx.x; key < visible; key += kThreads) {
    const S* row = k + key * a.k.token_stride;
    C dot = C(0);
    for (std::int64_t i = 0; i < a.dim; ++i) dot = fma(static_cast<C>(widen(q[i])), static_cast<C>(widen(row[i])), dot);
    scores[key] = dot * static_cast<C>(a.scale);
    top = scores[key] > top ? scores[key] : top;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const C other = __shfl_xor_sync(0xffffffffu, top, offset);
    top = other > top ? other : top;
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = top;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) top = shared[warp] > top ? shared[warp] : top;
  C total = C(0);
  for (std::int64_t key = threadIdx.x; key < visible; key += kThreads) {
    scores[key] = exponential(scores[key] - top);
    total += scores[key];
  }
  total = group_sum<kThreads>(total, shared);
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < a.dim; i += kThreads) {
    C sum = C(0);
    for (std::int64_t key = 0; key < visible; ++key)
      sum = fma(scores[key], static_cast<C>(widen(v[key * a.v.token_stride + i])), sum);
    o[i] = narrow<S>(sum / total);
  }
}

}  // namespace

std::int64_t attention_decode_workspace_bytes(const AttentionDecodeArgs& args, const StreamHandle&) {
  return args.tokens * args.query_heads * args.context * static_cast<std::int64_t>(dtype_size(compute_dtype(args.dtype)));
}

void attention_decode(const AttentionDecodeArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.context >= args.tokens && args.kv_heads > 0 && args.query_heads % args.kv_heads == 0,
                "attention_decode: ", args.tokens, " tokens in a context of ", args.context, ", heads ", args.query_heads, " over ",
                args.kv_heads);
  DELTRON_CHECK_GE(args.workspace.bytes, attention_decode_workspace_bytes(args, stream), "attention_decode's workspace");
  if (args.tokens <= 0) return;
  with_storage(args.dtype, "attention_decode", [&](auto s) {
    decode_kernel<decltype(s)>
        <<<dim3(static_cast<unsigned>(args.tokens), static_cast<unsigned>(args.query_heads)), kThreads, 0, native(stream)>>>(args);
  });
  check_launch("attention_decode");
}

}  // namespace deltron::kernels::cuda
