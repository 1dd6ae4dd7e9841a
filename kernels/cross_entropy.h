// Softmax cross entropy on rows of logits; label kIgnore rows are masked (loss 0, gradient 0).
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

inline constexpr std::int32_t kIgnoreLabel = -1;

struct CrossEntropyForwardArgs {
  std::int64_t rows = 0, vocab = 0;
  DType dtype = DType::F32;
  MatrixView logits;                     // [rows, vocab]
  const std::int32_t* labels = nullptr;  // [rows]
  void* loss = nullptr;                  // [rows] of compute_dtype(dtype)
  void* log_sum_exp = nullptr;           // [rows] of compute_dtype(dtype)
};

// dlogits = (softmax - onehot) * row_scale, row_scale = dloss * weight (0 on masked rows).
struct CrossEntropyBackwardArgs {
  std::int64_t rows = 0, vocab = 0;
  DType dtype = DType::F32;
  MatrixView logits;
  const std::int32_t* labels = nullptr;
  const void* log_sum_exp = nullptr;
  const void* dloss = nullptr;  // [rows] of compute_dtype(dtype)
  MutableMatrixView dlogits;    // may alias logits
};

namespace cpu {
void cross_entropy_forward(const CrossEntropyForwardArgs& args, const StreamHandle& stream);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void cross_entropy_forward(const CrossEntropyForwardArgs& args, const StreamHandle& stream);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
