// SwiGLU (Shazeer 2020): y = silu(gate) * up, where h [rows, 2F] holds gate then up.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

struct SwigluForwardArgs {
  std::int64_t rows = 0, ffn = 0;
  DType dtype = DType::F32;
  MatrixView h;         // [rows, 2F]
  MutableMatrixView y;  // [rows, F]
};

struct SwigluBackwardArgs {
  std::int64_t rows = 0, ffn = 0;
  DType dtype = DType::F32;
  MatrixView h, dy;
  MutableMatrixView dh;  // [rows, 2F]; may alias h
  MutableMatrixView y;   // optional (data null: not wanted): the forward's output again, for the weight gradient behind it
};

namespace cpu {
void swiglu_forward(const SwigluForwardArgs& args, const StreamHandle& stream);
void swiglu_backward(const SwigluBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void swiglu_forward(const SwigluForwardArgs& args, const StreamHandle& stream);
void swiglu_backward(const SwigluBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
