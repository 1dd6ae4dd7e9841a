// The sum of squares and the count of non-finite values of one block of kNormBlock elements, in an order that depends neither on
// alignment nor on where the block lies: element e belongs to thread e / 4 mod 256, which takes its own in ascending order.
#pragma once

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {

inline constexpr int kSquareThreads = 256;
inline constexpr int kSquareGroup = 4;  // neighbouring elements of a thread
inline constexpr int kSquareAhead = 4;  // groups under way

// Called by all threads of a block. `aligned`: x lies on 16 bytes.
template <class S>
__device__ __forceinline__ void square_sum(const S* x, int count, bool aligned, double* partial, std::int64_t* nonfinite) {
  __shared__ double shared[kSquareThreads / 32];
  double sum = 0;
  int bad = 0;
  const auto take = [&](double value) {
    sum = fma(value, value, sum);
    bad += isfinite(value) ? 0 : 1;
  };
  constexpr int kStep = kSquareThreads * kSquareGroup;
  int i = static_cast<int>(threadIdx.x) * kSquareGroup;
  if (aligned) {
    for (; i + kStep * (kSquareAhead - 1) + kSquareGroup <= count; i += kStep * kSquareAhead) {
      double value[kSquareAhead][kSquareGroup];
#pragma unroll
      for (int k = 0; k < kSquareAhead; ++k) load(x + i + k * kStep, value[k]);
#pragma unroll
      for (int k = 0; k < kSquareAhead; ++k) {
#pragma unroll
        for (int j = 0; j < kSquareGroup; ++j) take(value[k][j]);
      }
    }
  }
  for (; i < count; i += kStep) {
#pragma unroll
    for (int j = 0; j < kSquareGroup; ++j) {
      if (i + j < count) take(static_cast<double>(widen(x[i + j])));
    }
  }
  sum = group_sum<kSquareThreads>(sum, shared);
  // Counts are small whole numbers: exact in any type and order.
  const double all_bad = group_sum<kSquareThreads>(static_cast<double>(bad), shared);
  if (threadIdx.x != 0) return;
  *partial = sum;
  if (nonfinite != nullptr) *nonfinite = static_cast<std::int64_t>(all_bad);
}

}  // namespace deltron::kernels::cuda
