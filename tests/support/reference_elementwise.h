// Plain elementwise functions in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "src/base/rng.h"

namespace deltron::test {

inline double reference_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// y = residual + x keep/(1-p), decision by (sample, offset, column) as base/rng.h says.
inline std::vector<double> reference_dropout_add(const std::vector<double>& x, const std::vector<double>& residual,
                                                 const std::vector<std::int64_t>& sample, const std::vector<std::int32_t>& offset,
                                                 std::uint64_t key, double p, std::int64_t cols) {
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(cols), col = i % static_cast<std::size_t>(cols);
    const Philox4 words = rng_words(key, static_cast<std::uint64_t>(sample[row]), static_cast<std::uint32_t>(offset[row]),
                                    static_cast<std::uint32_t>(col / 4));
    const bool keep = words.word[col % 4] >= dropout_threshold(p);
    y[i] = (residual.empty() ? 0 : residual[i]) + (keep ? x[i] / (1 - p) : 0);
  }
  return y;
}

}  // namespace deltron::test
