// Plain double references of the kernels around the gated delta rule: causal convolution with SiLU, gated RMSNorm, L2 norm, each
// with its gradient. Contiguous tensors. Share no code with the kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace deltron::test {

using Values = std::vector<double>;

inline double reference_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double reference_silu_slope(double x) {
  const double s = reference_sigmoid(x);
  return s + x * s * (1 - s);
}

struct ConvReference {
  Values y, dx, dweight;
};
// x, dy [T,C]; weight [C,kernel].
inline ConvReference reference_causal_conv1d(const std::vector<std::int64_t>& offsets, std::int64_t channels, std::int64_t kernel,
                                             bool silu, const Values& x, const Values& weight, const Values& dy) {
  ConvReference r{Values(x.size()), Values(x.size()), Values(weight.size())};
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
    for (std::int64_t t = offsets[n]; t < offsets[n + 1]; ++t) {
      for (std::int64_t c = 0; c < channels; ++c) {
        double z = 0;
        for (std::int64_t i = 0; i < kernel; ++i) {
          const std::int64_t from = t - (kernel - 1) + i;
          if (from >= offsets[n]) z += weight[c * kernel + i] * x[from * channels + c];
        }
        r.y[t * channels + c] = silu ? z * reference_sigmoid(z) : z;
        const double dz = dy[t * channels + c] * (silu ? reference_silu_slope(z) : 1);
        for (std::int64_t i = 0; i < kernel; ++i) {
          const std::int64_t from = t - (kernel - 1) + i;
          if (from < offsets[n]) continue;
          r.dx[from * channels + c] += weight[c * kernel + i] * dz;
          r.dweight[c * kernel + i] += dz * x[from * channels + c];
        }
      }
    }
  }
  return r;
}

struct GatedNormReference {
  Values y, rstd, dx, dz, dweight;
};
// x, z, dy [heads in all, dim]; weight [dim].
inline GatedNormReference reference_gated_rms_norm(std::int64_t dim, bool zero_centered, double epsilon, const Values& x,
                                                   const Values& z, const Values& weight, const Values& dy) {
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / dim;
  GatedNormReference r{Values(x.size()), Values(static_cast<std::size_t>(rows)), Values(x.size()), Values(x.size()),
                       Values(weight.size())};
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t at = row * dim;
    double square = 0, along = 0;
    for (std::int64_t i = 0; i < dim; ++i) square += x[at + i] * x[at + i];
    const double rstd = 1 / std::sqrt(square / static_cast<double>(dim) + epsilon);
    r.rstd[row] = rstd;
    for (std::int64_t i = 0; i < dim; ++i) {
      const double w = weight[i] + (zero_centered ? 1 : 0), n = x[at + i] * rstd, gate = z[at + i] * reference_sigmoid(z[at + i]);
      r.y[at + i] = n * w * gate;
      along += dy[at + i] * gate * w * n / static_cast<double>(dim);
    }
    for (std::int64_t i = 0; i < dim; ++i) {
      const double w = weight[i] + (zero_centered ? 1 : 0), n = x[at + i] * rstd, gate = z[at + i] * reference_sigmoid(z[at + i]);
      r.dx[at + i] = rstd * (dy[at + i] * gate * w - n * along);
      r.dz[at + i] = dy[at + i] * n * w * reference_silu_slope(z[at + i]);
      r.dweight[i] += dy[at + i] * gate * n;
    }
  }
  return r;
}

struct L2NormReference {
  Values y, rstd, dx;
};
inline L2NormReference reference_l2_norm(std::int64_t dim, double epsilon, const Values& x, const Values& dy) {
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / dim;
  L2NormReference r{Values(x.size()), Values(static_cast<std::size_t>(rows)), Values(x.size())};
  for (std::int64_t row = 0; row < rows; ++row) {
    double square = 0, along = 0;
    for (std::int64_t i = row * dim; i < (row + 1) * dim; ++i) square += x[i] * x[i];
    r.rstd[row] = 1 / std::sqrt(square + epsilon);
    for (std::int64_t i = row * dim; i < (row + 1) * dim; ++i) along += x[i] * dy[i];
    // d/dx of x (|x|^2 + eps)^(-1/2), from x itself
    for (std::int64_t i = row * dim; i < (row + 1) * dim; ++i) {
      r.y[i] = x[i] * r.rstd[row];
      r.dx[i] = dy[i] * r.rstd[row] - x[i] * along * std::pow(r.rstd[row], 3);
    }
  }
  return r;
}

}  // namespace deltron::test
