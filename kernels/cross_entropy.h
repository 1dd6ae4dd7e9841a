// Softmax cross entropy on rows of logits; label kIgnore rows are masked (loss 0, gradient 0). A vocabulary that is cut over ranks: each
// takes its columns [first, first + vocab) of `whole`, and cross_entropy_join makes losses of what all of them found.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

inline constexpr std::int32_t kIgnoreLabel = -1;

struct CrossEntropyForwardArgs {
  std::int64_t rows = 0, vocab = 0;
  DType dtype = DType::F32;
  MatrixView logits;                     // [rows, vocab]
  const std::int32_t* labels = nullptr;  // [rows]
  void* loss = nullptr;                  // [rows] of compute_dtype(dtype); all ids alone
  void* log_sum_exp = nullptr;           // [rows] of compute_dtype(dtype); of the ids that are here
  // A part of the ids: the first that is here, and how many there are; whole 0: these are all.
  std::int64_t first = 0, whole = 0;
  void* label_logit = nullptr;  // [rows] of compute_dtype(dtype), a part alone: 0 where the label is not here
};

// dlogits = (softmax - onehot) * row_scale, row_scale = dloss * weight (0 on masked rows).
struct CrossEntropyBackwardArgs {
  std::int64_t rows = 0, vocab = 0;
  DType dtype = DType::F32;
  MatrixView logits;
  const std::int32_t* labels = nullptr;
  const void* log_sum_exp = nullptr;  // of all ids
  const void* dloss = nullptr;  // [rows] of compute_dtype(dtype)
  MutableMatrixView dlogits;    // may alias logits
  std::int64_t first = 0, whole = 0;
};

// parts [ranks, 2, rows]: log_sum_exp and label_logit of every rank, in their order. The sums are formed in that order.
struct CrossEntropyJoinArgs {
  std::int64_t rows = 0, ranks = 0;
  DType dtype = DType::F32;  // of everything here: a compute type
  const std::int32_t* labels = nullptr;
  const void* parts = nullptr;
  void* loss = nullptr;         // [rows]
  void* log_sum_exp = nullptr;  // [rows]
};

namespace cpu {
void cross_entropy_join(const CrossEntropyJoinArgs& args, const StreamHandle& stream);
void cross_entropy_forward(const CrossEntropyForwardArgs& args, const StreamHandle& stream);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void cross_entropy_join(const CrossEntropyJoinArgs& args, const StreamHandle& stream);
void cross_entropy_forward(const CrossEntropyForwardArgs& args, const StreamHandle& stream);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
