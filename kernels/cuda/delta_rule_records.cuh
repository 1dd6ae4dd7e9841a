// What the prepare kernels of the tensor-core path leave for scans and gradients, per (chunk, gate head). Rows past the last token
// are zero in every tile (a one on the diagonal of T).
//   first rule:  operands are the rows of q and k as given; all factors of a row are in `factors`.
//   second rule: operands are tiles Cs = b k e^G, Qs = s q e^G, Ke = k e^(G_last - G) in workspace, with no further factors.
// Both: R = w v - a (k S); U = T R; O = b (q S) + P U; S' = whole S + k^T (c U).
#pragma once

#include "kernels/cuda/delta_rule_launch.h"
#include "kernels/cuda/tensor_tiles.cuh"

namespace deltron::kernels::cuda {

// Rows of 64 floats of the first rule's record.
enum Factor : int {
  kReadKey,    // a = beta e^gamma r_k
  kReadQuery,  // b = s e^gamma r_q
  kWriteKey,   // c = e^(gamma_last - gamma) r_k
  kBeta,       //
  kWhole,      // e^gamma_last, in every place
  kDecayKey,   // e^gamma r_k
  kScanFactors,
  kGammaHigh = kScanFactors,
  kGammaLow,
  kQueryRstd,
  kKeyRstd,
  kFactors,
};

struct TensorPieces {
  void* t;             // [chunks, Hg, 64, 64]
  void* p;             // [chunks, Hg, 64, 64], with the scale
  float* factors;      // [chunks, Hv, kFactors, 64], first rule
  void* erased_start;  // Cs [chunks, Hg, 64, K], second rule
  void* query_start;   // Qs
  void* key_end;       // Ke
  float* whole;        // [chunks, Hg, K], second rule
  float* decay;        // e^g [chunks, Hg, 64, K], second rule; one in rows past the last token
  void* erase;         // b likewise; zero in those rows
  // Backward only.
  void* states;      // S at the start of chunks [chunks, Hv, K, V]
  void* d_states;    // gradient of the state at the end of chunks
  void* t_rest;      // T - its rounding, like t: with equal keys and beta near 2 the rounding alone would cost dg 3 %
  void* u;           // [chunks, Hv, 64, V]
  void* y;           // v - e^gamma k S, likewise; first rule
  void* z;           // likewise
  float *d_q, *d_k;  // [T, Hk, K] sums over gate heads, second rule with several of them a key head
};
TensorPieces carve_tensor(DeltaRuleCarver& carver, const RuleProblem& p, std::int64_t chunks, bool backward);

void prepare_scalar(const RuleProblem& p, void* t_inverse, const ChunkTable& table, const TensorPieces& pieces,
                    cudaStream_t stream);
void prepare_channel(const RuleProblem& p, const ChunkTable& table, const TensorPieces& pieces, cudaStream_t stream);
// Forward: o and the final state; or, without o, the states and U that backward needs.
void scan_forward(const RuleProblem& p, const RuleOutputs& out, const ChunkTable& table, const TensorPieces& pieces, bool keep,
                  cudaStream_t stream);
void scan_backward(const RuleProblem& p, const RuleGradients& out, const ChunkTable& table, const TensorPieces& pieces,
                   cudaStream_t stream);
void gradients_scalar(const RuleProblem& p, const RuleGradients& out, const ChunkTable& table, const TensorPieces& pieces,
                      const GatePieces& gates, cudaStream_t stream);
void gradients_channel(const RuleProblem& p, const RuleGradients& out, const ChunkTable& table, const TensorPieces& pieces,
                       const GatePieces& gates, cudaStream_t stream);

// Calls function(T{}, integral_constant<K>{}, integral_constant<V>{}) for the problem's types and dims.
template <class F>
void with_tensor_types(const RuleProblem& p, const F& function) {
  const auto dims = [&](auto type) {
    const auto value = [&](auto key) {
      if (p.value_dim == 64) {
        function(type, key, std::integral_constant<int, 64>{});
      } else {
        function(type, key, std::integral_constant<int, 128>{});
      }
    };
    if (p.key_dim == 64) {
      value(std::integral_constant<int, 64>{});
    } else {
      value(std::integral_constant<int, 128>{});
    }
  };
  if (p.dtype == DType::BF16) {
    dims(__nv_bfloat16{});
  } else {
    dims(__half{});
  }
}

}  // namespace deltron::kernels::cuda
