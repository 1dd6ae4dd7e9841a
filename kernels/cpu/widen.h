// Blocks of bf16 to fp32 and back, single-threaded: what matrix products do to their operands. No allocation.
#pragma once

#include <cstdint>

#include "src/base/bfloat16.h"

namespace deltron::kernels::cpu {

// to [rows, cols] contiguous = from [rows, cols] with strides.
void widen_block(const bfloat16* from, std::int64_t row_stride, std::int64_t col_stride, std::int64_t rows, std::int64_t cols, float* to);
// to [rows, cols] with a row stride = from [rows, cols] contiguous, rounded to nearest even.
void narrow_block(const float* from, std::int64_t rows, std::int64_t cols, bfloat16* to, std::int64_t row_stride);

}  // namespace deltron::kernels::cpu
