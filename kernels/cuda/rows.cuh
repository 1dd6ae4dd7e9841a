// How norms cut their rows on cuda: a group of threads (16, a warp or the block) owns a row, a block owns a strip of rows whose
// sums into a weight's gradient it keeps in shared memory. The cut is a function of the shape alone.
#pragma once

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {

inline constexpr int kRowThreads = 256;
inline constexpr std::int64_t kMostStrips = 512;

// Threads a row for rows of `cols` values moved N at a time.
inline int row_group(std::int64_t cols, int n) { return cols <= 16 * n ? 16 : cols <= 256 * n ? 32 : kRowThreads; }

// Rows a block handles where partial sums are kept, and how many blocks that makes.
inline std::int64_t strip_rows(std::int64_t rows) { return rows <= kMostStrips * 16 ? 16 : ceil_div(rows, kMostStrips); }
inline std::int64_t strip_count(std::int64_t rows) { return ceil_div(rows, strip_rows(rows)); }
inline std::int64_t strip_bytes(std::int64_t rows, std::int64_t cols, DType dtype) {
  return strip_count(rows) * cols * static_cast<std::int64_t>(dtype_size(compute_dtype(dtype)));
}

// Shared bytes for the sums of every group of a block; raises the kernel's limit where it must.
template <class Kernel>
std::size_t prepare_shared(Kernel kernel, std::int64_t cols, int group, DType dtype, const char* what) {
  const std::int64_t bytes = kRowThreads / group * cols * static_cast<std::int64_t>(dtype_size(compute_dtype(dtype)));
  DELTRON_CHECK_LE(bytes, 220 * 1024, what, ": shared memory for rows of ", cols);
  if (bytes > 48 * 1024) {
    check_status(
        static_cast<int>(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes))), what);
  }
  return static_cast<std::size_t>(bytes);
}

// f(group) with the group as a compile-time constant.
template <class F>
void with_group(int group, const F& f) {
  if (group == 16) return f(std::integral_constant<int, 16>{});
  if (group == 32) return f(std::integral_constant<int, 32>{});
  f(std::integral_constant<int, kRowThreads>{});
}

// f(vector) with how many values a thread moves.
template <class S, class F>
void with_vector(bool aligned, const F& f) {
  if constexpr (kVector < S >> 1) {
    if (aligned) return f(std::integral_constant<int, kVector<S>>{});
  }
  f(std::integral_constant<int, 1>{});
}

// f(i) for the columns that thread `lane` of a group owns, N at a time; cols is a multiple of N.
template <int N, int kGroup, class F>
__device__ __forceinline__ void for_columns(std::int64_t cols, const F& f) {
  for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x % kGroup) * N; i < cols; i += kGroup * N) f(i);
}

// The strip's sums of all groups, in ascending order of groups, to partials[block][cols].
template <int kGroup, class C>
__device__ __forceinline__ void write_strip(const C* sums, std::int64_t cols, C* partials) {
  __syncthreads();
  for (std::int64_t i = threadIdx.x; i < cols; i += kRowThreads) {
    C sum = sums[i];
    for (int group = 1; group < kRowThreads / kGroup; ++group) sum += sums[group * cols + i];
    partials[blockIdx.x * cols + i] = sum;
  }
}

}  // namespace deltron::kernels::cuda
