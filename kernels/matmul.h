// Matrix products: C [M,N] = A [M,K] B [K,N] + beta C, any strides for A and B, so transposes are free.
// Sums are fp32 (fp64 for fp64). On the CPU: BLIS on fixed blocks from our pool; bits depend neither on the thread count nor on M.
// On cuda: cuBLASLt with plans chosen by shape alone, and an own kernel for strides and mixtures of types that it does not take.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

struct MatmulArgs {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;  // [M,K]
  DType a_dtype = DType::F32;
  std::int64_t a_row_stride = 0, a_col_stride = 1;
  const void* b = nullptr;  // [K,N]
  DType b_dtype = DType::F32;
  std::int64_t b_row_stride = 0, b_col_stride = 1;
  void* c = nullptr;  // [M,N], columns contiguous
  DType c_dtype = DType::F32;
  std::int64_t c_row_stride = 0;
  bool accumulate = false;  // C += A B (main gradients) instead of C = A B
  Workspace workspace;
};

namespace cpu {
std::int64_t matmul_workspace_bytes(const MatmulArgs& args, const StreamHandle& stream);
void matmul(const MatmulArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
std::int64_t matmul_workspace_bytes(const MatmulArgs& args, const StreamHandle& stream);
void matmul(const MatmulArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
