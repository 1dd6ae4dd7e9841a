// Runs CUDA kernels on the CPU, one fiber a thread, so that index arithmetic and barriers of a .cu file can be tested where there
// is no GPU: `g++ -x c++ -include emulation.h`. Blocks run one after the other. Copies of cp.async land only at their wait; warp
// collectives and barriers really wait. Not for speed, not for memory-ordering faults.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <math.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __noinline__
#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)

namespace emulation {
struct Dim {
  unsigned x = 0, y = 0, z = 0;
};
void block_barrier();
void warp_barrier();
// Gives `bytes` of this lane and returns the 32 lanes' values, 64 bytes apart; valid until the next warp_barrier.
const char* exchange(const void* mine, std::size_t bytes);
void run(unsigned blocks, unsigned threads, std::size_t shared_bytes, const std::function<void()>& body);
void run_grid(dim3 grid, dim3 block, const std::function<void()>& body);  // two dimensions each
char* dynamic_shared();
void async_copy(void* to, const void* from, unsigned valid_bytes);
void async_commit();
void async_wait(unsigned pending);
}  // namespace emulation

extern emulation::Dim threadIdx, blockIdx, blockDim, gridDim;

inline void __syncthreads() { emulation::block_barrier(); }
inline void __syncwarp() { emulation::warp_barrier(); }
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  T other;
  std::memcpy(&other, emulation::exchange(&value, sizeof(T)) + ((threadIdx.x & 31) ^ static_cast<unsigned>(mask)) * 64, sizeof(T));
  emulation::warp_barrier();
  return other;
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  T other;
  std::memcpy(&other, emulation::exchange(&value, sizeof(T)) + (lane & 31) * 64, sizeof(T));
  emulation::warp_barrier();
  return other;
}
template <class T>
T __shfl_up_sync(unsigned, T value, int delta) {
  T other;
  const int from = static_cast<int>(threadIdx.x & 31) - delta;
  std::memcpy(&other, emulation::exchange(&value, sizeof(T)) + (from < 0 ? static_cast<int>(threadIdx.x & 31) : from) * 64,
              sizeof(T));
  emulation::warp_barrier();
  return other;
}
template <class T>
T __shfl_down_sync(unsigned, T value, int delta) {
  T other;
  const int from = static_cast<int>(threadIdx.x & 31) + delta;
  std::memcpy(&other, emulation::exchange(&value, sizeof(T)) + (from > 31 ? static_cast<int>(threadIdx.x & 31) : from) * 64,
              sizeof(T));
  emulation::warp_barrier();
  return other;
}
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
