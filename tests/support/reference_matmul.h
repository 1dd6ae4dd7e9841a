// Plain matrix product in double.
#pragma once

#include <cstdint>
#include <vector>

namespace deltron::test {

// a [m,k], b [k,n] row-major; returns a b [m,n].
inline std::vector<double> reference_matmul(const std::vector<double>& a, const std::vector<double>& b, std::int64_t m, std::int64_t n,
                                            std::int64_t k) {
  std::vector<double> c(static_cast<std::size_t>(m * n), 0.0);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t l = 0; l < k; ++l) {
      for (std::int64_t j = 0; j < n; ++j) {
        c[static_cast<std::size_t>(i * n + j)] += a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
      }
    }
  }
  return c;
}

}  // namespace deltron::test
