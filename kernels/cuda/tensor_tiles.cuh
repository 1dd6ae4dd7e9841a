// Warp-level matrix products on tensor cores (mma.sync m16n8k16, fp32 accumulators) over tiles in shared memory, and asynchronous
// copies into them. Rows of tiles are padded by 16 bytes, which makes ldmatrix free of bank conflicts. Knows no rule.
//
// Accumulators of a warp: float c[rows/16][columns/8][4]; lane l holds rows l/4 (c[0], c[1]) and l/4 + 8 (c[2], c[3]) of a 16x8
// piece, columns 2 (l%4) and the next.
#pragma once

#include <type_traits>

#include "kernels/cuda/delta_rule_device.cuh"

namespace deltron::kernels::cuda {

inline constexpr int kTilePad = 8;  // elements of 2 bytes

template <class T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ __forceinline__ T narrow(float x) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}
template <class T>
__device__ __forceinline__ float2 unpack_pair(std::uint32_t bits) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
  } else {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
  }
}
template <class T>
__device__ __forceinline__ void store_pair(T* to, float low, float high) {
  *reinterpret_cast<std::uint32_t*>(to) = pack_pair<T>(low, high);
}
template <class T>
__device__ __forceinline__ float2 load_pair(const T* from) {
  return unpack_pair<T>(*reinterpret_cast<const std::uint32_t*>(from));
}

#ifdef __CUDACC__
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], const void* row) {
  const std::uint32_t at = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  const std::uint32_t at = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
// 16 bytes into shared memory; `valid` false: zeros.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  const std::uint32_t at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
#else
inline void load_matrices(std::uint32_t (&r)[4], const void* row) {
  const char* rows = emulation::exchange(&row, sizeof(row));
  const int lane = static_cast<int>(threadIdx.x & 31);
  for (int i = 0; i < 4; ++i) {
    const char* from;
    std::memcpy(&from, rows + (i * 8 + lane / 4) * 64, sizeof(from));
    std::memcpy(&r[i], from + lane % 4 * 4, 4);
  }
  emulation::warp_barrier();
}
inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  const char* rows = emulation::exchange(&row, sizeof(row));
  const int lane = static_cast<int>(threadIdx.x & 31);
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      const char* from;
      std::memcpy(&from, rows + (i * 8 + lane % 4 * 2 + half) * 64, sizeof(from));
      std::memcpy(reinterpret_cast<char*>(&r[i]) + 2 * half, from + lane / 4 * 2, 2);
    }
  }
  emulation::warp_barrier();
}
template <class T>
inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const std::uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const char* all = emulation::exchange(mine, sizeof(mine));
  const int lane = static_cast<int>(threadIdx.x & 31);
  const auto word = [&](int l, int index) {
    std::uint32_t bits;
    std::memcpy(&bits, all + l * 64 + index * 4, 4);
    return unpack_pair<T>(bits);
  };
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < 16; k += 2) {
      const float2 x = word(row % 8 * 4 + k % 8 / 2, k / 8 * 2 + row / 8), y = word(column * 4 + k % 8 / 2, 4 + k / 8);
      c[e] += x.x * y.x + x.y * y.y;
    }
  }
  emulation::warp_barrier();
}
inline void copy_async(void* to, const void* from, bool valid) { emulation::async_copy(to, from, valid ? 16 : 0); }
inline void commit_copies() { emulation::async_commit(); }
template <int kPending>
inline void wait_copies() {
  emulation::async_wait(kPending);
}
#endif

// A operand, 16x16 at (row, k): tile stored [row][k], or transposed [k][row].
template <bool kTransposed, class T>
__device__ __forceinline__ void load_a(std::uint32_t (&a)[4], const T* tile, int stride, int row, int k, int lane) {
  if constexpr (kTransposed) {
    load_matrices_transposed(a, tile + (k + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8);
  } else {
    load_matrices(a, tile + (row + lane % 16) * stride + k + lane / 16 * 8);
  }
}
// B operand, 16 x 16 columns at (k, column): tile stored [k][column], or transposed [column][k]. b[0], b[1]: the first 8 columns.
template <bool kTransposed, class T>
__device__ __forceinline__ void load_b(std::uint32_t (&b)[4], const T* tile, int stride, int k, int column, int lane) {
  if constexpr (kTransposed) {
    load_matrices(b, tile + (column + lane / 16 * 8 + lane % 8) * stride + k + lane / 8 % 2 * 8);
  } else {
    load_matrices_transposed(b, tile + (k + lane / 8 % 2 * 8 + lane % 8) * stride + column + lane / 16 * 8);
  }
}

// c += A B for 16 rows from `row`, 16 * kPairs columns from `column`, k in [begin, end).
template <bool kTransposedA, bool kTransposedB, int kPairs, class T>
__device__ __forceinline__ void warp_product(float (&c)[2 * kPairs][4], const T* a_tile, int a_stride, int row, const T* b_tile,
                                             int b_stride, int column, int begin, int end, int lane) {
#pragma unroll 4
  for (int k = begin; k < end; k += 16) {
    std::uint32_t a[4];
    load_a<kTransposedA>(a, a_tile, a_stride, row, k, lane);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      std::uint32_t b[4];
      load_b<kTransposedB>(b, b_tile, b_stride, k, column + 16 * pair, lane);
      multiply_add<T>(c[2 * pair], a, b[0], b[1]);
      multiply_add<T>(c[2 * pair + 1], a, b[2], b[3]);
    }
  }
}

// Rows [0, 64) of kColumns elements into a padded tile: row r from `from + r * stride`, zeros from row `valid` on.
template <int kColumns, int kThreads, class T>
__device__ __forceinline__ void copy_rows(T* tile, const T* from, std::int64_t stride, int rows, int valid, int thread) {
  constexpr int kPieces = kColumns / 8;
  for (int i = thread; i < rows * kPieces; i += kThreads) {
    const int r = i / kPieces, piece = i % kPieces;
    const bool there = r < valid;
    copy_async(tile + r * (kColumns + kTilePad) + piece * 8, there ? from + r * stride + piece * 8 : from, there);
  }
}
// 64 rows of kColumns floats into rows of `stride` floats.
template <int kColumns, int kThreads>
__device__ __forceinline__ void copy_float_rows(float* tile, int stride, const float* from, int thread) {
  constexpr int kPieces = kColumns / 4;
  for (int i = thread; i < kChunk * kPieces; i += kThreads) {
    copy_async(tile + i / kPieces * stride + i % kPieces * 4, from + i * 4, true);
  }
}
// `bytes` (a multiple of 16) as they are.
template <int kThreads>
__device__ __forceinline__ void copy_flat(void* to, const void* from, int bytes, int thread) {
  for (int i = thread * 16; i < bytes; i += kThreads * 16) {
    copy_async(static_cast<char*>(to) + i, static_cast<const char*>(from) + i, true);
  }
}

}  // namespace deltron::kernels::cuda
