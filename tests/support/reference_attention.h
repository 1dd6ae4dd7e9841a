// Plain double-precision attention, one loop a sum: what the kernels are judged by. Shares no code with them; only the address of a
// dropout decision (base/rng.h) is common, being part of the definition. Tensors are contiguous [tokens, heads, dim].
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/base/rng.h"

namespace deltron::test {

struct ReferenceAttention {
  std::int64_t query_heads = 1, kv_heads = 1, dim = 1;
  std::vector<std::int64_t> cu_seqlens;
  double scale = 1;
  double drop_probability = 0;
  std::uint64_t key = 0;
  std::vector<std::int64_t> token_sample;  // needed with dropout only
  std::vector<std::int32_t> token_offset;

  std::int64_t tokens() const { return cu_seqlens.back(); }

  // 1/(1-p) or 0 for query token `token`, query head `head`, key j of the document.
  double keep(std::int64_t token, std::int64_t head, std::int64_t j) const {
    if (drop_probability == 0) return 1;
    const std::uint32_t block = static_cast<std::uint32_t>(head * (1 << 20) + j / 4);
    const Philox4 words =
        rng_words(key, static_cast<std::uint64_t>(token_sample[token]), static_cast<std::uint32_t>(token_offset[token]), block);
    return words.word[j % 4] >= dropout_threshold(drop_probability) ? 1 / (1 - drop_probability) : 0;
  }

  // Softmax row of query i of a document, over keys 0..i.
  std::vector<double> probabilities(const std::vector<double>& q, const std::vector<double>& k, std::int64_t begin, std::int64_t i,
                                    std::int64_t head, double* log_sum_exp) const {
    std::vector<double> row(static_cast<std::size_t>(i + 1));
    const std::int64_t kv_head = head / (query_heads / kv_heads);
    double highest = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j <= i; ++j) {
      double dot = 0;
      for (std::int64_t c = 0; c < dim; ++c) {
        dot += q[((begin + i) * query_heads + head) * dim + c] * k[((begin + j) * kv_heads + kv_head) * dim + c];
      }
      row[j] = dot * scale;
      highest = std::max(highest, row[j]);
    }
    double sum = 0;
    for (double& value : row) sum += std::exp(value - highest);
    *log_sum_exp = highest + std::log(sum);
    for (double& value : row) value = std::exp(value - *log_sum_exp);
    return row;
  }

  struct Output {
    std::vector<double> o, log_sum_exp;
  };
  Output forward(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v) const {
    Output out;
    out.o.assign(q.size(), 0);
    out.log_sum_exp.assign(static_cast<std::size_t>(tokens() * query_heads), 0);
    for (std::size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
      const std::int64_t begin = cu_seqlens[n];
      for (std::int64_t i = 0; begin + i < cu_seqlens[n + 1]; ++i) {
        for (std::int64_t h = 0; h < query_heads; ++h) {
          const std::int64_t kv_head = h / (query_heads / kv_heads), row = (begin + i) * query_heads + h;
          const std::vector<double> p = probabilities(q, k, begin, i, h, &out.log_sum_exp[row]);
          for (std::int64_t j = 0; j <= i; ++j) {
            const double weight = p[j] * keep(begin + i, h, j);
            for (std::int64_t c = 0; c < dim; ++c) out.o[row * dim + c] += weight * v[((begin + j) * kv_heads + kv_head) * dim + c];
          }
        }
      }
    }
    return out;
  }

  struct Gradients {
    std::vector<double> dq, dk, dv;
  };
  Gradients backward(const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
                     const std::vector<double>& d_o) const {
    Gradients g{std::vector<double>(q.size()), std::vector<double>(k.size()), std::vector<double>(v.size())};
    for (std::size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
      const std::int64_t begin = cu_seqlens[n];
      for (std::int64_t i = 0; begin + i < cu_seqlens[n + 1]; ++i) {
        for (std::int64_t h = 0; h < query_heads; ++h) {
          const std::int64_t kv_head = h / (query_heads / kv_heads), row = ((begin + i) * query_heads + h) * dim;
          double unused = 0, mean = 0;
          const std::vector<double> p = probabilities(q, k, begin, i, h, &unused);
          std::vector<double> dp(p.size(), 0);
          for (std::int64_t j = 0; j <= i; ++j) {
            const std::int64_t key_row = ((begin + j) * kv_heads + kv_head) * dim;
            const double kept = keep(begin + i, h, j);
            for (std::int64_t c = 0; c < dim; ++c) {
              dp[j] += kept * d_o[row + c] * v[key_row + c];
              g.dv[key_row + c] += kept * p[j] * d_o[row + c];
            }
            mean += p[j] * dp[j];
          }
          for (std::int64_t j = 0; j <= i; ++j) {
            const std::int64_t key_row = ((begin + j) * kv_heads + kv_head) * dim;
            const double ds = p[j] * (dp[j] - mean) * scale;
            for (std::int64_t c = 0; c < dim; ++c) {
              g.dq[row + c] += ds * k[key_row + c];
              g.dk[key_row + c] += ds * q[row + c];
            }
          }
        }
      }
    }
    return g;
  }
};

}  // namespace deltron::test
