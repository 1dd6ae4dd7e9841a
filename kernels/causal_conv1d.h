// Depthwise causal convolution over packed documents, then SiLU: y[t,c] = silu(sum_i w[c,i] x[t-(kc-1)+i, c]), zero before a
// document's start (docs/gdn.md (4.1), (4.2)). The backward recomputes the value before SiLU from x, so only x is kept.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

struct CausalConv1dForwardArgs {
  std::int64_t tokens = 0, channels = 0, kernel = 4;
  Documents documents;
  DType dtype = DType::F32;      // of x and y
  MatrixView x;                  // [tokens, channels]
  const void* weight = nullptr;  // [channels, kernel]
  DType weight_dtype = DType::F32;
  bool silu = true;
  MutableMatrixView y;  // [tokens, channels]; must not alias x
};

struct CausalConv1dBackwardArgs {
  std::int64_t tokens = 0, channels = 0, kernel = 4;
  Documents documents;
  DType dtype = DType::F32;
  MatrixView x, dy;
  const void* weight = nullptr;
  DType weight_dtype = DType::F32;
  bool silu = true;
  MutableMatrixView dx;     // must not alias dy
  void* dweight = nullptr;  // [channels, kernel] of compute_dtype(dtype), +=
  Workspace workspace;
};

namespace cpu {
void causal_conv1d_forward(const CausalConv1dForwardArgs& args, const StreamHandle& stream);
std::int64_t causal_conv1d_backward_workspace_bytes(const CausalConv1dBackwardArgs& args, const StreamHandle& stream);
void causal_conv1d_backward(const CausalConv1dBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void causal_conv1d_forward(const CausalConv1dForwardArgs& args, const StreamHandle& stream);
std::int64_t causal_conv1d_backward_workspace_bytes(const CausalConv1dBackwardArgs& args, const StreamHandle& stream);
void causal_conv1d_backward(const CausalConv1dBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
