// AdamW (Loshchilov & Hutter 2019), decoupled decay, one call a parameter: fp32 master weights and moments (fp64 in tests).
//   g = grad*grad_scale; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; w -= lr decay w; w -= lr (m/c1) / (sqrt(v/c2) + eps)
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

struct AdamwArgs {
  std::int64_t count = 0;
  DType dtype = DType::F32;     // of master, grad and moments: fp32 or fp64
  void* master = nullptr;       // [count]
  const void* grad = nullptr;   // [count]
  void* exp_avg = nullptr;      // [count]
  void* exp_avg_sq = nullptr;   // [count]
  void* weight = nullptr;       // model weight of weight_dtype, rewritten from master; null where master is the weight
  DType weight_dtype = DType::BF16;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  std::int64_t step = 1;        // from 1, for the bias corrections c1, c2
  const double* grad_scale = nullptr;        // on the device: clipping factor; null: 1
  const std::int32_t* skip_flag = nullptr;   // on the device: non-zero leaves everything as it is (non-finite step)
};

struct SgdArgs {  // w -= lr (g*grad_scale + decay w)
  std::int64_t count = 0;
  DType dtype = DType::F32;
  void* master = nullptr;
  const void* grad = nullptr;
  void* weight = nullptr;
  DType weight_dtype = DType::BF16;
  double lr = 0, weight_decay = 0;
  const double* grad_scale = nullptr;
  const std::int32_t* skip_flag = nullptr;
};

namespace cpu {
void adamw(const AdamwArgs& args, const StreamHandle& stream);
void sgd(const SgdArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void adamw(const AdamwArgs& args, const StreamHandle& stream);
void sgd(const SgdArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
