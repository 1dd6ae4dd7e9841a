// bf16 and fp16 as storage formats: conversions to and from float, round to nearest even. Header only; usable in .cu files.
// NaN policy: every NaN becomes 0x7fc0 (bf16) or 0x7e00 (fp16).
#pragma once

#include <cstdint>
#include <cstring>

namespace deltron {

struct bfloat16 {
  std::uint16_t bits;
};
struct float16 {
  std::uint16_t bits;
};

inline float to_float(bfloat16 value) {
  std::uint32_t wide = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &wide, sizeof(result));
  return result;
}

inline bfloat16 to_bfloat16(float value) {
  std::uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  if ((wide & 0x7fffffffu) > 0x7f800000u) return bfloat16{0x7fc0};
  wide += 0x7fffu + ((wide >> 16) & 1u);
  return bfloat16{static_cast<std::uint16_t>(wide >> 16)};
}

inline float to_float(float16 value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fu;
  std::uint32_t mantissa = value.bits & 0x3ffu;
  std::uint32_t wide;
  if (exponent == 0x1f) {
    wide = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    wide = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else if (mantissa == 0) {
    wide = sign;
  } else {  // subnormal: normalise
    std::uint32_t shift = 0;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      ++shift;
    }
    wide = sign | ((113 - shift) << 23) | ((mantissa & 0x3ffu) << 13);
  }
  float result;
  std::memcpy(&result, &wide, sizeof(result));
  return result;
}

inline float16 to_float16(float value) {
  std::uint32_t wide;
  std::memcpy(&wide, &value, sizeof(wide));
  const std::uint16_t sign = static_cast<std::uint16_t>((wide >> 16) & 0x8000u);
  const std::uint32_t magnitude = wide & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return float16{static_cast<std::uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return float16{static_cast<std::uint16_t>(sign | 0x7c00u)};  // rounds to infinity
  if (magnitude < 0x33000001u) return float16{sign};                                         // rounds to zero
  std::uint32_t exponent = magnitude >> 23;
  std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  std::uint32_t shift = 13;
  std::uint32_t half_exponent = 0;
  if (exponent < 113) {
    shift += 113 - exponent;  // subnormal result
  } else {
    half_exponent = exponent - 112;
  }
  const std::uint32_t kept = mantissa >> shift;
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  const std::uint32_t half = 1u << (shift - 1);
  std::uint32_t result = (half_exponent == 0) ? kept : ((half_exponent << 10) | (kept & 0x3ffu));
  if (rest > half || (rest == half && (kept & 1u) != 0)) ++result;
  return float16{static_cast<std::uint16_t>(sign | result)};
}

}  // namespace deltron
