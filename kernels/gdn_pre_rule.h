// Everything between in_proj and the delta rule in one pass (docs/gdn.md section 13): causal convolution, SiLU and the L2 norm of q and
// k, and the gates. Rounding: the convolution's sum is rounded to the storage type, SiLU of that again, and only then comes the norm;
// log-decays stay in the compute type. Backward needs the inputs alone: it forms the convolution again.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

// What the kernels hold in registers and shared memory.
inline constexpr std::int64_t kPreRuleTaps = 16, kPreRuleTapsCuda = 4, kPreRuleHeadDimCuda = 256;

// What lies behind z in the projection's second storage, and so what the gates are.
enum class PreRuleGates : std::uint8_t {
  Heads,     // gdn:  beta | alpha [tokens, Hv] each -> beta, g by value head
  Channels,  // gdn2: f | b | w [tokens, Dq], [tokens, Dq], [tokens, Dv] -> g, b by key channel, w by value channel
};

struct GdnPreRuleForwardArgs {
  std::int64_t tokens = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, kernel = 4;
  PreRuleGates gates = PreRuleGates::Heads;
  Documents documents;
  DType dtype = DType::F32;           // of qkv, raw, prepared, strength, write
  MatrixView qkv;                     // [tokens, 2 Dq + Dv]
  MatrixView raw;                     // [tokens, 2 Hv] or [tokens, 2 Dq + Dv]
  const void* conv_weight = nullptr;  // [2 Dq + Dv, kernel]
  DType conv_weight_dtype = DType::F32;
  const void* A_log = nullptr;    // [Hv] or [Hk], of compute_dtype(dtype)
  const void* dt_bias = nullptr;  // [Hv] or [Dq], likewise
  bool allow_neg_eigval = false;  // beta, b in (0,2)
  double epsilon = 1e-6;
  MutableMatrixView prepared;  // [tokens, 2 Dq + Dv]: q | k | v; must not alias qkv
  void* decay = nullptr;       // g, of compute_dtype(dtype), contiguous: [tokens, Hv] or [tokens, Dq]
  void* strength = nullptr;    // beta or b, likewise, of dtype
  void* write = nullptr;       // Channels: w [tokens, Dv], of dtype
  Workspace workspace;
};

struct GdnPreRuleBackwardArgs {
  std::int64_t tokens = 0, key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, kernel = 4;
  PreRuleGates gates = PreRuleGates::Heads;
  Documents documents;
  DType dtype = DType::F32;
  MatrixView qkv, raw;
  const void* conv_weight = nullptr;
  DType conv_weight_dtype = DType::F32;
  const void* A_log = nullptr;
  const void* dt_bias = nullptr;
  bool allow_neg_eigval = false;
  double epsilon = 1e-6;
  MatrixView d_prepared;
  const void* d_decay = nullptr;     // as decay
  const void* d_strength = nullptr;  // as strength
  const void* d_write = nullptr;     // as write
  MutableMatrixView d_qkv;           // whole; must not alias d_prepared
  MutableMatrixView d_raw;           // whole
  void* d_conv_weight = nullptr;     // [2 Dq + Dv, kernel] of compute_dtype(dtype), +=; null: not wanted
  void* d_A_log = nullptr;           // likewise
  void* d_dt_bias = nullptr;
  Workspace workspace;
};

namespace cpu {
std::int64_t gdn_pre_rule_forward_workspace_bytes(const GdnPreRuleForwardArgs& args, const StreamHandle& stream);
void gdn_pre_rule_forward(const GdnPreRuleForwardArgs& args, const StreamHandle& stream);
std::int64_t gdn_pre_rule_backward_workspace_bytes(const GdnPreRuleBackwardArgs& args, const StreamHandle& stream);
void gdn_pre_rule_backward(const GdnPreRuleBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
std::int64_t gdn_pre_rule_forward_workspace_bytes(const GdnPreRuleForwardArgs& args, const StreamHandle& stream);
void gdn_pre_rule_forward(const GdnPreRuleForwardArgs& args, const StreamHandle& stream);
std::int64_t gdn_pre_rule_backward_workspace_bytes(const GdnPreRuleBackwardArgs& args, const StreamHandle& stream);
void gdn_pre_rule_backward(const GdnPreRuleBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
