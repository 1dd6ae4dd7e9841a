// Attention over a cache (kernels/attention_decode.h): a (query token, head) is one part; scores, their maximum and the weighted sum
// of values in three passes over a row of workspace.
#include "kernels/attention_decode.h"

#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_decode.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <cmath>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

// q, o [dim] of one head; k, v rows of its cache; scores [visible] and sum [dim] are scratch.
template <class S, class T = Compute<S>>
void attend(const AttentionDecodeArgs& args, const S* q, const S* k, const S* v, std::int64_t visible, T* scores, T* sum, S* o) {
  const Tag<T> d;
  for (std::int64_t key = 0; key < visible; ++key) {
    const S* row = k + key * args.k.token_stride;
    auto dot = hn::Zero(d);
    for_lanes(d, args.dim, [&](std::int64_t i, auto part) HWY_ATTR { dot = hn::MulAdd(load(d, q + i, part), load(d, row + i, part), dot); });
    scores[key] = sum_lanes(d, dot) * static_cast<T>(args.scale);
  }
  T top = scores[0];
  for (std::int64_t key = 1; key < visible; ++key) top = scores[key] > top ? scores[key] : top;
  T total = 0;
  for (std::int64_t key = 0; key < visible; ++key) {
    scores[key] = std::exp(scores[key] - top);
    total += scores[key];
  }
  for (std::int64_t i = 0; i < args.dim; ++i) sum[i] = 0;
  for (std::int64_t key = 0; key < visible; ++key) {
    const S* row = v + key * args.v.token_stride;
    const auto weight = hn::Set(d, scores[key] / total);
    for_lanes(d, args.dim, [&](std::int64_t i, auto part)
                               HWY_ATTR { store(hn::MulAdd(weight, load(d, row + i, part), load(d, sum + i, part)), d, sum + i, part); });
  }
  for_lanes(d, args.dim, [&](std::int64_t i, auto part) HWY_ATTR { store(load(d, sum + i, part), d, o + i, part); });
}

template <class S>
void decode(const AttentionDecodeArgs& args, ThreadPool& pool) {
  using T = Compute<S>;
  const std::int64_t group = args.query_heads / args.kv_heads;
  parallel_for(pool, args.tokens * args.query_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t token = part / args.query_heads, head = part % args.query_heads;
      T* scores = static_cast<T*>(args.workspace.data) + part * (args.context + args.dim);
      attend<S>(args, static_cast<const S*>(args.q.data) + token * args.q.token_stride + head * args.q.head_stride,
                static_cast<const S*>(args.k.data) + head / group * args.k.head_stride,
                static_cast<const S*>(args.v.data) + head / group * args.v.head_stride, args.context - args.tokens + token + 1, scores,
                scores + args.context, static_cast<S*>(args.o.data) + token * args.o.token_stride + head * args.o.head_stride);
    }
  });
}

void attention_decode_any(const AttentionDecodeArgs& args, ThreadPool& pool) {
  with_storage(args.dtype, "attention_decode", [&](auto s) { decode<decltype(s)>(args, pool); });
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(attention_decode_any);

std::int64_t attention_decode_workspace_bytes(const AttentionDecodeArgs& args, const StreamHandle&) {
  return args.tokens * args.query_heads * (args.context + args.dim) * static_cast<std::int64_t>(dtype_size(compute_dtype(args.dtype)));
}

void attention_decode(const AttentionDecodeArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.context >= args.tokens && args.kv_heads > 0 && args.query_heads % args.kv_heads == 0, "attention_decode: ", args.tokens,
                " tokens in a context of ", args.context, ", heads ", args.query_heads, " over ", args.kv_heads);
  DELTRON_CHECK_GE(args.workspace.bytes, attention_decode_workspace_bytes(args, stream), "attention_decode's workspace");
  HWY_DYNAMIC_DISPATCH(attention_decode_any)(args, *stream.pool);
}

}  // namespace deltron::kernels::cpu
#endif
