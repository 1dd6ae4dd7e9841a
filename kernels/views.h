// Pointers with strides as every kernel family takes them. Plain data, usable in .cu files. Knows no tensors, no autograd.
//
// Conventions of all kernels: sizes and strides are 64-bit and in elements; the last dimension is contiguous; `dtype` is the
// storage type (bf16 and fp16 are widened on load; sums are fp32, or fp64 for fp64); parameters that stay fp32 (A_log, dt_bias,
// statistics, main gradients) are of compute_dtype(dtype) where fp64 tests need it. `+=` outputs accumulate in a fixed order that
// depends neither on timing nor on the number of threads. Workspace is owned by the caller, who asked *_workspace_bytes first.
#pragma once

#include <cstdint>

#include "src/base/dtype.h"
#include "src/base/stream.h"

namespace deltron::kernels {

// [rows, cols] with a row stride.
struct MatrixView {
  const void* data = nullptr;
  std::int64_t row_stride = 0;
};
struct MutableMatrixView {
  void* data = nullptr;
  std::int64_t row_stride = 0;
};

// [tokens, heads, dim]. Token s of sequence n lies at
//   sequence_stride == 0 (packed):  (cu_seqlens[n] + s) * token_stride
//   otherwise (BSHD, SBHD views):   n * sequence_stride + s * token_stride
// plus head * head_stride.
struct HeadView {
  const void* data = nullptr;
  std::int64_t sequence_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};
struct MutableHeadView {
  void* data = nullptr;
  std::int64_t sequence_stride = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

// Flat tokens of several documents: document n covers tokens [cu_seqlens[n], cu_seqlens[n+1]). Empty documents are legal.
struct Documents {
  std::int64_t count = 0;
  const std::int64_t* cu_seqlens = nullptr;  // [count+1], on the kernel's device
  // The same on the host, for cutting work and asking for workspace; null: cu_seqlens itself is host memory.
  const std::int64_t* host_cu_seqlens = nullptr;
  const std::int64_t* host() const { return host_cu_seqlens != nullptr ? host_cu_seqlens : cu_seqlens; }
};

struct Workspace {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

}  // namespace deltron::kernels
