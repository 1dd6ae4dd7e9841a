// Updates, norms and non-finite checks over many tensors at once: a table of tensors and of chunks of them, made once and kept on
// the device, so that a step is a handful of launches however many parameters there are. Knows no parameter names and no schedule.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/reduce.h"
#include "kernels/views.h"

namespace deltron::kernels {

// One tensor, or a shard of one. Addresses that a kernel does not name may be null.
struct MultiTensorEntry {
  std::int64_t count = 0;
  void* master = nullptr;  // [count] of dtype, as the three below
  const void* grad = nullptr;
  void* exp_avg = nullptr;
  void* exp_avg_sq = nullptr;
  void* weight = nullptr;    // [count] of weight_dtype, rewritten from master; null where master is the weight
  DType dtype = DType::F32;  // fp32 or fp64
  DType weight_dtype = DType::BF16;
  bool decays = true;    // weight decay applies
  bool aligned = false;  // every address lies on 16 bytes: see multi_tensor_aligned()
};

// A run of kNormBlock elements of a tensor, its last one shorter: the logical block of which the norm keeps a partial sum.
struct MultiTensorChunk {
  std::int64_t begin = 0;
  std::int32_t tensor = 0;
  std::int32_t count = 0;
};

struct MultiTensorTable {
  const MultiTensorEntry* tensors = nullptr;  // on the kernel's device, as chunks
  const MultiTensorChunk* chunks = nullptr;   // by tensor, ascending
  std::int64_t chunk_count = 0;
  bool has_fp32 = false, has_fp64 = false;  // types that occur
};

inline bool multi_tensor_aligned(const MultiTensorEntry& entry) {
  std::uintptr_t addresses = 0;
  for (const void* each : {static_cast<const void*>(entry.master), entry.grad, static_cast<const void*>(entry.exp_avg),
                           static_cast<const void*>(entry.exp_avg_sq), static_cast<const void*>(entry.weight)}) {
    addresses |= reinterpret_cast<std::uintptr_t>(each);
  }
  return addresses % 16 == 0;
}

// AdamW (Loshchilov & Hutter 2019), decoupled decay: fp32 master weights and moments (fp64 in tests).
//   g = grad*grad_scale; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr decay w; w -= lr (m/c1) / (sqrt(v/c2) + eps)
struct MultiTensorAdamwArgs {
  MultiTensorTable table;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  std::int64_t step = 1;                    // from 1, for the bias corrections c1, c2
  const double* grad_scale = nullptr;       // on the device: clipping factor; null: 1
  const std::int32_t* skip_flag = nullptr;  // on the device: non-zero leaves everything as it is (non-finite step)
};

struct MultiTensorSgdArgs {  // w -= lr (g*grad_scale + decay w)
  MultiTensorTable table;
  double lr = 0, weight_decay = 0;
  const double* grad_scale = nullptr;
  const std::int32_t* skip_flag = nullptr;
};

// partials[i] = sum of grad^2 over chunk i; nonfinite[i] = count of NaN and Inf in it. A chunk's bits depend on its values alone.
struct MultiTensorNormArgs {
  MultiTensorTable table;
  double* partials = nullptr;         // [chunk_count]
  std::int64_t* nonfinite = nullptr;  // likewise; null: not wanted
};

namespace cpu {
void multi_tensor_adamw(const MultiTensorAdamwArgs& args, const StreamHandle& stream);
void multi_tensor_sgd(const MultiTensorSgdArgs& args, const StreamHandle& stream);
void multi_tensor_norm(const MultiTensorNormArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void multi_tensor_adamw(const MultiTensorAdamwArgs& args, const StreamHandle& stream);
void multi_tensor_sgd(const MultiTensorSgdArgs& args, const StreamHandle& stream);
void multi_tensor_norm(const MultiTensorNormArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
