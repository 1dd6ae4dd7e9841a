// What the CUDA kernels share: storage and compute types, 16-byte accesses, activations, sums of fixed order, loops over matrices.
// Device code and the host code that launches it; knows no family.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/error.h"
#include "kernels/views.h"
#include "src/base/check.h"

namespace deltron::kernels::cuda {

using bf16 = __nv_bfloat16;
using fp16 = __half;
template <class S>
using Compute = std::conditional_t<std::is_same_v<S, double>, double, float>;

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(bf16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float widen(fp16 value) { return __half2float(value); }
// Round to nearest even; every NaN becomes the one of base/bfloat16.h.
template <class S, class C>
__device__ __forceinline__ S narrow(C value) {
  if constexpr (std::is_same_v<S, bf16>) {
    return value != value ? __ushort_as_bfloat16(0x7fc0) : __float2bfloat16_rn(static_cast<float>(value));
  } else if constexpr (std::is_same_v<S, fp16>) {
    return value != value ? __ushort_as_half(0x7e00) : __float2half_rn(static_cast<float>(value));
  } else {
    return static_cast<S>(value);
  }
}
// What a value becomes when it is stored as S and loaded again.
template <class S, class C>
__device__ __forceinline__ C round_to_storage(C value) {
  return static_cast<C>(widen(narrow<S>(value)));
}

// N consecutive values, moved in pieces of 16 bytes where they fill them.
template <class S, int N>
struct alignas(sizeof(S) * N < 16 ? sizeof(S) * N : 16) Pack {
  S value[N];
};
template <class C, int N, class S>
__device__ __forceinline__ void load(const S* from, C (&to)[N]) {
  const Pack<S, N> pack = *reinterpret_cast<const Pack<S, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = static_cast<C>(widen(pack.value[i]));
}
template <class S, class C, int N>
__device__ __forceinline__ void store(const C (&from)[N], S* to) {
  Pack<S, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.value[i] = narrow<S>(from[i]);
  *reinterpret_cast<Pack<S, N>*>(to) = pack;
}
// Parameters whose type is known at run time only: fp32, bf16 or fp16 beside fp32 arithmetic, fp64 beside fp64.
template <class C, int N>
__device__ __forceinline__ void load_parameter(const void* data, DType dtype, std::int64_t at, C (&to)[N]) {
  if constexpr (std::is_same_v<C, double>) {
    load(static_cast<const double*>(data) + at, to);
  } else if (dtype == DType::F32) {
    load(static_cast<const float*>(data) + at, to);
  } else if (dtype == DType::BF16) {
    load(static_cast<const bf16*>(data) + at, to);
  } else {
    load(static_cast<const fp16*>(data) + at, to);
  }
}

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }
// 1/(1+e^-x), accurate in both tails.
template <class C>
__device__ __forceinline__ C sigmoid(C x) {
  const C e = exponential(x < C(0) ? x : -x);
  return (x < C(0) ? e : C(1)) / (C(1) + e);
}
template <class C>
__device__ __forceinline__ C silu(C x) {
  return x * sigmoid(x);
}
// d silu / dx = s (1 + x (1 - s)), s = sigmoid(x).
template <class C>
__device__ __forceinline__ C silu_derivative(C x, C s) {
  return s * (C(1) + x * (C(1) - s));
}

// Sum over groups of `kGroup` neighbouring threads (a power of two); every thread of the group gets the same bits. All threads of
// the block call it. `shared` holds one value a warp and is needed where a group is larger than a warp: the group is then the
// block.
template <int kGroup, class C>
__device__ __forceinline__ C group_sum(C value, C* shared) {
#pragma unroll
  for (int offset = (kGroup < 32 ? kGroup : 32) / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if constexpr (kGroup > 32) {
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    value = C(0);
#pragma unroll
    for (int warp = 0; warp < kGroup / 32; ++warp) value += shared[warp];
  }
  return value;
}

inline cudaStream_t native(const StreamHandle& stream) { return static_cast<cudaStream_t>(stream.native); }
inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
inline bool aligned16(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }
// Rows that begin on 16 bytes each.
inline bool aligned16(const void* data, std::int64_t stride, DType dtype) {
  return aligned16(data) && stride * static_cast<std::int64_t>(dtype_size(dtype)) % 16 == 0;
}
inline bool aligned16(const MatrixView& view, DType dtype) { return aligned16(view.data, view.row_stride, dtype); }
inline bool aligned16(const MutableMatrixView& view, DType dtype) { return aligned16(view.data, view.row_stride, dtype); }
template <class View>
bool heads_aligned16(const View& view, DType dtype) {
  const std::int64_t size = static_cast<std::int64_t>(dtype_size(dtype));
  return aligned16(view.data, view.token_stride, dtype) && view.head_stride * size % 16 == 0 &&
         view.sequence_stride * size % 16 == 0;
}

// function(S{}) with the C++ type of a storage dtype.
template <class F>
void with_storage(DType dtype, const char* kernel, const F& function) {
  switch (dtype) {
    case DType::F32:
      return function(float{});
    case DType::F64:
      return function(double{});
    case DType::BF16:
      return function(bf16{});
    case DType::F16:
      return function(fp16{});
    default:
      break;
  }
  DELTRON_CHECK(false, kernel, " has no CUDA form for ", dtype_name(dtype));
}
// A parameter's dtype goes with the operands'.
inline void check_parameter(DType operands, DType parameter, const char* kernel) {
  const bool wide = operands == DType::F64;
  DELTRON_CHECK(wide ? parameter == DType::F64 : parameter == DType::F32 || parameter == DType::BF16 || parameter == DType::F16,
                kernel, ": ", dtype_name(operands), " operands with ", dtype_name(parameter), " parameters");
}

// kernel<<<grid, block>>>(arguments...), which the CPU can run too (tests/support/cuda_emulation).
template <class... Parameters, class... Arguments>
void launch_kernel(const char* what, void (*kernel)(Parameters...), dim3 grid, dim3 block, const StreamHandle& stream,
                   const Arguments&... arguments) {
  if (grid.x == 0 || grid.y == 0) return;
#ifdef __CUDACC__
  kernel<<<grid, block, 0, native(stream)>>>(arguments...);
  check_launch(what);
#else
  (void)what, (void)stream;
  emulation::run_grid(grid, block, [&] { kernel(arguments...); });
#endif
}

// How many values a thread moves at once: 16 bytes of the narrowest type where everything is aligned, else one. fp64 is for tests.
template <class S>
inline constexpr int kVector = std::is_same_v<S, double> ? 1 : static_cast<int>(16 / sizeof(S));

// function.template at<N>(row, col) for every group of N columns of [rows, cols]; what is left of a row goes one by one.
template <int N, class F>
__global__ void matrix_kernel(F function, std::int64_t rows, std::int64_t cols) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * blockDim.x * N;
  for (std::int64_t col = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N; col + N <= cols; col += step) {
    function.template at<N>(row, col);
  }
  if constexpr (N > 1) {
    const std::int64_t col = cols / N * N + threadIdx.x;
    if (blockIdx.y == 0 && col < cols) function.template at<1>(row, col);
  }
}

template <int N, class F>
void launch_matrix(const F& function, std::int64_t rows, std::int64_t cols, const StreamHandle& stream, const char* what) {
  if (rows <= 0 || cols <= 0) return;
  const std::int64_t groups = ceil_div(cols, N);
  const unsigned across = groups >= 256 ? 256 : 32;
  const dim3 block(across, 256 / across);
  const std::int64_t row_blocks = ceil_div(rows, block.y);
  // Few rows are cut along their columns, into pieces of at least four groups a thread.
  const std::int64_t wanted = row_blocks >= 2048 ? 1 : ceil_div(2048, row_blocks);
  const std::int64_t most = ceil_div(groups, static_cast<std::int64_t>(across) * 4);
  const dim3 grid(static_cast<unsigned>(row_blocks), static_cast<unsigned>(wanted < most ? wanted : most));
  launch_kernel(what, matrix_kernel<N, F>, grid, block, stream, function, rows, cols);
}

// out [cols] += partials [count, cols]: eight runs of partials, each in ascending order, then the runs. Element c goes to out[c]
// or, for weights [cols/taps, taps] whose partials lie as [taps, cols/taps], to its place there.
inline constexpr int kPartialRuns = 8;
template <class C>
__global__ void add_partials_kernel(const C* partials, std::int64_t count, std::int64_t cols, std::int64_t taps, C* out) {
  __shared__ C runs[kPartialRuns][32];
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  const std::int64_t share = (count + kPartialRuns - 1) / kPartialRuns, begin = share * threadIdx.y;
  const std::int64_t end = begin + share < count ? begin + share : count;
  C sum = C(0);
  if (col < cols) {
#pragma unroll 8
    for (std::int64_t p = begin; p < end; ++p) sum += partials[p * cols + col];
  }
  runs[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  for (int run = 1; run < kPartialRuns; ++run) sum += runs[run][threadIdx.x];
  const std::int64_t channels = cols / taps;
  out[col % channels * taps + col / channels] += sum;
}
template <class C>
void add_partials(const void* partials, std::int64_t count, std::int64_t cols, std::int64_t taps, void* out,
                  const StreamHandle& stream) {
  launch_kernel("sum of partials", add_partials_kernel<C>, dim3(static_cast<unsigned>(ceil_div(cols, 32))), dim3(32, kPartialRuns),
                stream, static_cast<const C*>(partials), count, cols, taps, static_cast<C*>(out));
}

// Number of the document of token t.
__device__ __forceinline__ std::int64_t document_of(const Documents& documents, std::int64_t t) {
  std::int64_t low = 0, high = documents.count;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (documents.cu_seqlens[middle] <= t) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace deltron::kernels::cuda
