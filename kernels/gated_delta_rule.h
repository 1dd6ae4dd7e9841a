// The gated delta rule (Yang, Kautz, Hatamizadeh 2024), chunked (C = 64) forward and backward over packed documents:
//   S <- e^g S;  u = beta (v - k S);  S <- S + k^T u;  o = scale q S          state S [K,V] in the compute type
// that is docs/gdn.md (2.1)-(2.4), computed as sections 5 to 7 there. Value head j reads key head j / (Hv/Hk).
#pragma once

#include "kernels/delta_rule.h"
#include "kernels/views.h"

namespace deltron::kernels {

// Raw gates: g = -exp(A_log) softplus(alpha + dt_bias), beta = sigmoid(beta_raw), doubled with allow_neg_eigval: (3.1), (3.2).
struct GatedDeltaRuleForwardArgs {
  std::int64_t tokens = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  Documents documents;
  DType dtype = DType::F32;  // of q, k, v, o, t_inverse
  HeadView q, k;             // [tokens, Hk, K]
  HeadView v;                // [tokens, Hv, V]
  GateForm gate_form = GateForm::Activated;
  HeadView decay;  // g or alpha [tokens, Hv] (head_stride between heads)
  DType decay_dtype = DType::F32;
  HeadView beta;  // [tokens, Hv]
  DType beta_dtype = DType::F32;
  const void* A_log = nullptr;    // [Hv] of compute_dtype(dtype); Raw only
  const void* dt_bias = nullptr;  // [Hv] likewise
  bool allow_neg_eigval = false;  // Raw only: beta = 2 sigmoid
  bool use_qk_l2norm = false;     // x / sqrt(sum x^2 + 1e-6) on q and k first, then scale on q
  double scale = 1;
  const void* initial_state = nullptr;  // [N,Hv,K,V] of compute_dtype(dtype); null: zero
  void* final_state = nullptr;          // likewise; null: not wanted. An empty document yields its initial state.
  MutableHeadView o;                    // [tokens, Hv, V]
  void* t_inverse = nullptr;            // [tokens, Hv, 64] of dtype: row t of T (5.4) of its chunk, for backward; null outside training
  Workspace workspace;
};

struct GatedDeltaRuleBackwardArgs {
  std::int64_t tokens = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  Documents documents;
  DType dtype = DType::F32;
  HeadView q, k, v;
  GateForm gate_form = GateForm::Activated;
  HeadView decay;
  DType decay_dtype = DType::F32;
  HeadView beta;
  DType beta_dtype = DType::F32;
  const void* A_log = nullptr;
  const void* dt_bias = nullptr;
  bool allow_neg_eigval = false;
  bool use_qk_l2norm = false;
  double scale = 1;
  const void* initial_state = nullptr;
  const void* t_inverse = nullptr;
  HeadView d_o;                          // [tokens, Hv, V] of dtype
  const void* d_final_state = nullptr;   // [N,Hv,K,V]; null: zero
  MutableHeadView dq, dk, dv;            // of dtype; dq, dk are with respect to the raw inputs, summed over the heads of a group
  MutableHeadView d_decay;               // of d_gate_dtype: gradient of g, or of alpha (Raw)
  MutableHeadView d_beta;                // gradient of beta, or of beta_raw (Raw)
  DType d_gate_dtype = DType::F32;
  void* d_A_log = nullptr;               // [Hv] of compute_dtype(dtype), += (Raw)
  void* d_dt_bias = nullptr;             // likewise
  void* d_initial_state = nullptr;       // [N,Hv,K,V]; null: not wanted
  Workspace workspace;
};

namespace cpu {
std::int64_t gated_delta_rule_forward_workspace_bytes(const GatedDeltaRuleForwardArgs& args, const StreamHandle& stream);
void gated_delta_rule_forward(const GatedDeltaRuleForwardArgs& args, const StreamHandle& stream);
std::int64_t gated_delta_rule_backward_workspace_bytes(const GatedDeltaRuleBackwardArgs& args, const StreamHandle& stream);
void gated_delta_rule_backward(const GatedDeltaRuleBackwardArgs& args, const StreamHandle& stream);
// Name of the kernel that serves these sizes, for reports ("cpu.chunked64.avx3").
const char* gated_delta_rule_kernel_name();
}  // namespace cpu

// On a GPU: the same arguments and the same saved tensors, all of them device memory (documents.host_cu_seqlens: host memory).
// Backward rebuilds what it needs and does not read t_inverse.
namespace cuda {
std::int64_t gated_delta_rule_forward_workspace_bytes(const GatedDeltaRuleForwardArgs& args, const StreamHandle& stream);
void gated_delta_rule_forward(const GatedDeltaRuleForwardArgs& args, const StreamHandle& stream);
std::int64_t gated_delta_rule_backward_workspace_bytes(const GatedDeltaRuleBackwardArgs& args, const StreamHandle& stream);
void gated_delta_rule_backward(const GatedDeltaRuleBackwardArgs& args, const StreamHandle& stream);
// Name of the kernel that serves these arguments ("cuda.chunked64.mma.bf16.k128.v128", "cuda.recurrent.fp32").
const char* gated_delta_rule_kernel_name(const GatedDeltaRuleForwardArgs& args);
const char* gated_delta_rule_kernel_name(const GatedDeltaRuleBackwardArgs& args);
}  // namespace cuda

}  // namespace deltron::kernels
