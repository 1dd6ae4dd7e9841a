// Reductions on cuda in a fixed order: fp64 partials of fixed blocks, ordered sums, the clipping factor. Nothing is read by the
// host.
#include "kernels/reduce.h"

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ bool finite(double x) { return isfinite(x); }

// One block of threads a block of kNormBlock elements.
template <class S, int N>
__global__ void squared_norm_kernel(SquaredNormArgs a) {
  __shared__ double shared[kThreads / 32];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kNormBlock;
  const std::int64_t end = begin + kNormBlock < a.count ? begin + kNormBlock : a.count;
  const S* x = static_cast<const S*>(a.x);
  double sum = 0, bad = 0;
  const auto take = [&](double value) {
    sum = fma(value, value, sum);
    bad += finite(value) ? 0.0 : 1.0;
  };
  std::int64_t i = begin + static_cast<std::int64_t>(threadIdx.x) * N;
  for (; i + N <= end; i += kThreads * N) {
    double value[N];
    load(x + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) take(value[j]);
  }
  if constexpr (N > 1) {
    const std::int64_t rest = begin + (end - begin) / N * N + threadIdx.x;
    if (rest < end) take(static_cast<double>(widen(x[rest])));
  }
  sum = group_sum<kThreads>(sum, shared);
  bad = group_sum<kThreads>(bad, shared);
  if (threadIdx.x != 0) return;
  a.partials[blockIdx.x] = sum;
  if (a.nonfinite != nullptr) a.nonfinite[blockIdx.x] = static_cast<std::int64_t>(bad);
}

// One thread adds in ascending order, the others bring the values.
__global__ void ordered_sum_kernel(OrderedSumArgs a) {
  __shared__ double values[1024];
  double total = 0;
  for (std::int64_t begin = 0; begin < a.count; begin += 1024) {
    const std::int64_t left = a.count - begin;
    const int count = left < 1024 ? static_cast<int>(left) : 1024;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < count) values[threadIdx.x] = a.x[begin + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < count; ++i) total += values[i];
    }
  }
  if (threadIdx.x == 0) *a.result = total;
}

// Blocks of 1024 elements in ascending order; each is summed as a fixed tree.
template <class S>
__global__ void sum_kernel(SumArgs a) {
  __shared__ double shared[kThreads / 32];
  const S* x = static_cast<const S*>(a.x);
  double total = 0;
  for (std::int64_t begin = 0; begin < a.count; begin += 1024) {
    double part = 0;
    for (int j = 0; j < 1024 / kThreads; ++j) {
      const std::int64_t i = begin + j * kThreads + threadIdx.x;
      if (i < a.count) part += static_cast<double>(widen(x[i]));
    }
    total += group_sum<kThreads>(part, shared);
  }
  if (threadIdx.x == 0) *a.result = total;
}

__global__ void clip_scale_kernel(ClipScaleArgs a) {
  const double norm = sqrt(*a.squared_norm);
  const double wanted = a.clip > 0 ? a.clip / (norm + 1e-6) : 1.0;
  if (a.norm != nullptr) *a.norm = norm;
  if (a.scale != nullptr) *a.scale = wanted >= 1.0 ? 1.0 : wanted;  // a NaN stays one
  if (a.nonfinite_flag != nullptr && !finite(norm)) *a.nonfinite_flag = 1;
}

}  // namespace

void squared_norm(const SquaredNormArgs& args, const StreamHandle& stream) {
  if (args.count <= 0) return;
  const unsigned blocks = static_cast<unsigned>(ceil_div(args.count, kNormBlock));
  with_storage(args.dtype, "squared_norm", [&](auto s) {
    using S = decltype(s);
    if constexpr (kVector < S >> 1) {
      if (aligned16(args.x)) return squared_norm_kernel<S, kVector<S>><<<blocks, kThreads, 0, native(stream)>>>(args);
    }
    squared_norm_kernel<S, 1><<<blocks, kThreads, 0, native(stream)>>>(args);
  });
  check_launch("squared_norm");
}

void ordered_sum(const OrderedSumArgs& args, const StreamHandle& stream) {
  ordered_sum_kernel<<<1, 1024, 0, native(stream)>>>(args);
  check_launch("ordered_sum");
}

void sum(const SumArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "sum", [&](auto s) { sum_kernel<decltype(s)><<<1, kThreads, 0, native(stream)>>>(args); });
  check_launch("sum");
}

void clip_scale(const ClipScaleArgs& args, const StreamHandle& stream) {
  clip_scale_kernel<<<1, 1, 0, native(stream)>>>(args);
  check_launch("clip_scale");
}

}  // namespace deltron::kernels::cuda
