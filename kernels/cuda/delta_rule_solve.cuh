// Pieces that the prepare and gradient kernels of the tensor-core path share: the triangular solve, norms of rows, small loads.
#pragma once

#include "kernels/cuda/tensor_tiles.cuh"

namespace deltron::kernels::cuda {

inline constexpr int kMStride = kChunk + 4;  // of M in shared memory, floats: rows of 16-byte pieces

// Column `column` of T by forward substitution, x_i = e_i - sum over l < i of M_il x_l, given that it begins at row kFirst or later;
// `store(i, x_i)`.
template <int kFirst, class Store>
__device__ __forceinline__ void solve_column(const float* m, int column, const Store& store) {
  float x[kChunk - kFirst];
#pragma unroll
  for (int i = kFirst; i < kChunk; ++i) {
    float sum[2] = {i == column ? 1.0f : 0.0f, 0.0f};
#pragma unroll
    for (int l = kFirst; l < i; l += 4) {
      const float4 f = *reinterpret_cast<const float4*>(m + i * kMStride + l);
      sum[0] -= f.x * x[l - kFirst];
      if (l + 1 < i) sum[1] -= f.y * x[l + 1 - kFirst];
      if (l + 2 < i) sum[0] -= f.z * x[l + 2 - kFirst];
      if (l + 3 < i) sum[1] -= f.w * x[l + 3 - kFirst];
    }
    x[i - kFirst] = sum[0] + sum[1];
  }
#pragma unroll
  for (int i = kFirst; i < kChunk; ++i) store(i, x[i - kFirst]);
}

template <class Store>
__device__ __forceinline__ void solve_any_column(const float* m, int column, const Store& store) {
  if (column < kChunk / 2) {
    solve_column<0>(m, column, store);
  } else {
    solve_column<kChunk / 2>(m, column, store);
#pragma unroll 4
    for (int i = 0; i < kChunk / 2; ++i) store(i, 0.0f);
  }
}

// 1 / sqrt(sum x^2 + eps) of a row of K elements by one warp, or 1 where norms are not asked for.
template <int K, class T>
__device__ __forceinline__ void row_rstd(const RuleProblem& p, const T* row, float* to, int lane) {
  float sum = 0;
#pragma unroll
  for (int i = 2 * lane; i < K; i += 64) {
    const float2 x = load_pair(row + i);
    sum += x.x * x.x + x.y * x.y;
  }
  sum = warp_sum(sum);
  if (lane == 0) *to = p.use_qk_l2norm ? rsqrtf(sum + kQkNormEpsilon) : 1.0f;
}

template <class T>
__device__ __forceinline__ float4 load_quad(const T* from) {
  const uint2 bits = *reinterpret_cast<const uint2*>(from);
  const float2 low = unpack_pair<T>(bits.x), high = unpack_pair<T>(bits.y);
  return make_float4(low.x, low.y, high.x, high.y);
}

// Two neighbours of a tensor of 2- or 4-byte elements, converted only when used: loads of a loop stay in flight together.
struct RawPair {
  uint2 bits;
  __device__ void load(const void* data, bool wide, std::int64_t at) {
    if (wide) {
      bits = *reinterpret_cast<const uint2*>(static_cast<const float*>(data) + at);
    } else {
      bits = make_uint2(*reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint16_t*>(data) + at), 0);
    }
  }
  __device__ float2 value(DType dtype) const {
    if (dtype == DType::BF16) return unpack_pair<__nv_bfloat16>(bits.x);
    if (dtype == DType::F16) return unpack_pair<__half>(bits.x);
    return make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y));
  }
};
__device__ __forceinline__ void store_raw_pair(void* data, DType dtype, std::int64_t at, float x, float y) {
  if (dtype == DType::F32) {
    *reinterpret_cast<float2*>(static_cast<float*>(data) + at) = make_float2(x, y);
  } else {
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(data) + at) = dtype == DType::BF16 ? pack_pair<__nv_bfloat16>(x, y) : pack_pair<__half>(x, y);
  }
}

}  // namespace deltron::kernels::cuda
