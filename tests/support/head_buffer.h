// A [tokens, heads, dim] tensor of a storage type chosen at run time (Guarded<S> is the typed one) inside larger rows, as kernels
// get it from a fused projection: NaN lies before, between and behind the rows, so that a read outside shows as NaN in results
// and a write outside shows in `guards_intact`. Also random values that a storage type holds exactly, and the error ratio.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/views.h"
#include "src/base/bfloat16.h"
#include "src/base/rng.h"
#include "tests/support/under_test.h"

namespace deltron::test {

class HeadBuffer {
 public:
  // `gap` elements of NaN stand behind every token's row; odd gaps make rows unaligned.
  HeadBuffer(DType dtype, std::int64_t tokens, std::int64_t heads, std::int64_t dim, std::int64_t gap)
      : guard_(laid_out(67)),
        dtype_(dtype),
        tokens_(tokens),
        heads_(heads),
        dim_(dim),
        stride_(gap > 0 ? laid_out(heads * dim + gap) : heads * dim),
        bytes_(static_cast<std::size_t>(2 * guard_ + tokens * stride_) * dtype_size(dtype)) {
    for (std::int64_t i = 0; i < 2 * guard_ + tokens_ * stride_; ++i) write(i, std::numeric_limits<double>::quiet_NaN());
    untouched_ = bytes_;
  }

  HeadBuffer& set(const std::vector<double>& values) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i)
      write(place(i), values[static_cast<std::size_t>(i)]);
    untouched_ = bytes_;
    return *this;
  }
  std::vector<double> get() const {
    std::vector<double> values(static_cast<std::size_t>(tokens_ * heads_ * dim_));
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i)
      values[static_cast<std::size_t>(i)] = read(place(i));
    return values;
  }
  // The bytes outside the tensor are what they were.
  bool guards_intact() const {
    std::vector<bool> inside(bytes_.size(), false);
    const std::size_t size = dtype_size(dtype_);
    for (std::int64_t i = 0; i < tokens_ * heads_ * dim_; ++i) {
      for (std::size_t b = 0; b < size; ++b) inside[static_cast<std::size_t>(place(i)) * size + b] = true;
    }
    for (std::size_t b = 0; b < bytes_.size(); ++b) {
      if (!inside[b] && bytes_[b] != untouched_[b]) return false;
    }
    return true;
  }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

  kernels::HeadView view() const { return {bytes_.data() + static_cast<std::size_t>(guard_) * dtype_size(dtype_), 0, stride_, dim_}; }
  kernels::MutableHeadView view() { return {bytes_.data() + static_cast<std::size_t>(guard_) * dtype_size(dtype_), 0, stride_, dim_}; }

 private:
  std::int64_t place(std::int64_t i) const { return guard_ + i / (heads_ * dim_) * stride_ + i % (heads_ * dim_); }
  void write(std::int64_t at, double value) {
    unsigned char* to = bytes_.data() + static_cast<std::size_t>(at) * dtype_size(dtype_);
    const float single = static_cast<float>(value);
    const bfloat16 half = to_bfloat16(single);
    if (dtype_ == DType::F64) std::memcpy(to, &value, 8);
    if (dtype_ == DType::F32) std::memcpy(to, &single, 4);
    if (dtype_ == DType::BF16) std::memcpy(to, &half, 2);
  }
  double read(std::int64_t at) const {
    const unsigned char* from = bytes_.data() + static_cast<std::size_t>(at) * dtype_size(dtype_);
    double value = 0;
    float single = 0;
    bfloat16 half{0};
    if (dtype_ == DType::F64) std::memcpy(&value, from, 8);
    if (dtype_ == DType::F32) std::memcpy(&single, from, 4), value = single;
    if (dtype_ == DType::BF16) std::memcpy(&half, from, 2), value = to_float(half);
    return value;
  }

  std::int64_t guard_;
  DType dtype_;
  std::int64_t tokens_, heads_, dim_, stride_;
  std::vector<unsigned char> bytes_, untouched_;
};

// Normal numbers, rounded to what `dtype` can hold, so that kernel and reference start from the same values.
inline std::vector<double> random_values(DType dtype, std::int64_t count, std::uint64_t stream, double deviation = 1.0) {
  RngStream draw(RngSite{17, 0, kRngSiteData}, stream);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) {
    value = draw.normal() * deviation;
    if (dtype != DType::F64) value = static_cast<float>(value);
    if (dtype == DType::BF16) value = to_float(to_bfloat16(static_cast<float>(value)));
  }
  return values;
}
// RMS(ours - expected) / RMS(expected).
inline double error_ratio(const std::vector<double>& ours, const std::vector<double>& expected) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += (ours[i] - expected[i]) * (ours[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

}  // namespace deltron::test
