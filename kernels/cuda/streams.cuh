// What kernels bound by memory share on cuda: copies into shared memory that a thread waits for itself, and activations, rounding
// and stores that cost a few instructions a value. Knows no family.
#pragma once

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {

// Copies of 16 bytes that run while the thread computes. A thread waits for its own copies alone and reads what it copied itself,
// so no barrier is needed.
__device__ __forceinline__ void copy_async(void* shared, const void* from) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))), "l"(from)
               : "memory");
#else
  emulation::async_copy(shared, from, 16);
#endif
}
__device__ __forceinline__ void commit_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulation::async_commit();
#endif
}
// Waits until at most kPending of the groups committed last are under way.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  emulation::async_wait(kPending);
#endif
}

// sigmoid(x) for values kept in S: beside 16-bit storage from the approximate instructions (relative error about 5e-7, far below
// what storing loses), otherwise exact to the compute type.
template <class S, class C>
__device__ __forceinline__ C sigmoid_for(C x) {
#ifdef __CUDACC__
  if constexpr (sizeof(S) == 2) {
    float e, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504088896340736f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return s;
  }
#endif
  return sigmoid(x);
}

template <class C, int N, class S>
__device__ __forceinline__ void unpack(const Pack<S, N>& pack, C (&to)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = static_cast<C>(widen(pack.value[i]));
}
// 0xffff over each half that is a NaN.
__device__ __forceinline__ unsigned nan_mask(__nv_bfloat162 two) {
#ifdef __CUDACC__
  return __hneu2_mask(two, two);
#else
  const float low = __low2float(two), high = __high2float(two);
  return (low != low ? 0xffffu : 0u) | (high != high ? 0xffff0000u : 0u);
#endif
}
// As narrow, two values at a time where the storage allows it.
template <class S, class C, int N>
__device__ __forceinline__ Pack<S, N> pack(const C (&from)[N]) {
  Pack<S, N> to;
  if constexpr (std::is_same_v<S, bf16> && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(from[i], from[i + 1]);
      // The instruction's NaN is 0x7fff, ours 0x7fc0.
      const unsigned bits = *reinterpret_cast<const unsigned*>(&two) & ~(nan_mask(two) & 0x003f003fu);
      *reinterpret_cast<unsigned*>(&to.value[i]) = bits;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to.value[i] = narrow<S>(from[i]);
  }
  return to;
}
template <class S, int N>
__device__ __forceinline__ Pack<S, N> read_pack(const S* from) {
  return *reinterpret_cast<const Pack<S, N>*>(from);
}
template <class S, class C, int N>
__device__ __forceinline__ void write_pack(const C (&from)[N], S* to) {
  *reinterpret_cast<Pack<S, N>*>(to) = pack<S>(from);
}
// Values at `at` of a pack.
template <class S, class C, int N, int M>
__device__ __forceinline__ void put(Pack<S, N>& to, int at, const C (&values)[M]) {
  const Pack<S, M> part = pack<S>(values);
#pragma unroll
  for (int j = 0; j < M; ++j) to.value[at + j] = part.value[j];
}
// What the values become when they are stored as S and loaded again.
template <class S, class C, int N>
__device__ __forceinline__ void round_values(C (&values)[N]) {
  if constexpr (!std::is_same_v<S, C>) unpack(pack<S>(values), values);
}

}  // namespace deltron::kernels::cuda
