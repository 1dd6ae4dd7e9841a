// A buffer of a storage dtype that tests write and read as doubles; its bytes can be compared bit by bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/base/bfloat16.h"
#include "src/base/dtype.h"

namespace deltron::test {

// fp16 <-> float, round to nearest even; NaN stays NaN.
inline std::uint16_t to_float16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const std::uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds past 65504
  if (rest < 0x38800000u) {                                                    // subnormal: in units of 2^-24
    float magnitude;
    std::memcpy(&magnitude, &rest, 4);
    return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(std::nearbyint(magnitude * 16777216.0f)));
  }
  return static_cast<std::uint16_t>(sign | ((rest + 0xfffu + (rest >> 13 & 1u) - 0x38000000u) >> 13));
}
inline float from_float16(std::uint16_t half) {
  const std::uint32_t exponent = half >> 10 & 31u, mantissa = half & 1023u;
  float value = exponent == 31 ? (mantissa != 0 ? std::nanf("") : HUGE_VALF)
                : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                : std::ldexp(static_cast<float>(mantissa + 1024u), static_cast<int>(exponent) - 25);
  return (half & 0x8000u) != 0 ? -value : value;
}

// A typed buffer, written and read as doubles.
class TypedBuffer {
 public:
  TypedBuffer(DType dtype, std::int64_t count, double fill)
      : dtype_(dtype), bytes_(static_cast<std::size_t>(count) * dtype_size(dtype)) {
    for (std::int64_t i = 0; i < count; ++i) set(i, fill);
  }
  void set(std::int64_t i, double value) {
    if (dtype_ == DType::F64) std::memcpy(&bytes_[static_cast<std::size_t>(i) * 8], &value, 8);
    const float narrow = static_cast<float>(value);
    if (dtype_ == DType::F32) std::memcpy(&bytes_[static_cast<std::size_t>(i) * 4], &narrow, 4);
    const bfloat16 half = to_bfloat16(narrow);
    if (dtype_ == DType::BF16) std::memcpy(&bytes_[static_cast<std::size_t>(i) * 2], &half, 2);
    const std::uint16_t half16 = to_float16(narrow);
    if (dtype_ == DType::F16) std::memcpy(&bytes_[static_cast<std::size_t>(i) * 2], &half16, 2);
  }
  double get(std::int64_t i) const {
    if (dtype_ == DType::F64) {
      double value;
      std::memcpy(&value, &bytes_[static_cast<std::size_t>(i) * 8], 8);
      return value;
    }
    if (dtype_ == DType::F32) {
      float value;
      std::memcpy(&value, &bytes_[static_cast<std::size_t>(i) * 4], 4);
      return static_cast<double>(value);
    }
    if (dtype_ == DType::F16) {
      std::uint16_t value;
      std::memcpy(&value, &bytes_[static_cast<std::size_t>(i) * 2], 2);
      return static_cast<double>(from_float16(value));
    }
    bfloat16 value;
    std::memcpy(&value, &bytes_[static_cast<std::size_t>(i) * 2], 2);
    return static_cast<double>(to_float(value));
  }
  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size() / dtype_size(dtype_)); }
  char* data() { return bytes_.data(); }
  const char* data() const { return bytes_.data(); }
  char* at(std::int64_t i) { return bytes_.data() + static_cast<std::size_t>(i) * dtype_size(dtype_); }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  DType dtype_;
  std::vector<char> bytes_;
};

// What the values become in storage.
inline void round_to(DType dtype, std::vector<double>& values) {
  TypedBuffer buffer(dtype, 1, 0);
  for (double& value : values) {
    buffer.set(0, value);
    value = buffer.get(0);
  }
}

}  // namespace deltron::test
