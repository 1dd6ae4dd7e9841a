// Plain SwiGLU in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace deltron::test {

// h [rows, 2F], gate then up; y [rows, F].
inline std::vector<double> reference_swiglu(const std::vector<double>& h, std::int64_t ffn) {
  const std::size_t f = static_cast<std::size_t>(ffn), rows = h.size() / (2 * f);
  std::vector<double> y(rows * f);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < f; ++i) {
      const double gate = h[row * 2 * f + i];
      y[row * f + i] = gate / (1 + std::exp(-gate)) * h[row * 2 * f + f + i];
    }
  }
  return y;
}

inline std::vector<double> reference_swiglu_gradient(const std::vector<double>& h, const std::vector<double>& dy, std::int64_t ffn) {
  const std::size_t f = static_cast<std::size_t>(ffn), rows = h.size() / (2 * f);
  std::vector<double> dh(h.size());
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < f; ++i) {
      const double gate = h[row * 2 * f + i], up = h[row * 2 * f + f + i], slope = dy[row * f + i];
      const double e = std::exp(-gate);
      dh[row * 2 * f + i] = slope * up * (1 + e + gate * e) / ((1 + e) * (1 + e));
      dh[row * 2 * f + f + i] = slope * gate / (1 + e);
    }
  }
  return dh;
}

}  // namespace deltron::test
