// Plain RMSNorm in double: forward and its derivative, row by row.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace deltron::test {

struct ReferenceRmsNorm {
  std::vector<double> y, rstd;
};
// x [rows, cols], weight [cols].
inline ReferenceRmsNorm reference_rms_norm(const std::vector<double>& x, const std::vector<double>& weight, std::int64_t cols,
                                           bool zero_centered, double epsilon) {
  ReferenceRmsNorm result;
  result.y.resize(x.size());
  for (std::size_t start = 0; start < x.size(); start += static_cast<std::size_t>(cols)) {
    double squares = 0;
    for (std::int64_t i = 0; i < cols; ++i) squares += x[start + static_cast<std::size_t>(i)] * x[start + static_cast<std::size_t>(i)];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(cols) + epsilon);
    result.rstd.push_back(rstd);
    for (std::size_t i = 0; i < static_cast<std::size_t>(cols); ++i) {
      result.y[start + i] = x[start + i] * rstd * (zero_centered ? 1 + weight[i] : weight[i]);
    }
  }
  return result;
}

struct ReferenceRmsNormGradient {
  std::vector<double> dx, dweight;
};
// By the chain rule through rstd: d rstd/dx_i = -rstd^3 x_i / cols.
inline ReferenceRmsNormGradient reference_rms_norm_gradient(const std::vector<double>& x, const std::vector<double>& weight,
                                                            const std::vector<double>& dy, std::int64_t cols, bool zero_centered,
                                                            double epsilon) {
  const ReferenceRmsNorm forward = reference_rms_norm(x, weight, cols, zero_centered, epsilon);
  ReferenceRmsNormGradient result{std::vector<double>(x.size()), std::vector<double>(static_cast<std::size_t>(cols), 0.0)};
  for (std::size_t row = 0; row < forward.rstd.size(); ++row) {
    const std::size_t start = row * static_cast<std::size_t>(cols);
    const double rstd = forward.rstd[row];
    double d_rstd = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(cols); ++i) {
      d_rstd += dy[start + i] * x[start + i] * (zero_centered ? 1 + weight[i] : weight[i]);
      result.dweight[i] += dy[start + i] * x[start + i] * rstd;
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(cols); ++i) {
      const double w = zero_centered ? 1 + weight[i] : weight[i];
      result.dx[start + i] = dy[start + i] * w * rstd - d_rstd * rstd * rstd * rstd * x[start + i] / static_cast<double>(cols);
    }
  }
  return result;
}

}  // namespace deltron::test
