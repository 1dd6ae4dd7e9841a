// Gated delta rule 2 token by token in double precision, and its reverse mode: what the chunked kernels are judged against. Shares
// no code with them. Contiguous tensors, documents packed. Also Kimi Delta Attention, from its own recurrence, forward only.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace deltron::test {

struct DeltaRule2Problem {
  std::int64_t key_heads = 1, value_heads = 1, gate_heads = 1, key_dim = 4, value_dim = 4;
  std::vector<std::int64_t> offsets;  // [N+1]
  bool raw = false, allow_neg_eigval = false, l2norm = false;
  double scale = 1;
  std::vector<double> q, k;           // [T,Hk,K]
  std::vector<double> v;              // [T,Hv,V]
  std::vector<double> decay, erase;   // [T,Hg,K]
  std::vector<double> write;          // [T,Hv,V]
  std::vector<double> A_log;          // [Hg], raw only
  std::vector<double> dt_bias;        // [Hg*K], raw only
  std::vector<double> initial_state;  // [N,Hv,K,V], empty: zero
  std::vector<double> d_o;            // [T,Hv,V]
  std::vector<double> d_final_state;  // [N,Hv,K,V], empty: zero

  std::int64_t tokens() const { return offsets.back(); }
  std::int64_t documents() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

struct DeltaRule2Result {
  std::vector<double> o, final_state;
  std::vector<double> d_q, d_k, d_v, d_decay, d_erase, d_write, d_A_log, d_dt_bias, d_initial_state;
};

inline DeltaRule2Result reference_gated_delta_rule_2(const DeltaRule2Problem& p) {
  const std::int64_t T = p.tokens(), N = p.documents(), Hk = p.key_heads, Hv = p.value_heads, Hg = p.gate_heads, K = p.key_dim,
                     V = p.value_dim;
  const auto zeros = [](std::int64_t n) { return std::vector<double>(static_cast<std::size_t>(n), 0.0); };
  DeltaRule2Result r{zeros(T * Hv * V), zeros(N * Hv * K * V), zeros(T * Hk * K),    zeros(T * Hk * K),
                     zeros(T * Hv * V), zeros(T * Hg * K),     zeros(T * Hg * K),    zeros(T * Hv * V),
                     zeros(Hg),         zeros(Hg * K),         zeros(N * Hv * K * V)};
  const auto sigma = [](double x) { return 1 / (1 + std::exp(-x)); };
  const auto normalised = [&](const std::vector<double>& x, std::int64_t at, double& inverse) {
    double sum = 0;
    for (std::int64_t i = 0; i < K; ++i) sum += x[at + i] * x[at + i];
    inverse = p.l2norm ? 1 / std::sqrt(sum + 1e-6) : 1;
    std::vector<double> y(x.begin() + at, x.begin() + at + K);
    for (double& value : y) value *= inverse;
    return y;
  };
  const auto denormalise = [&](const std::vector<double>& y, double inverse, const std::vector<double>& dy, double* dx) {
    double along = 0;
    for (std::int64_t i = 0; i < K; ++i) along += y[i] * dy[i];
    for (std::int64_t i = 0; i < K; ++i) dx[i] += p.l2norm ? inverse * (dy[i] - y[i] * along) : dy[i];
  };
  for (std::int64_t n = 0; n < N; ++n) {
    for (std::int64_t h = 0; h < Hv; ++h) {
      const std::int64_t begin = p.offsets[n], length = p.offsets[n + 1] - begin, at = (n * Hv + h) * K * V;
      const std::int64_t hk = h / (Hv / Hk), hg = h / (Hv / Hg);
      const auto log_decay = [&](std::int64_t t, std::int64_t i) {
        const double x = p.decay[(t * Hg + hg) * K + i];
        if (!p.raw) return x;
        const double y = x + p.dt_bias[hg * K + i];
        return -std::exp(p.A_log[hg]) * (y > 20 ? y : std::log1p(std::exp(y)));
      };
      const auto b = [&](std::int64_t t, std::int64_t i) {
        const double x = p.erase[(t * Hg + hg) * K + i];
        return p.raw ? (p.allow_neg_eigval ? 2 : 1) * sigma(x) : x;
      };
      const auto w = [&](std::int64_t t, std::int64_t j) {
        const double x = p.write[(t * Hv + h) * V + j];
        return p.raw ? sigma(x) : x;
      };
      std::vector<std::vector<double>> decayed;  // Diag(e^g) S_{t-1}
      std::vector<double> S = zeros(K * V);
      if (!p.initial_state.empty()) S.assign(p.initial_state.begin() + at, p.initial_state.begin() + at + K * V);
      const auto updates = [&](std::int64_t t, const std::vector<double>& R, const std::vector<double>& k) {
        std::vector<double> u = zeros(V);
        for (std::int64_t j = 0; j < V; ++j) {
          u[j] = w(t, j) * p.v[(t * Hv + h) * V + j];
          for (std::int64_t i = 0; i < K; ++i) u[j] -= b(t, i) * k[i] * R[i * V + j];
        }
        return u;
      };
      double norm = 1;
      for (std::int64_t t = begin; t < begin + length; ++t) {
        const std::vector<double> q = normalised(p.q, (t * Hk + hk) * K, norm), k = normalised(p.k, (t * Hk + hk) * K, norm);
        for (std::int64_t i = 0; i < K; ++i) {
          for (std::int64_t j = 0; j < V; ++j) S[i * V + j] *= std::exp(log_decay(t, i));
        }
        decayed.push_back(S);
        const std::vector<double> u = updates(t, S, k);
        for (std::int64_t i = 0; i < K; ++i) {
          for (std::int64_t j = 0; j < V; ++j) S[i * V + j] += k[i] * u[j];
        }
        for (std::int64_t j = 0; j < V; ++j) {
          for (std::int64_t i = 0; i < K; ++i) r.o[(t * Hv + h) * V + j] += p.scale * S[i * V + j] * q[i];
        }
      }
      std::copy(S.begin(), S.end(), r.final_state.begin() + at);

      std::vector<double> D = zeros(K * V);
      if (!p.d_final_state.empty()) D.assign(p.d_final_state.begin() + at, p.d_final_state.begin() + at + K * V);
      for (std::int64_t t = begin + length - 1; t >= begin; --t) {
        double q_norm = 1, k_norm = 1;
        const std::vector<double> q = normalised(p.q, (t * Hk + hk) * K, q_norm), k = normalised(p.k, (t * Hk + hk) * K, k_norm);
        const std::vector<double>& R = decayed[t - begin];
        const std::vector<double> u = updates(t, R, k);
        const double* d_o = &p.d_o[(t * Hv + h) * V];
        std::vector<double> dq = zeros(K), dk = zeros(K), du = zeros(V);
        for (std::int64_t i = 0; i < K; ++i) {
          for (std::int64_t j = 0; j < V; ++j) {
            D[i * V + j] += p.scale * q[i] * d_o[j];
            dq[i] += p.scale * (R[i * V + j] + k[i] * u[j]) * d_o[j];
            du[j] += k[i] * D[i * V + j];
            dk[i] += u[j] * D[i * V + j];
          }
        }
        for (std::int64_t j = 0; j < V; ++j) {
          const std::int64_t index = (t * Hv + h) * V + j;
          r.d_v[index] = w(t, j) * du[j];
          r.d_write[index] = p.v[index] * du[j] * (p.raw ? w(t, j) * (1 - w(t, j)) : 1);
        }
        for (std::int64_t i = 0; i < K; ++i) {
          const std::int64_t index = (t * Hg + hg) * K + i;
          double dc = 0, dg = 0;
          for (std::int64_t j = 0; j < V; ++j) dc -= du[j] * R[i * V + j];
          dk[i] += b(t, i) * dc;
          for (std::int64_t j = 0; j < V; ++j) {
            D[i * V + j] -= b(t, i) * k[i] * du[j];
            dg += R[i * V + j] * D[i * V + j];
            D[i * V + j] *= std::exp(log_decay(t, i));
          }
          double db = k[i] * dc;
          if (p.raw) {
            const double y = p.decay[index] + p.dt_bias[hg * K + i];
            r.d_A_log[hg] += dg * log_decay(t, i);
            dg *= -std::exp(p.A_log[hg]) * (y > 20 ? 1 : sigma(y));
            r.d_dt_bias[hg * K + i] += dg;
            const double s = sigma(p.erase[index]);
            db *= (p.allow_neg_eigval ? 2 : 1) * s * (1 - s);
          }
          r.d_decay[index] += dg;
          r.d_erase[index] += db;
        }
        denormalise(q, q_norm, dq, &r.d_q[(t * Hk + hk) * K]);
        denormalise(k, k_norm, dk, &r.d_k[(t * Hk + hk) * K]);
      }
      std::copy(D.begin(), D.end(), r.d_initial_state.begin() + at);
    }
  }
  return r;
}

// Kimi Delta Attention with one head: S_t = (I - beta k k^T) Diag(e^g) S_{t-1} + beta k v^T, o = scale S^T q. q, k as given.
inline std::vector<double> reference_kda(std::int64_t tokens, std::int64_t K, std::int64_t V, double scale,
                                         const std::vector<double>& q, const std::vector<double>& k, const std::vector<double>& v,
                                         const std::vector<double>& g, const std::vector<double>& beta) {
  std::vector<double> S(static_cast<std::size_t>(K * V), 0.0), o(static_cast<std::size_t>(tokens * V), 0.0);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < V; ++j) {
      double seen = 0;
      for (std::int64_t i = 0; i < K; ++i) seen += k[t * K + i] * std::exp(g[t * K + i]) * S[i * V + j];
      for (std::int64_t i = 0; i < K; ++i) {
        S[i * V + j] = std::exp(g[t * K + i]) * S[i * V + j] + beta[t] * k[t * K + i] * (v[t * V + j] - seen);
        o[t * V + j] += scale * q[t * K + i] * S[i * V + j];
      }
    }
  }
  return o;
}

}  // namespace deltron::test
