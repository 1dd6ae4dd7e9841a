// RMSNorm (Zhang & Sennrich 2019): y = x * rstd * w, rstd = 1/sqrt(mean(x^2)+eps); zero-centred weights multiply by (1+w).
// Statistics and the product are formed in the compute type and rounded once. Rows are [rows, cols] or heads of rows.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

struct RmsNormForwardArgs {
  std::int64_t rows = 0, heads = 1, cols = 0;  // normalises over cols for every (row, head)
  DType dtype = DType::F32;                    // of x and y
  HeadView x;                                  // [rows, heads, cols], packed (sequence_stride 0, one document)
  const void* weight = nullptr;                // [cols]
  DType weight_dtype = DType::F32;
  bool zero_centered = false;
  double epsilon = 1e-6;
  bool use_given_rstd = false;  // apply again with saved statistics (same bits as the first time)
  void* rstd = nullptr;         // [rows, heads] of compute_dtype(dtype): output, or input if use_given_rstd
  MutableHeadView y;            // may alias x
};

struct RmsNormBackwardArgs {
  std::int64_t rows = 0, heads = 1, cols = 0;
  DType dtype = DType::F32;
  HeadView x, dy;
  const void* weight = nullptr;
  DType weight_dtype = DType::F32;
  bool zero_centered = false;
  const void* rstd = nullptr;            // [rows, heads]
  MutableHeadView dx;                    // may alias dy
  void* dweight = nullptr;               // [cols] of compute_dtype(dtype), +=; null: not wanted
  Workspace workspace;
};

namespace cpu {
void rms_norm_forward(const RmsNormForwardArgs& args, const StreamHandle& stream);
std::int64_t rms_norm_backward_workspace_bytes(const RmsNormBackwardArgs& args, const StreamHandle& stream);
void rms_norm_backward(const RmsNormBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void rms_norm_forward(const RmsNormForwardArgs& args, const StreamHandle& stream);
std::int64_t rms_norm_backward_workspace_bytes(const RmsNormBackwardArgs& args, const StreamHandle& stream);
void rms_norm_backward(const RmsNormBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
