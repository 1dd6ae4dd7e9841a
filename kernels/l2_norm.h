// L2 norm of heads: y = x * rstd, rstd = 1/sqrt(sum x^2 + eps), eps inside the root (docs/gdn.md (4.3), (4.4)). Zero rows stay
// finite both ways.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

struct L2NormForwardArgs {
  std::int64_t rows = 0, heads = 0, dim = 0;
  DType dtype = DType::F32;
  double epsilon = 1e-6;
  HeadView x;            // [rows, heads, dim]
  MutableHeadView y;     // may alias x
  void* rstd = nullptr;  // [rows, heads] of compute_dtype(dtype)
};

// From the normalised output: dx = rstd (dy - y (y.dy)).
struct L2NormBackwardArgs {
  std::int64_t rows = 0, heads = 0, dim = 0;
  DType dtype = DType::F32;
  HeadView y, dy;
  const void* rstd = nullptr;
  MutableHeadView dx;  // may alias dy
};

namespace cpu {
void l2_norm_forward(const L2NormForwardArgs& args, const StreamHandle& stream);
void l2_norm_backward(const L2NormBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void l2_norm_forward(const L2NormForwardArgs& args, const StreamHandle& stream);
void l2_norm_backward(const L2NormBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
