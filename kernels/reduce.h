// Reductions in a fixed order: sums of squares over fixed logical blocks as fp64 partials, counts of non-finite values, loss sums.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

inline constexpr std::int64_t kNormBlock = 65536;  // elements a partial; part of what makes clipping repeatable

// partials[i] = sum of x^2 over block i of kNormBlock elements; nonfinite[i] = count of NaN and Inf in it.
struct SquaredNormArgs {
  std::int64_t count = 0;
  const void* x = nullptr;
  DType dtype = DType::F32;
  double* partials = nullptr;           // [ceil(count/kNormBlock)]
  std::int64_t* nonfinite = nullptr;    // likewise; null: not wanted
};

// Ordered sum of fp64 partials.
struct OrderedSumArgs {
  std::int64_t count = 0;
  const double* x = nullptr;
  double* result = nullptr;  // one value
};

// result = sum of x[i] in ascending blocks of 1024, as fp64.
struct SumArgs {
  std::int64_t count = 0;
  const void* x = nullptr;
  DType dtype = DType::F32;
  double* result = nullptr;
};

// scale = min(1, clip/(sqrt(sum of squares)+1e-6)); flags a non-finite norm. clip 0: scale 1. Also writes the norm.
struct ClipScaleArgs {
  const double* squared_norm = nullptr;
  double clip = 0;
  double* scale = nullptr;
  double* norm = nullptr;
  std::int32_t* nonfinite_flag = nullptr;  // set to 1 if the norm is not finite; never cleared here (sticky)
};

namespace cpu {
void squared_norm(const SquaredNormArgs& args, const StreamHandle& stream);
void ordered_sum(const OrderedSumArgs& args, const StreamHandle& stream);
void sum(const SumArgs& args, const StreamHandle& stream);
void clip_scale(const ClipScaleArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void squared_norm(const SquaredNormArgs& args, const StreamHandle& stream);
void ordered_sum(const OrderedSumArgs& args, const StreamHandle& stream);
void sum(const SumArgs& args, const StreamHandle& stream);
void clip_scale(const ClipScaleArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
