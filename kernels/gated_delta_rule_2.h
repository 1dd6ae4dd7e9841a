// Gated delta rule 2: decay and erasure by key channel, writing by value channel; chunked (C = 64) forward and backward:
//   S <- Diag(e^g) S;  u = w o v - (b o k) S;  S <- S + k^T u;  o = scale q S          state S [K,V] in the compute type
// that is docs/gdn.md (12.1)-(12.3), computed as 12.3 and 12.4 there. Value head j reads key head j / (Hv/Hk) and gate head j /
// (Hv/Hg); the gate heads Hg are those of the keys or those of the values. b = w = beta by token gives Kimi Delta Attention (KDA).
#pragma once

#include "kernels/delta_rule.h"
#include "kernels/views.h"

namespace deltron::kernels {

// Raw gates: g = -exp(A_log) softplus(f + dt_bias), b = sigmoid(b_raw), doubled with allow_neg_eigval, w = sigmoid(w_raw): (12.8).
struct GatedDeltaRule2ForwardArgs {
  std::int64_t tokens = 0, key_heads = 0, value_heads = 0, gate_heads = 0, key_dim = 0, value_dim = 0;
  Documents documents;
  DType dtype = DType::F32;  // of q, k, v, o
  HeadView q, k;             // [tokens, Hk, K]
  HeadView v;                // [tokens, Hv, V]
  GateForm gate_form = GateForm::Activated;
  HeadView decay;  // g or f [tokens, Hg, K]
  DType decay_dtype = DType::F32;
  HeadView erase;  // b [tokens, Hg, K]
  DType erase_dtype = DType::F32;
  HeadView write;  // w [tokens, Hv, V]
  DType write_dtype = DType::F32;
  const void* A_log = nullptr;    // [Hg] of compute_dtype(dtype); Raw only
  const void* dt_bias = nullptr;  // [Hg*K] likewise
  bool allow_neg_eigval = false;  // Raw only: b = 2 sigmoid
  bool use_qk_l2norm = false;     // x / sqrt(sum x^2 + 1e-6) on q and k first, then scale on q
  double scale = 1;
  const void* initial_state = nullptr;  // [N,Hv,K,V] of compute_dtype(dtype); null: zero
  void* final_state = nullptr;          // likewise; null: not wanted. An empty document yields its initial state.
  MutableHeadView o;                    // [tokens, Hv, V]
  Workspace workspace;
};

// Needs nothing that forward kept: the inverse of a chunk is rebuilt in full precision, which costs less than mending a rounded
// one.
struct GatedDeltaRule2BackwardArgs {
  std::int64_t tokens = 0, key_heads = 0, value_heads = 0, gate_heads = 0, key_dim = 0, value_dim = 0;
  Documents documents;
  DType dtype = DType::F32;
  HeadView q, k, v;
  GateForm gate_form = GateForm::Activated;
  HeadView decay;
  DType decay_dtype = DType::F32;
  HeadView erase;
  DType erase_dtype = DType::F32;
  HeadView write;
  DType write_dtype = DType::F32;
  const void* A_log = nullptr;
  const void* dt_bias = nullptr;
  bool allow_neg_eigval = false;
  bool use_qk_l2norm = false;
  double scale = 1;
  const void* initial_state = nullptr;
  HeadView d_o;                         // [tokens, Hv, V] of dtype
  const void* d_final_state = nullptr;  // [N,Hv,K,V]; null: zero
  MutableHeadView dq, dk, dv;           // of dtype; dq, dk are with respect to the raw inputs, summed over the heads of a group
  MutableHeadView d_decay;              // [tokens, Hg, K] of d_gate_dtype: gradient of g, or of f (Raw)
  MutableHeadView d_erase;              // [tokens, Hg, K]: gradient of b, or of b_raw (Raw)
  MutableHeadView d_write;              // [tokens, Hv, V]: gradient of w, or of w_raw (Raw)
  DType d_gate_dtype = DType::F32;
  void* d_A_log = nullptr;          // [Hg] of compute_dtype(dtype), += (Raw)
  void* d_dt_bias = nullptr;        // [Hg*K] likewise
  void* d_initial_state = nullptr;  // [N,Hv,K,V]; null: not wanted
  Workspace workspace;
};

namespace cpu {
std::int64_t gated_delta_rule_2_forward_workspace_bytes(const GatedDeltaRule2ForwardArgs& args, const StreamHandle& stream);
void gated_delta_rule_2_forward(const GatedDeltaRule2ForwardArgs& args, const StreamHandle& stream);
std::int64_t gated_delta_rule_2_backward_workspace_bytes(const GatedDeltaRule2BackwardArgs& args, const StreamHandle& stream);
void gated_delta_rule_2_backward(const GatedDeltaRule2BackwardArgs& args, const StreamHandle& stream);
// Name of the kernel that serves these sizes, for reports ("cpu.chunked64x16.avx3").
const char* gated_delta_rule_2_kernel_name();
}  // namespace cpu

// On a GPU: the same arguments and the same saved tensors, all of them device memory (documents.host_cu_seqlens: host memory).
namespace cuda {
std::int64_t gated_delta_rule_2_forward_workspace_bytes(const GatedDeltaRule2ForwardArgs& args, const StreamHandle& stream);
void gated_delta_rule_2_forward(const GatedDeltaRule2ForwardArgs& args, const StreamHandle& stream);
std::int64_t gated_delta_rule_2_backward_workspace_bytes(const GatedDeltaRule2BackwardArgs& args, const StreamHandle& stream);
void gated_delta_rule_2_backward(const GatedDeltaRule2BackwardArgs& args, const StreamHandle& stream);
// Name of the kernel that serves these arguments ("cuda.chunked64.mma.bf16.k128.v128", "cuda.recurrent.fp32").
const char* gated_delta_rule_2_kernel_name(const GatedDeltaRule2ForwardArgs& args);
const char* gated_delta_rule_2_kernel_name(const GatedDeltaRule2BackwardArgs& args);
}  // namespace cuda

}  // namespace deltron::kernels
