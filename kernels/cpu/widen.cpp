// See widen.h.
#include "kernels/cpu/widen.h"

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/widen.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {  // names of one family stay in its file

void widen_rows(const bfloat16* from, std::int64_t row_stride, std::int64_t rows, std::int64_t cols, float* to) {
  const Tag<float> d;
  for (std::int64_t row = 0; row < rows; ++row) {
    const bfloat16* x = from + row * row_stride;
    float* y = to + row * cols;
    for_lanes(d, cols, [&](std::int64_t i, auto part) HWY_ATTR { store(load(d, x + i, part), d, y + i, part); });
  }
}

void narrow_rows(const float* from, std::int64_t rows, std::int64_t cols, bfloat16* to, std::int64_t row_stride) {
  const Tag<float> d;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* x = from + row * cols;
    bfloat16* y = to + row * row_stride;
    for_lanes(d, cols, [&](std::int64_t i, auto part) HWY_ATTR { store(load(d, x + i, part), d, y + i, part); });
  }
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(widen_rows);
HWY_EXPORT(narrow_rows);

void widen_block(const bfloat16* from, std::int64_t row_stride, std::int64_t col_stride, std::int64_t rows, std::int64_t cols, float* to) {
  if (col_stride == 1) {
    HWY_DYNAMIC_DISPATCH(widen_rows)(from, row_stride, rows, cols, to);
    return;
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) to[row * cols + col] = to_float(from[row * row_stride + col * col_stride]);
  }
}

void narrow_block(const float* from, std::int64_t rows, std::int64_t cols, bfloat16* to, std::int64_t row_stride) {
  HWY_DYNAMIC_DISPATCH(narrow_rows)(from, rows, cols, to, row_stride);
}

}  // namespace deltron::kernels::cpu
#endif
