// A tensor [rows, heads, dim] as a strided slot of a wider buffer; everything around the slot holds a guard value.
#pragma once

#include <vector>

#include "kernels/views.h"
#include "tests/support/typed_buffer.h"
#include "tests/support/under_test.h"

namespace deltron::test {

class Strided {
 public:
  // `before` and `after` guard elements around the slot in each row.
  Strided(DType dtype, std::int64_t rows, std::int64_t heads, std::int64_t dim, double guard, std::int64_t before = 0,
          std::int64_t after = 0)
      : rows_(rows),
        width_(heads * dim),
        dim_(dim),
        before_(laid_out(before)),
        stride_(before + after > 0 ? laid_out(before_ + heads * dim + after) : heads * dim),
        guard_(guard),
        buffer_(dtype, rows * stride_ + 32, guard) {}
  Strided& write(const std::vector<double>& values) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t i = 0; i < width_; ++i)
        buffer_.set(r * stride_ + before_ + i, values[static_cast<std::size_t>(r * width_ + i)]);
    }
    return *this;
  }
  std::vector<double> read() const {
    std::vector<double> values;
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t i = 0; i < width_; ++i) values.push_back(buffer_.get(r * stride_ + before_ + i));
    }
    return values;
  }
  // Guard elements that changed.
  std::int64_t touched() const {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < buffer_.size(); ++i) {
      const std::int64_t column = i % stride_ - before_;
      const bool inside = i < rows_ * stride_ && column >= 0 && column < width_;
      const double value = buffer_.get(i);
      if (!inside && value != guard_ && !(value != value && guard_ != guard_)) ++count;
    }
    return count;
  }
  kernels::HeadView head_view() { return {buffer_.at(before_), 0, stride_, dim_}; }
  kernels::MutableHeadView mutable_head_view() { return {buffer_.at(before_), 0, stride_, dim_}; }
  kernels::MatrixView matrix_view() { return {buffer_.at(before_), stride_}; }
  kernels::MutableMatrixView mutable_matrix_view() { return {buffer_.at(before_), stride_}; }
  char* data() { return buffer_.at(before_); }
  const std::vector<char>& bytes() const { return buffer_.bytes(); }

 private:
  std::int64_t rows_, width_, dim_, before_, stride_;
  double guard_;
  TypedBuffer buffer_;
};

}  // namespace deltron::test
