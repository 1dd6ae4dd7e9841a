// The gated delta rule token by token in double precision, and its reverse mode: what the chunked kernels are judged against.
// Shares no code with them. Contiguous tensors, documents packed.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace deltron::test {

struct DeltaRuleProblem {
  std::int64_t key_heads = 1, value_heads = 1, key_dim = 4, value_dim = 4;
  std::vector<std::int64_t> offsets;  // [N+1]
  bool raw = false, allow_neg_eigval = false, l2norm = false;
  double scale = 1;
  std::vector<double> q, k;            // [T,Hk,K]
  std::vector<double> v;               // [T,Hv,V]
  std::vector<double> decay, beta;     // [T,Hv]
  std::vector<double> A_log, dt_bias;  // [Hv], raw only
  std::vector<double> initial_state;   // [N,Hv,K,V], empty: zero
  std::vector<double> d_o;             // [T,Hv,V]
  std::vector<double> d_final_state;   // [N,Hv,K,V], empty: zero

  std::int64_t tokens() const { return offsets.back(); }
  std::int64_t documents() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

struct DeltaRuleResult {
  std::vector<double> o, final_state;
  std::vector<double> d_q, d_k, d_v, d_decay, d_beta, d_A_log, d_dt_bias, d_initial_state;
};

inline DeltaRuleResult reference_gated_delta_rule(const DeltaRuleProblem& p) {
  const std::int64_t T = p.tokens(), N = p.documents(), Hk = p.key_heads, Hv = p.value_heads, K = p.key_dim, V = p.value_dim;
  const auto zeros = [](std::int64_t n) { return std::vector<double>(static_cast<std::size_t>(n), 0.0); };
  DeltaRuleResult r{zeros(T * Hv * V), zeros(N * Hv * K * V), zeros(T * Hk * K), zeros(T * Hk * K), zeros(T * Hv * V),
                    zeros(T * Hv),     zeros(T * Hv),         zeros(Hv),         zeros(Hv),         zeros(N * Hv * K * V)};
  const auto normalise = [&](const double* x, double* y) {  // returns 1/norm
    double sum = 0;
    for (std::int64_t i = 0; i < K; ++i) sum += x[i] * x[i];
    const double inverse = p.l2norm ? 1 / std::sqrt(sum + 1e-6) : 1;
    for (std::int64_t i = 0; i < K; ++i) y[i] = x[i] * inverse;
    return inverse;
  };
  const auto denormalise = [&](const double* y, double inverse, const double* dy, double* dx) {
    double along = 0;
    for (std::int64_t i = 0; i < K; ++i) along += y[i] * dy[i];
    for (std::int64_t i = 0; i < K; ++i) dx[i] += p.l2norm ? inverse * (dy[i] - y[i] * along) : dy[i];
  };
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t h = 0; h < Hv; ++h) {
      const std::int64_t begin = p.offsets[n], length = p.offsets[n + 1] - begin, hk = h / (Hv / Hk), at = (n * Hv + h) * K * V;
      std::vector<std::vector<double>> before, decayed;  // S_{t-1}; e^g S_{t-1}
      std::vector<double> S = zeros(K * V);
      if (!p.initial_state.empty()) S.assign(p.initial_state.begin() + at, p.initial_state.begin() + at + K * V);
      std::vector<double> q = zeros(K), k = zeros(K), u = zeros(V), e = zeros(V);
      const auto gate = [&](std::int64_t t) {
        const double x = p.decay[t * Hv + h];
        if (!p.raw) return x;
        const double y = x + p.dt_bias[h];
        return -std::exp(p.A_log[h]) * (y > 20 ? y : std::log1p(std::exp(y)));
      };
      const auto strength = [&](std::int64_t t) {
        const double x = p.beta[t * Hv + h];
        return p.raw ? (p.allow_neg_eigval ? 2 : 1) / (1 + std::exp(-x)) : x;
      };
      const auto update = [&](std::int64_t t, const std::vector<double>& R) {  // e = R^T k, u = beta (v - e)
        for (std::int64_t j = 0; j < V; ++j) {
          e[j] = 0;
          for (std::int64_t i = 0; i < K; ++i) e[j] += R[i * V + j] * k[i];
          u[j] = strength(t) * (p.v[(t * Hv + h) * V + j] - e[j]);
        }
      };
      for (std::int64_t s = 0; s < length; ++s) {
        const std::int64_t t = begin + s;
        normalise(&p.q[(t * Hk + hk) * K], q.data());
        normalise(&p.k[(t * Hk + hk) * K], k.data());
        before.push_back(S);
        const double factor = std::exp(gate(t));
        for (double& value : S) value *= factor;
        decayed.push_back(S);
        update(t, S);
        for (std::int64_t i = 0; i < K; ++i) {
          for (std::int64_t j = 0; j < V; ++j) S[i * V + j] += k[i] * u[j];
        }
        for (std::int64_t j = 0; j < V; ++j) {
          double sum = 0;
          for (std::int64_t i = 0; i < K; ++i) sum += S[i * V + j] * q[i];
          r.o[(t * Hv + h) * V + j] = p.scale * sum;
        }
      }
      std::copy(S.begin(), S.end(), r.final_state.begin() + at);

      std::vector<double> D = zeros(K * V);
      if (!p.d_final_state.empty()) D.assign(p.d_final_state.begin() + at, p.d_final_state.begin() + at + K * V);
      for (std::int64_t s = length - 1; s >= 0; --s) {
        const std::int64_t t = begin + s;
        const double q_norm = normalise(&p.q[(t * Hk + hk) * K], q.data());
        const double k_norm = normalise(&p.k[(t * Hk + hk) * K], k.data());
        const std::vector<double>& R = decayed[s];
        update(t, R);
        const double* d_o = &p.d_o[(t * Hv + h) * V];
        std::vector<double> dq = zeros(K), dk = zeros(K), du = zeros(V);
        for (std::int64_t i = 0; i < K; ++i) {
          for (std::int64_t j = 0; j < V; ++j) {
            D[i * V + j] += p.scale * q[i] * d_o[j];
            dq[i] += p.scale * (R[i * V + j] + k[i] * u[j]) * d_o[j];
          }
        }
        for (std::int64_t i = 0; i < K; ++i) {
          for (std::int64_t j = 0; j < V; ++j) {
            du[j] += D[i * V + j] * k[i];
            dk[i] += D[i * V + j] * u[j];
          }
        }
        double d_beta = 0, d_g = 0;
        for (std::int64_t j = 0; j < V; ++j) {
          d_beta += du[j] * (p.v[(t * Hv + h) * V + j] - e[j]);
          r.d_v[(t * Hv + h) * V + j] = strength(t) * du[j];
        }
        for (std::int64_t i = 0; i < K; ++i) {
          for (std::int64_t j = 0; j < V; ++j) {
            const double d_e = -strength(t) * du[j];
            dk[i] += R[i * V + j] * d_e;
            D[i * V + j] += k[i] * d_e;
            d_g += D[i * V + j] * R[i * V + j];
          }
        }
        for (double& value : D) value *= std::exp(gate(t));
        denormalise(q.data(), q_norm, dq.data(), &r.d_q[(t * Hk + hk) * K]);
        denormalise(k.data(), k_norm, dk.data(), &r.d_k[(t * Hk + hk) * K]);
        if (p.raw) {
          const double y = p.decay[t * Hv + h] + p.dt_bias[h];
          const double d_alpha = -std::exp(p.A_log[h]) * (y > 20 ? 1 : 1 / (1 + std::exp(-y))) * d_g;
          r.d_A_log[h] += d_g * gate(t);
          r.d_dt_bias[h] += d_alpha;
          d_g = d_alpha;
          const double sigma = 1 / (1 + std::exp(-p.beta[t * Hv + h]));
          d_beta *= (p.allow_neg_eigval ? 2 : 1) * sigma * (1 - sigma);
        }
        r.d_decay[t * Hv + h] = d_g;
        r.d_beta[t * Hv + h] = d_beta;
      }
      std::copy(D.begin(), D.end(), r.d_initial_state.begin() + at);
    }
  }
  return r;
}

}  // namespace deltron::test
