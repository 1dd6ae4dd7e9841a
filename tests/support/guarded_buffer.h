// A strided [rows, heads, cols] view in memory whose every other byte is 0xff (NaN in every float type): a kernel that reads
// outside its view spreads NaN, one that writes there is seen by untouched(). The start is deliberately not vector-aligned.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/views.h"
#include "src/base/bfloat16.h"
#include "src/base/dtype.h"
#include "tests/support/under_test.h"

namespace deltron::test {

template <class S>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::F64;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::BF16;
};
template <class S>
inline constexpr DType kDTypeOf = DTypeOf<S>::value;

inline double as_double(float value) { return value; }
inline double as_double(double value) { return value; }
inline double as_double(bfloat16 value) { return to_float(value); }
template <class S>
S from_double(double value) {
  if constexpr (std::is_same_v<S, bfloat16>) {
    return to_bfloat16(static_cast<float>(value));
  } else {
    return static_cast<S>(value);
  }
}

template <class S>
class Guarded {
 public:
  // [rows, heads, cols]; gap elements lie after every head and after every row.
  Guarded(std::int64_t rows, std::int64_t heads, std::int64_t cols, std::int64_t gap = 0)
      : guard_(laid_out(67)), rows_(rows), heads_(heads), cols_(cols), head_stride_(gap > 0 ? laid_out(cols + gap) : cols),
        row_stride_(gap > 0 ? laid_out(heads * head_stride_ + gap) : heads * head_stride_),
        memory_(static_cast<std::size_t>(2 * guard_ + rows * row_stride_)) {
    std::memset(static_cast<void*>(memory_.data()), 0xff, memory_.size() * sizeof(S));
  }
  static Guarded matrix(std::int64_t rows, std::int64_t cols, std::int64_t gap = 0) { return Guarded(rows, 1, cols, gap); }

  S* data() { return memory_.data() + guard_; }
  const S* data() const { return memory_.data() + guard_; }
  std::int64_t count() const { return rows_ * heads_ * cols_; }
  std::int64_t row_stride() const { return row_stride_; }
  kernels::MatrixView view() const { return {data(), row_stride_}; }
  kernels::MutableMatrixView out() { return {data(), row_stride_}; }
  kernels::HeadView heads_view() const { return {data(), 0, row_stride_, head_stride_}; }
  kernels::MutableHeadView heads_out() { return {data(), 0, row_stride_, head_stride_}; }

  // Elements of the view in [rows, heads, cols] order.
  double get(std::int64_t index) const { return as_double(memory_[position(index)]); }
  void set(std::int64_t index, double value) { memory_[position(index)] = from_double<S>(value); }
  std::vector<double> values() const {
    std::vector<double> result(static_cast<std::size_t>(count()));
    for (std::int64_t i = 0; i < count(); ++i) result[static_cast<std::size_t>(i)] = get(i);
    return result;
  }
  void assign(const std::vector<double>& values) {
    for (std::int64_t i = 0; i < count(); ++i) set(i, values[static_cast<std::size_t>(i)]);
  }
  // function(index) for every element.
  template <class F>
  Guarded& fill(const F& function) {
    for (std::int64_t i = 0; i < count(); ++i) set(i, function(i));
    return *this;
  }
  // The view's bytes, for comparing runs bit for bit.
  std::vector<unsigned char> bytes() const {
    std::vector<unsigned char> result(static_cast<std::size_t>(count()) * sizeof(S));
    for (std::int64_t i = 0; i < count(); ++i) std::memcpy(result.data() + static_cast<std::size_t>(i) * sizeof(S), &memory_[position(i)], sizeof(S));
    return result;
  }
  // Every byte outside the view is still 0xff.
  bool untouched() const {
    std::vector<char> inside(memory_.size(), 0);
    for (std::int64_t i = 0; i < count(); ++i) inside[position(i)] = 1;
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory_.data());
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (inside[i]) continue;
      for (std::size_t b = 0; b < sizeof(S); ++b) {
        if (bytes[i * sizeof(S) + b] != 0xff) return false;
      }
    }
    return true;
  }

 private:
  std::size_t position(std::int64_t index) const {
    const std::int64_t col = index % cols_, head = index / cols_ % heads_, row = index / cols_ / heads_;
    return static_cast<std::size_t>(guard_ + row * row_stride_ + head * head_stride_ + col);
  }
  std::int64_t guard_, rows_, heads_, cols_, head_stride_, row_stride_;
  std::vector<S> memory_;
};

}  // namespace deltron::test
