// bf16 and fp16 numbers as their 16 bits, converted on the host for tests of kernels that take both.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "src/base/bfloat16.h"
#include "src/base/dtype.h"

namespace deltron::test {

inline std::uint16_t to_half(DType dtype, double value) {
  std::uint16_t bits = 0;
  if (dtype == DType::BF16) {
    const bfloat16 half = to_bfloat16(static_cast<float>(value));
    std::memcpy(&bits, &half, sizeof(bits));
  } else {
    bits = __half_raw(__float2half(static_cast<float>(value))).x;
  }
  return bits;
}

inline double from_half(DType dtype, std::uint16_t bits) {
  if (dtype == DType::BF16) {
    bfloat16 half{0};
    std::memcpy(&half, &bits, sizeof(bits));
    return static_cast<double>(to_float(half));
  }
  __half_raw raw;
  raw.x = bits;
  return static_cast<double>(__half2float(__half(raw)));
}

}  // namespace deltron::test
