// Softmax cross entropy on cuda: a block of threads a row; logits stay in their storage type. Masked rows read no logits; a label
// beyond the vocabulary gives NaN, which ends the run at the non-finite check.
#include "kernels/cross_entropy.h"

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class C>
__device__ __forceinline__ C block_max(C value, C* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const C other = __shfl_xor_sync(0xffffffffu, value, offset);
    value = other > value ? other : value;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) value = shared[warp] > value ? shared[warp] : value;
  return value;
}

// f(value, index) for every logit of a row.
template <int N, class S, class F>
__device__ __forceinline__ void for_row(const S* x, std::int64_t vocab, const F& f) {
  std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * N;
  for (; i + N <= vocab; i += kThreads * N) {
    Compute<S> value[N];
    load(x + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) f(value[j], i + j);
  }
  if constexpr (N > 1) {
    const std::int64_t rest = vocab / N * N + threadIdx.x;
    if (rest < vocab) f(static_cast<Compute<S>>(widen(x[rest])), rest);
  }
}

template <class S, int N>
__global__ void forward_kernel(CrossEntropyForwardArgs a) {
  using C = Compute<S>;
  __shared__ C shared[kThreads / 32];
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = a.labels[row];
  C loss = 0, lse = 0, at_label = 0;
  if (label != kIgnoreLabel) {  // the same for all threads of the block
    const S* x = static_cast<const S*>(a.logits.data) + row * a.logits.row_stride;
    C top = -INFINITY;
    for_row<N>(x, a.vocab, [&](C value, std::int64_t) { top = value > top ? value : top; });
    top = block_max(top, shared);
    C sum = 0;
    for_row<N>(x, a.vocab, [&](C value, std::int64_t) { sum += exponential(value - top); });
    lse = top + logarithm(group_sum<kThreads>(sum, shared));
    const std::int64_t here = label - a.first;
    if (here >= 0 && here < a.vocab) at_label = static_cast<C>(widen(x[here]));
    if (label < 0 || label >= (a.whole > 0 ? a.whole : a.vocab)) at_label = static_cast<C>(NAN);
    loss = lse - at_label;
  }
  if (threadIdx.x != 0) return;
  if (a.loss != nullptr) static_cast<C*>(a.loss)[row] = loss;
  if (a.log_sum_exp != nullptr) static_cast<C*>(a.log_sum_exp)[row] = lse;
  if (a.label_logit != nullptr) static_cast<C*>(a.label_logit)[row] = at_label;
}

// A thread a row; the ranks' parts in their order.
template <class C>
__global__ void join_kernel(CrossEntropyJoinArgs a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= a.rows) return;
  const auto part = [&](std::int64_t rank, std::int64_t which) { return static_cast<const C*>(a.parts)[(2 * rank + which) * a.rows + row]; };
  C lse = 0, at_label = 0;
  if (a.labels[row] != kIgnoreLabel) {
    C top = part(0, 0), sum = 0;
    for (std::int64_t rank = 1; rank < a.ranks; ++rank) top = part(rank, 0) > top ? part(rank, 0) : top;
    for (std::int64_t rank = 0; rank < a.ranks; ++rank) {
      sum += exponential(part(rank, 0) - top);
      at_label += part(rank, 1);
    }
    lse = top + logarithm(sum);
  }
  static_cast<C*>(a.loss)[row] = lse - at_label;
  static_cast<C*>(a.log_sum_exp)[row] = lse;
}

template <class S, int N>
__global__ void backward_kernel(CrossEntropyBackwardArgs a) {
  using C = Compute<S>;
  const std::int64_t row = blockIdx.x;
  const std::int32_t label = a.labels[row];
  S* dx = static_cast<S*>(a.dlogits.data) + row * a.dlogits.row_stride;
  const bool masked = label == kIgnoreLabel;
  const S* x = static_cast<const S*>(a.logits.data) + row * a.logits.row_stride;
  const C scale = masked ? C(0) : static_cast<const C*>(a.dloss)[row];
  const C lse = masked ? C(0) : static_cast<const C*>(a.log_sum_exp)[row];
  const std::int64_t here = label - a.first;
  const auto slope = [&](C value, std::int64_t i) {
    const C probability = exponential(value - lse);
    return (i == here ? probability - C(1) : probability) * scale;
  };
  std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * N;
  for (; i + N <= a.vocab; i += kThreads * N) {
    C value[N] = {};
    if (!masked) load(x + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = masked ? C(0) : slope(value[j], i + j);
    store(value, dx + i);
  }
  if constexpr (N > 1) {
    const std::int64_t rest = a.vocab / N * N + threadIdx.x;
    if (rest < a.vocab) dx[rest] = narrow<S>(masked ? C(0) : slope(static_cast<C>(widen(x[rest])), rest));
  }
}

}  // namespace

void cross_entropy_forward(const CrossEntropyForwardArgs& args, const StreamHandle& stream) {
  if (args.rows <= 0) return;
  with_storage(args.dtype, "cross_entropy", [&](auto s) {
    using S = decltype(s);
    const unsigned rows = static_cast<unsigned>(args.rows);
    if constexpr (kVector < S >> 1) {
      if (aligned16(args.logits, args.dtype)) return forward_kernel<S, kVector<S>><<<rows, kThreads, 0, native(stream)>>>(args);
    }
    forward_kernel<S, 1><<<rows, kThreads, 0, native(stream)>>>(args);
  });
  check_launch("cross_entropy_forward");
}

void cross_entropy_join(const CrossEntropyJoinArgs& args, const StreamHandle& stream) {
  if (args.rows <= 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(args.rows, std::int64_t{kThreads}));
  if (args.dtype == DType::F64) join_kernel<double><<<blocks, kThreads, 0, native(stream)>>>(args);
  if (args.dtype == DType::F32) join_kernel<float><<<blocks, kThreads, 0, native(stream)>>>(args);
  check_launch("cross_entropy_join");
}

void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const StreamHandle& stream) {
  if (args.rows <= 0) return;
  with_storage(args.dtype, "cross_entropy", [&](auto s) {
    using S = decltype(s);
    const unsigned rows = static_cast<unsigned>(args.rows);
    if constexpr (kVector < S >> 1) {
      if (aligned16(args.logits, args.dtype) && aligned16(args.dlogits, args.dtype)) {
        return backward_kernel<S, kVector<S>><<<rows, kThreads, 0, native(stream)>>>(args);
      }
    }
    backward_kernel<S, 1><<<rows, kThreads, 0, native(stream)>>>(args);
  });
  check_launch("cross_entropy_backward");
}

}  // namespace deltron::kernels::cuda
