// How CPU kernels cut rows into parts. The cut is a function of the shape alone, so partial sums never depend on the threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace deltron::kernels::cpu {

inline constexpr std::int64_t kPartElements = 16384;  // what one part of an elementwise loop handles: about 10 us

// Rows a part where the rows are independent.
inline std::int64_t row_grain(std::int64_t cols, std::int64_t elements = kPartElements) {
  return std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, cols));
}

// Row blocks whose partial sums are combined in ascending order: at most kMaxPartials of them.
inline constexpr std::int64_t kMaxPartials = 128;
inline std::int64_t partial_rows(std::int64_t rows, std::int64_t cols) {
  return std::max(row_grain(cols), (rows + kMaxPartials - 1) / kMaxPartials);
}
inline std::int64_t partial_count(std::int64_t rows, std::int64_t cols) {
  return (rows + partial_rows(rows, cols) - 1) / partial_rows(rows, cols);
}
// Elements between two blocks' partial sums of `cols` values: a whole cache line apart, so that threads never share one.
inline std::int64_t partial_stride(std::int64_t cols) { return (cols + 15) / 16 * 16 + 16; }

}  // namespace deltron::kernels::cpu
