// Plain softmax cross entropy in double; a negative label masks its row.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace deltron::test {

struct ReferenceCrossEntropy {
  std::vector<double> loss, log_sum_exp;
};
inline ReferenceCrossEntropy reference_cross_entropy(const std::vector<double>& logits, const std::vector<std::int32_t>& labels,
                                                     std::int64_t vocab) {
  ReferenceCrossEntropy result;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    const double* x = logits.data() + row * static_cast<std::size_t>(vocab);
    double top = x[0], sum = 0;
    for (std::int64_t i = 1; i < vocab; ++i) top = x[i] > top ? x[i] : top;
    for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - top);
    const bool masked = labels[row] < 0;
    result.log_sum_exp.push_back(masked ? 0 : top + std::log(sum));
    result.loss.push_back(masked ? 0 : top + std::log(sum) - x[labels[row]]);
  }
  return result;
}

// dlogits = (softmax - onehot) dloss.
inline std::vector<double> reference_cross_entropy_gradient(const std::vector<double>& logits, const std::vector<std::int32_t>& labels,
                                                            const std::vector<double>& dloss, std::int64_t vocab) {
  std::vector<double> gradient(logits.size(), 0.0);
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0) continue;
    const std::size_t start = row * static_cast<std::size_t>(vocab);
    double top = logits[start], sum = 0;
    for (std::int64_t i = 1; i < vocab; ++i) top = std::fmax(top, logits[start + static_cast<std::size_t>(i)]);
    for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(logits[start + static_cast<std::size_t>(i)] - top);
    for (std::int64_t i = 0; i < vocab; ++i) {
      const double p = std::exp(logits[start + static_cast<std::size_t>(i)] - top) / sum;
      gradient[start + static_cast<std::size_t>(i)] = (p - (i == labels[row] ? 1 : 0)) * dloss[row];
    }
  }
  return gradient;
}

}  // namespace deltron::test
