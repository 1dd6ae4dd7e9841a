// Gated RMSNorm of the delta rule's output: y = round(rms_norm(x) * w) * silu(z), per value head, norm first, then gate
// (docs/gdn.md (8.1)-(8.3)). The norm is rounded to the storage type before the gate, as the reference layer does.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

struct GatedRmsNormForwardArgs {
  std::int64_t rows = 0, heads = 0, dim = 0;
  std::int64_t sequence_length = 0;  // rows of a sequence where views have a sequence stride; 0: all rows have one stride
  DType dtype = DType::F32;
  HeadView x, z;                 // [rows, heads, dim]; z is usually a strided view of the projection
  const void* weight = nullptr;  // [dim]
  DType weight_dtype = DType::F32;
  bool zero_centered = false;
  double epsilon = 1e-6;
  void* rstd = nullptr;  // [rows, heads] of compute_dtype(dtype)
  MutableHeadView y;
};

struct GatedRmsNormBackwardArgs {
  std::int64_t rows = 0, heads = 0, dim = 0;
  std::int64_t sequence_length = 0;
  DType dtype = DType::F32;
  HeadView x, z, dy;
  const void* weight = nullptr;
  DType weight_dtype = DType::F32;
  bool zero_centered = false;
  bool round_gated = false;  // G of (8.2) is rounded to the storage type, as a gradient between two separate operations would be
  const void* rstd = nullptr;
  MutableHeadView dx, dz;
  void* dweight = nullptr;  // [dim] of compute_dtype(dtype), +=
  Workspace workspace;
};

namespace cpu {
void gated_rms_norm_forward(const GatedRmsNormForwardArgs& args, const StreamHandle& stream);
std::int64_t gated_rms_norm_backward_workspace_bytes(const GatedRmsNormBackwardArgs& args, const StreamHandle& stream);
void gated_rms_norm_backward(const GatedRmsNormBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void gated_rms_norm_forward(const GatedRmsNormForwardArgs& args, const StreamHandle& stream);
std::int64_t gated_rms_norm_backward_workspace_bytes(const GatedRmsNormBackwardArgs& args, const StreamHandle& stream);
void gated_rms_norm_backward(const GatedRmsNormBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
