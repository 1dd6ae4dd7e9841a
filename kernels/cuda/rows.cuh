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

// Rows of heads in the registers of 16 threads or a warp, N values a thread: each input is read once.
// (row, head) number `index` as sequence, row of it and head, in 32 bits (with_rows_in_registers sees to it).
struct RowPlace {
  int sequence = 0, row, head;
  // sequence_length 0: all rows have one stride.
  __device__ RowPlace(std::int64_t head_count, std::int64_t sequence_length, int index) {
    const unsigned heads = static_cast<unsigned>(head_count), length = static_cast<unsigned>(sequence_length);
    const unsigned all = static_cast<unsigned>(index) / heads;
    head = static_cast<int>(static_cast<unsigned>(index) - all * heads);
    row = static_cast<int>(all);
    if (length != 0) {
      sequence = static_cast<int>(all / length);
      row = static_cast<int>(all - static_cast<unsigned>(sequence) * length);
    }
  }
  template <class View>
  __device__ std::int64_t in(const View& view) const {
    const auto product = [](int count, std::int64_t stride) { return static_cast<std::int64_t>(count) * static_cast<int>(stride); };
    return product(sequence, view.sequence_stride) + product(row, view.token_stride) + product(head, view.head_stride);
  }
};

// f(group) where a row of a.dim values lies in the registers of a group and counts and strides fit into 32 bits; false where not.
template <int N, class Args, class F, class... Views>
bool with_rows_in_registers(const Args& a, const F& f, const Views&... views) {
  constexpr std::int64_t kMost = 1 << 30;
  const auto small = [&](const auto& view) {
    return view.sequence_stride < kMost && view.token_stride < kMost && view.head_stride < kMost;
  };
  if (a.dim > 32 * N || a.rows * a.heads >= kMost || !(small(views) && ...)) return false;
  if (a.dim <= 16 * N) {
    f(std::integral_constant<int, 16>{});
  } else {
    f(std::integral_constant<int, 32>{});
  }
  return true;
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
