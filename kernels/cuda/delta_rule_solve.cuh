// Pieces that the prepare and gradient kernels of the tensor-core path share: the triangular solve, norms of rows, small loads.
#pragma once

#include "kernels/cuda/tensor_tiles.cuh"

namespace deltron::kernels::cuda {

inline constexpr int kMStride = kChunk + 4;  // of M in shared memory, floats: rows of 16-byte pieces

// T = (I + M)^-1 in place of M, which is strictly lower triangular: blocks of 16 by forward substitution, a thread per column, then
// twice two neighbours become one, [A 0; M B] -> [A 0; -B M A, B], all in fp32. Substitution where series would not be stable, and
// no long chain for one warp. `kMatrices` of them side by side, each 64 rows of kMStride floats, `scratch` 32 rows each; all
// threads of the block take part; barriers before and after are the caller's.
inline constexpr int kScratchStride = 36;

template <int kSize, int kMatrices, int kThreads>
__device__ __forceinline__ void merge_inverses(float* m, float* scratch, int thread) {
  constexpr int kPairs = kChunk / 2 / kSize, kTiles = kSize * kSize / 8;  // tiles of 2 x 4
#pragma unroll 1
  for (int step = 0; step < 2; ++step) {
    for (int item = thread; item < kMatrices * kPairs * kTiles; item += kThreads) {
      const int which = item / (kPairs * kTiles), pair = item / kTiles % kPairs, tile = item % kTiles;
      const int r = tile / (kSize / 4) * 2, c = tile % (kSize / 4) * 4, top = 2 * pair * kSize;
      float* const square = m + which * kChunk * kMStride;
      float* const w = scratch + (which * kPairs + pair) * kSize * kScratchStride;
      // step 0: w = M A, k from c on; step 1: M = -B w, k up to r + 1.
      const float* left = square + (top + kSize + r) * kMStride + top + (step == 0 ? 0 : kSize);
      const float* right = step == 0 ? square + top * kMStride + top + c : w + c;
      const int stride = step == 0 ? kMStride : kScratchStride, begin = step == 0 ? c : 0, end = step == 0 ? kSize : r + 2;
      float4 sum[2] = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
#pragma unroll 4
      for (int k = begin; k < end; ++k) {
        const float4 y = *reinterpret_cast<const float4*>(right + k * stride);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = left[i * kMStride + k];
          sum[i].x += x * y.x, sum[i].y += x * y.y, sum[i].z += x * y.z, sum[i].w += x * y.w;
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (step == 0) {
          *reinterpret_cast<float4*>(w + (r + i) * kScratchStride + c) = sum[i];
        } else {
          *reinterpret_cast<float4*>(square + (top + kSize + r + i) * kMStride + top + c) =
              make_float4(-sum[i].x, -sum[i].y, -sum[i].z, -sum[i].w);
        }
      }
    }
    __syncthreads();
  }
}

template <int kMatrices, int kThreads>
__device__ __forceinline__ void invert_unit_lower(float* m, float* scratch, int thread) {
  static_assert(kThreads >= kMatrices * kChunk);
  const int column = thread % 16;
  float* const square = m + (thread / kChunk) * kChunk * kMStride + thread % kChunk / 16 * 16 * (kMStride + 1);
  float x[16];
  if (thread < kMatrices * kChunk) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float sum = i == column ? 1.0f : 0.0f;
#pragma unroll
      for (int l = 0; l < i; ++l) sum -= square[i * kMStride + l] * x[l];
      x[i] = sum;
    }
  }
  __syncthreads();
  if (thread < kMatrices * kChunk) {
#pragma unroll
    for (int i = 0; i < 16; ++i) square[i * kMStride + column] = x[i];
  }
  __syncthreads();
  merge_inverses<16, kMatrices, kThreads>(m, scratch, thread);
  merge_inverses<32, kMatrices, kThreads>(m, scratch, thread);
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
    *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(data) + at) =
        dtype == DType::BF16 ? pack_pair<__nv_bfloat16>(x, y) : pack_pair<__half>(x, y);
  }
}

}  // namespace deltron::kernels::cuda
