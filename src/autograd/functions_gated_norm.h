// The gated RMSNorm behind the delta rules (docs/gdn.md (8.1) and section 13), per head: y = rms_norm(x; weight) * silu(gate). Every forward
// call, a replay included, checks its inputs from their metadata alone and refuses what it cannot do (ErrorCode::InvalidOpInput).
#pragma once

#include "src/autograd/functions_linear.h"

namespace deltron {

// gate [T,H,V] or [B,S,H,V] of any strides but the last; x of the gate's shape, likewise, or its heads side by side as [T, H*V].
// The output is contiguous, of x's shape. Saves x, gate, weight [V] and rstd.
Tensor gated_rms_norm(Context& ctx, const Tensor& x, const Tensor& gate, const Tensor& weight, const NormOptions& norm, const char* name);

// The fused form (gdn_gated_output_norm_fusion): the same forward; in backward the gated gradient is rounded to the storage type first.
Tensor gdn_gated_output_norm(Context& ctx, const Tensor& x, const Tensor& gate, const Tensor& weight, const NormOptions& norm,
                             const char* name);

// A contiguous copy of gate [T,H,V], which the unfused output norm reads.
Tensor gate_copy(Context& ctx, const Tensor& gate, const char* name);

}  // namespace deltron
