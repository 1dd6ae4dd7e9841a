// Token embedding: gather, and a deterministic scatter-add of its gradient (tokens in ascending order per row). Of a table that is cut over
// ranks each has rows [first, first + vocab) of `whole`; ids of other ranks give zeros, and their gradients go nowhere.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

struct EmbeddingForwardArgs {
  std::int64_t tokens = 0, vocab = 0, hidden = 0;
  const std::int32_t* ids = nullptr;  // [tokens], each in [0, vocab), or [0, whole): checked when data is opened
  const void* table = nullptr;        // [vocab, hidden]
  DType table_dtype = DType::F32;
  void* y = nullptr;  // [tokens, hidden]
  DType dtype = DType::F32;
  std::int64_t first = 0, whole = 0;  // whole 0: the table is all
};

struct EmbeddingBackwardArgs {
  std::int64_t tokens = 0, vocab = 0, hidden = 0;
  const std::int32_t* ids = nullptr;
  const void* dy = nullptr;  // [tokens, hidden]
  DType dtype = DType::F32;
  void* dtable = nullptr;  // [vocab, hidden] of compute_dtype(dtype), +=
  Workspace workspace;
  std::int64_t first = 0, whole = 0;
};

namespace cpu {
void embedding_forward(const EmbeddingForwardArgs& args, const StreamHandle& stream);
std::int64_t embedding_backward_workspace_bytes(const EmbeddingBackwardArgs& args, const StreamHandle& stream);
void embedding_backward(const EmbeddingBackwardArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void embedding_forward(const EmbeddingForwardArgs& args, const StreamHandle& stream);
std::int64_t embedding_backward_workspace_bytes(const EmbeddingBackwardArgs& args, const StreamHandle& stream);
void embedding_backward(const EmbeddingBackwardArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
