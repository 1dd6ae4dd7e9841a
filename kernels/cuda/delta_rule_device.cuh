// What all CUDA kernels of the delta rules share: the problem as plain data, the chunk table, element conversion, gates, launches.
// Both rules are one here: the first is the second with gates that are the same in every channel (`scalar_gates`). Knows no kernel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/delta_rule.h"
#include "kernels/views.h"
#include "src/base/check.h"

namespace deltron::kernels::cuda {

inline constexpr int kChunk = static_cast<int>(kDeltaRuleChunk);
inline constexpr float kQkNormEpsilon = 1e-6f;
inline constexpr float kLogDecayFloor = -1000;  // e^-1000 is zero; a finite floor makes g = -inf a reset instead of a NaN

struct RuleProblem {
  std::int64_t tokens = 0;
  int key_heads = 0, gate_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  Documents documents;
  DType dtype = DType::F32;
  HeadView q, k, v;
  bool scalar_gates = false;  // decay, erase and write have one channel; gate heads are the value heads; erase and write are beta
  bool raw = false, allow_neg_eigval = false, use_qk_l2norm = false;
  float scale = 1;
  HeadView decay, erase, write;
  DType decay_dtype = DType::F32, erase_dtype = DType::F32, write_dtype = DType::F32;
  const float* A_log = nullptr;    // [Hg]
  const float* dt_bias = nullptr;  // [Hg * gate_channels]
  const float* initial_state = nullptr;

  __host__ __device__ int gate_channels() const { return scalar_gates ? 1 : key_dim; }
  __host__ __device__ int key_group() const { return value_heads / key_heads; }
  __host__ __device__ int gate_group() const { return value_heads / gate_heads; }
};

// A chunk never crosses a document; every document starts its own grid.
struct Chunk {
  std::int64_t document;
  int begin;   // first token, counted from the document's start
  int tokens;  // 1..64
};
struct ChunkTable {
  const std::int64_t* document_chunk = nullptr;  // [N+1] first chunk of a document
  const Chunk* chunks = nullptr;
  std::int64_t count = 0;
};

template <class View>
__device__ __forceinline__ std::int64_t view_offset(const View& view, const Documents& documents, std::int64_t document,
                                                    std::int64_t token, std::int64_t head) {
  const std::int64_t base =
      view.sequence_stride == 0 ? documents.cu_seqlens[document] * view.token_stride : document * view.sequence_stride;
  return base + token * view.token_stride + head * view.head_stride;
}

__device__ __forceinline__ float load_element(const void* data, DType dtype, std::int64_t at) {
  if (dtype == DType::BF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
  if (dtype == DType::F16) return __half2float(static_cast<const __half*>(data)[at]);
  return static_cast<const float*>(data)[at];
}
__device__ __forceinline__ void store_element(void* data, DType dtype, std::int64_t at, float value) {
  if (dtype == DType::BF16) {
    static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16(value);
  } else if (dtype == DType::F16) {
    static_cast<__half*>(data)[at] = __float2half(value);
  } else {
    static_cast<float*>(data)[at] = value;
  }
}

__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}
__device__ __forceinline__ float softplus(float x) { return x > 20 ? x : fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// g as the rule uses it, from its storage value; docs/gdn.md (3.1), (12.8). `channel` counts within the gate head.
__device__ __forceinline__ float activated_decay(const RuleProblem& p, float x, int gate_head, int channel) {
  if (p.raw) x = -expf(p.A_log[gate_head]) * softplus(x + p.dt_bias[gate_head * p.gate_channels() + channel]);
  return fmaxf(x, kLogDecayFloor);
}
__device__ __forceinline__ float activated_erase(const RuleProblem& p, float x) {
  return p.raw ? (p.allow_neg_eigval ? 2.0f : 1.0f) * sigmoid(x) : x;
}
__device__ __forceinline__ float activated_write(const RuleProblem& p, float x) {
  return p.scalar_gates ? activated_erase(p, x) : p.raw ? sigmoid(x) : x;
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

#ifdef __CUDACC__
#define DELTRON_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
#else
#define DELTRON_DYNAMIC_SHARED(name) char* name = emulation::dynamic_shared()
#endif

inline void check_cuda(cudaError_t status, const char* what) {
  DELTRON_CHECK(status == cudaSuccess, what, ": ", cudaGetErrorString(status));
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), std::int64_t blocks, int threads, std::size_t shared_bytes,
            cudaStream_t stream, const Arguments&... arguments) {
  if (blocks == 0) return;
  DELTRON_CHECK_LE(blocks, std::int64_t{0x7fffffff}, name, ": too many blocks");
#ifdef __CUDACC__
  if (shared_bytes > 48 * 1024) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)), name);
  }
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes, stream>>>(arguments...);
  check_cuda(cudaGetLastError(), name);
#else
  (void)stream, (void)name;
  emulation::run(static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared_bytes, [&] { kernel(arguments...); });
#endif
}

}  // namespace deltron::kernels::cuda
