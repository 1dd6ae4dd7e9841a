// Reductions on cuda in a fixed order: fp64 partials of fixed blocks, ordered sums, the clipping factor. Nothing is read by the
// host.
#include "kernels/reduce.h"

#include "kernels/cuda/square_sum.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// One block of threads a block of kNormBlock elements.
template <class S>
__global__ void __launch_bounds__(kSquareThreads) squared_norm_kernel(SquaredNormArgs a, bool aligned) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kNormBlock, left = a.count - begin;
  square_sum(static_cast<const S*>(a.x) + begin, static_cast<int>(left < kNormBlock ? left : kNormBlock), aligned,
             a.partials + blockIdx.x, a.nonfinite == nullptr ? nullptr : a.nonfinite + blockIdx.x);
}

// Runs of kOrderedRun values, each added in ascending order by a thread of its own; then the runs, in ascending order. The values
// pass through shared memory, one apart from run to run so that the threads meet in no bank.
constexpr int kOrderedRun = 128, kOrderedRuns = 32;
__global__ void __launch_bounds__(kOrderedRuns * 32) ordered_sum_kernel(OrderedSumArgs a) {
  __shared__ double values[kOrderedRuns][kOrderedRun + 1];
  double total = 0;
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t begin = 0; begin < a.count; begin += kOrderedRun * kOrderedRuns) {
    const std::int64_t left = a.count - begin;
    const int count = left < kOrderedRun * kOrderedRuns ? static_cast<int>(left) : kOrderedRun * kOrderedRuns;
    __syncthreads();
    for (int i = thread; i < count; i += kOrderedRuns * 32) values[i / kOrderedRun][i % kOrderedRun] = a.x[begin + i];
    __syncthreads();
    if (thread >= 32) continue;
    const int first = thread * kOrderedRun, mine = count - first < kOrderedRun ? count - first : kOrderedRun;
    double sum = 0;
#pragma unroll 8
    for (int i = 0; i < mine; ++i) sum += values[thread][i];
    const int runs = (count + kOrderedRun - 1) / kOrderedRun;
    for (int run = 0; run < runs; ++run) total += __shfl_sync(0xffffffffu, sum, run);
  }
  if (thread == 0) *a.result = total;
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
  if (a.nonfinite_flag != nullptr && !isfinite(norm)) *a.nonfinite_flag = 1;
}

}  // namespace

void squared_norm(const SquaredNormArgs& args, const StreamHandle& stream) {
  if (args.count <= 0) return;
  const unsigned blocks = static_cast<unsigned>(ceil_div(args.count, kNormBlock));
  with_storage(args.dtype, "squared_norm", [&](auto s) {
    launch_kernel("squared_norm", squared_norm_kernel<decltype(s)>, dim3(blocks), dim3(kSquareThreads), stream, args,
                  aligned16(args.x));
  });
}

void ordered_sum(const OrderedSumArgs& args, const StreamHandle& stream) {
  launch_kernel("ordered_sum", ordered_sum_kernel, dim3(1), dim3(kOrderedRuns * 32), stream, args);
}

void sum(const SumArgs& args, const StreamHandle& stream) {
  with_storage(args.dtype, "sum",
               [&](auto s) { launch_kernel("sum", sum_kernel<decltype(s)>, dim3(1), dim3(kThreads), stream, args); });
}

void clip_scale(const ClipScaleArgs& args, const StreamHandle& stream) {
  launch_kernel("clip_scale", clip_scale_kernel, dim3(1), dim3(1), stream, args);
}

}  // namespace deltron::kernels::cuda
