// Gradients of one chunk of the gated delta rule (docs/gdn.md section 7): scratch of a thread and the steps that
// gated_delta_rule_backward.cpp puts in order. Compiled once a Highway target.
#if defined(DELTRON_KERNELS_CPU_DELTA_RULE_BACKWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_DELTA_RULE_BACKWARD_INL_H
#undef DELTRON_KERNELS_CPU_DELTA_RULE_BACKWARD_INL_H
#else
#define DELTRON_KERNELS_CPU_DELTA_RULE_BACKWARD_INL_H
#endif

#include "kernels/cpu/delta_rule_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

template <class T>
struct BackwardScratch {
  KeyTiles<T> keys;
  T* decay;     // [64, 64] Gamma
  T* p;         // [64, 64] s P
  T* t;         // [64, 64]
  T* x;         // [64, 64] dO U^T, then dP o Gamma
  T* n;         // [64, 64] Z U^T, then N
  T* scaled;    // [64, Kp]
  T* d_q;       // [64, Kp] sums over the group
  T* d_k;       // [64, Kp]
  T* d_o;       // [64, Vp]
  T* d_u;       // [64, Vp]
  T* z;         // [64, Vp]
  T* v_scaled;  // [64, Vp]
  T* u_t;       // [Vp, 64]
  T* state_t;   // [Vp, Kp]
  T* states;    // [group, K, Vp] states on the way forward, their gradients on the way back

  void carve(Carver& carver, const DeltaRuleInputs& in) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value();
    keys.carve(carver, kp);
    for (T** square : {&decay, &p, &t, &x, &n}) *square = carver.take<T>(kChunk * kChunk);
    for (T** tile : {&scaled, &d_q, &d_k}) *tile = carver.take<T>(kChunk * kp);
    for (T** tile : {&d_o, &d_u, &z, &v_scaled, &u_t}) *tile = carver.take<T>(kChunk * vp);
    state_t = carver.take<T>(vp * kp);
    states = carver.take<T>(in.group() * in.key_dim * vp);
  }

  void load_chunk(const DeltaRuleInputs& in, const Chunk& chunk, std::int64_t key_head) {
    keys.load_keys(in, chunk, key_head);
    keys.load_queries(in, chunk, key_head);
    keys.transpose_keys(in, chunk);
    keys.key_products(in, chunk);
    keys.query_products(in, chunk);
  }
  // Keys as load_inverse needs them.
  void load_keys(const DeltaRuleInputs& in, const Chunk& chunk, std::int64_t key_head) {
    keys.load_keys(in, chunk, key_head);
    if (!refines_inverse(in)) return;
    keys.transpose_keys(in, chunk);
    keys.key_products(in, chunk);
  }
  // t = the kept T. One that was rounded to bf16 first gets the Newton step (6.2): with beta near 2 and parallel
  // keys its rounding alone would cost dg 3 %. Uses decay, p, x and n as scratch.
  void load_inverse(const DeltaRuleInputs& in, const GatedDeltaRuleBackwardArgs& args, const Chunk& chunk, std::int64_t head,
                    const ChunkGates<T>& gates) {
    const HeadView view{args.t_inverse, 0, in.value_heads * kChunk, kChunk};
    const std::int64_t tokens = chunk.tokens, padded = round_up_16(tokens);
    load_tile<T>(in.dtype, view, in.documents, chunk, head, padded, t, kChunk);
    if (!refines_inverse(in)) return;
    decay_matrix(gates, tokens, decay);
    decayed<T>(decay, keys.kk, gates.beta, 0, true, tokens, n);
    multiply<Part::LowerA, false>(n, kChunk, t, kChunk, x, kChunk, tokens, padded, tokens, false);
    for (std::int64_t i = 0; i < tokens; ++i) {
      for (std::int64_t j = 0; j < padded; ++j) {
        p[i * kChunk + j] = t[i * kChunk + j];
        x[i * kChunk + j] = (i == j ? T(1) : T(0)) - t[i * kChunk + j] - x[i * kChunk + j];
      }
    }
    multiply<Part::LowerA, false>(p, kChunk, x, kChunk, t, kChunk, tokens, padded, tokens, true);
  }
  static bool refines_inverse(const DeltaRuleInputs& in) { return in.dtype != compute_dtype(in.dtype); }
  void load_output_gradient(const DeltaRuleInputs& in, const GatedDeltaRuleBackwardArgs& args, const Chunk& chunk,
                            std::int64_t head) {
    load_tile<T>(in.dtype, args.d_o, in.documents, chunk, head, in.value_dim, d_o, in.padded_value());
  }
  void load_head(const DeltaRuleInputs& in, const GatedDeltaRuleBackwardArgs& args, const Chunk& chunk, std::int64_t head,
                 const ChunkGates<T>& gates) {
    load_inverse(in, args, chunk, head, gates);
    load_output_gradient(in, args, chunk, head);
    decay_matrix(gates, chunk.tokens, decay);
    decayed<T>(decay, keys.qk, nullptr, static_cast<T>(in.scale), false, chunk.tokens, p);
  }
  // Through the normalisation, then out.
  void store_keys(const DeltaRuleInputs& in, const GatedDeltaRuleBackwardArgs& args, const Chunk& chunk, std::int64_t key_head) {
    const std::int64_t kp = in.padded_key();
    if (in.use_qk_l2norm) {
      normalise_rows_backward(d_q, keys.q, keys.q_rstd, chunk.tokens, kp);
      normalise_rows_backward(d_k, keys.k, keys.k_rstd, chunk.tokens, kp);
    }
    store_tile<T>(in.dtype, args.dq, in.documents, chunk, key_head, in.key_dim, d_q, kp);
    store_tile<T>(in.dtype, args.dk, in.documents, chunk, key_head, in.key_dim, d_k, kp);
  }
};

// dU of what the chunk's own outputs read: s P^T dO, the first term of (7.1).
template <class T>
void local_update_gradient(const DeltaRuleInputs& in, std::int64_t tokens, const BackwardScratch<T>& s, T* d_u) {
  const std::int64_t vp = in.padded_value();
  multiply<Part::LowerA, true>(s.p, kChunk, s.d_o, vp, d_u, vp, tokens, vp, tokens, false);
}

// (7.1) dU += e^(gamma_last - gamma) (K D');  (7.2) Z = T^T dU.
template <class T>
void update_gradient(const DeltaRuleInputs& in, std::int64_t tokens, const ChunkGates<T>& gates, const T* k, const T* t,
                     const T* d_state, T* d_u, T* z, T* scaled) {
  const std::int64_t kp = in.padded_key(), vp = in.padded_value();
  scale_rows(k, gates.to_end, scaled, tokens, kp);
  multiply<Part::Full, false>(scaled, kp, d_state, vp, d_u, vp, tokens, vp, in.key_dim, true);
  multiply<Part::LowerA, true>(t, kChunk, d_u, vp, z, vp, tokens, vp, tokens, false);
}

// (7.9) D = e^gamma_last D' + s Q^T (e^gamma dO) - K^T (e^gamma beta Z).
template <class T>
void state_gradient(const DeltaRuleInputs& in, std::int64_t tokens, const ChunkGates<T>& gates, const T* q, const T* k,
                    const T* d_o, const T* z, T* v_scaled, T* d_state) {
  const std::int64_t kp = in.padded_key(), vp = in.padded_value();
  HWY_ALIGN T factor[kChunk];
  scale_in_place(d_state, gates.whole, in.key_dim * vp);
  for (std::int64_t i = 0; i < tokens; ++i) factor[i] = static_cast<T>(in.scale) * gates.from_start[i];
  scale_rows(d_o, factor, v_scaled, tokens, vp);
  multiply<Part::Full, true>(q, kp, v_scaled, vp, d_state, vp, in.key_dim, vp, tokens, true);
  for (std::int64_t i = 0; i < tokens; ++i) factor[i] = -gates.from_start[i] * gates.beta[i];
  scale_rows(z, factor, v_scaled, tokens, vp);
  multiply<Part::Full, true>(k, kp, v_scaled, vp, d_state, vp, in.key_dim, vp, tokens, true);
}

// x: dO U^T -> X = s (dO U^T) o Gamma (7.4);  n: Z U^T -> N = -beta_i Gamma o (Z U^T) below the diagonal (7.5);  both zero above
// it. d_beta_i -= sum_j (Z U^T o Gamma o K K^T)_ij (7.8);  straddling_t = sum over i >= t > j of (X o Q K^T + N o K K^T)_ij, the
// first term of (7.10): kept as column sums of the rows from the last one up, so that nothing cancels and row 0 is exactly zero.
template <class T>
void pair_gradients(std::int64_t tokens, T scale, const ChunkGates<T>& gates, const BackwardScratch<T>& s, T* d_beta,
                    T* straddling) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t padded = round_up_16(tokens);
  const auto factor = hn::Set(d, scale);
  HWY_ALIGN T columns[kChunk] = {};
  for (std::int64_t i = tokens - 1; i >= 0; --i) {
    const auto minus_beta = hn::Set(d, -gates.beta[i]);
    const std::int64_t row = i * kChunk;
    auto beta_sum = hn::Zero(d);
    auto straddling_sum = hn::Zero(d);
    std::int64_t j = 0;
    for (; j <= i; j += lanes) {
      const auto gamma = hn::LoadU(d, s.decay + row + j);  // zero above the diagonal
      const auto kk = hn::LoadU(d, s.keys.kk + row + j);
      auto x = hn::Mul(factor, hn::Mul(gamma, hn::LoadU(d, s.x + row + j)));
      auto zu = hn::Mul(gamma, hn::LoadU(d, s.n + row + j));
      auto kk_valid = kk;
      auto qk_valid = hn::LoadU(d, s.keys.qk + row + j);
      if (j + lanes > i) {
        const auto strict = hn::FirstN(d, static_cast<std::size_t>(i - j));
        const auto valid = hn::FirstN(d, static_cast<std::size_t>(i + 1 - j));
        x = hn::IfThenElseZero(valid, x);
        zu = hn::IfThenElseZero(strict, zu);
        kk_valid = hn::IfThenElseZero(strict, kk_valid);
        qk_valid = hn::IfThenElseZero(strict, qk_valid);
      }
      const auto n = hn::Mul(minus_beta, zu);
      beta_sum = hn::MulAdd(zu, kk_valid, beta_sum);
      hn::StoreU(x, d, s.x + row + j);
      hn::StoreU(n, d, s.n + row + j);
      // Column sums over rows >= i; of this row's own columns only j < i straddle token i.
      const auto column = hn::MulAdd(n, kk_valid, hn::MulAdd(x, qk_valid, hn::LoadU(d, columns + j)));
      hn::StoreU(column, d, columns + j);
      straddling_sum = hn::Add(straddling_sum,
                               j + lanes > i ? hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(i - j)), column) : column);
    }
    for (; j < padded; j += lanes) {
      hn::StoreU(hn::Zero(d), d, s.x + row + j);
      hn::StoreU(hn::Zero(d), d, s.n + row + j);
    }
    d_beta[i] -= sum_lanes(d, beta_sum);
    straddling[i] = sum_lanes(d, straddling_sum);
  }
}

// Everything that needs S, D' and Z of one chunk and value head: dv, gradients of the gates, and this head's share of dq and dk.
template <class T>
void head_gradients(const DeltaRuleInputs& in, const GatedDeltaRuleBackwardArgs& args, const Chunk& chunk, std::int64_t head,
                    const ChunkGates<T>& gates, bool first_of_group, const T* state, const T* d_state, const T* y, const T* u,
                    const T* z, BackwardScratch<T>& s, double* gate_partial) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t kp = in.padded_key(), vp = in.padded_value(), tokens = chunk.tokens, padded = round_up_16(tokens);
  const T* q = s.keys.q;
  const T* k = s.keys.k;
  const T scale = static_cast<T>(in.scale);
  HWY_ALIGN T d_beta[kChunk];
  HWY_ALIGN T straddling[kChunk];  // part of dg from pairs
  HWY_ALIGN T suffix[kChunk];      // dg_t gets the sum over i >= t
  HWY_ALIGN T prefix[kChunk];      // dg_t gets the sum over i < t
  HWY_ALIGN T factor[kChunk];

  scale_rows(z, gates.beta, s.v_scaled, tokens, vp);  // dV = beta Z (7.3)
  store_tile<T>(in.dtype, args.dv, in.documents, chunk, head, in.value_dim, s.v_scaled, vp);
  for (std::int64_t i = 0; i < tokens; ++i) d_beta[i] = dot(z + i * vp, y + i * vp, vp);

  transpose(u, vp, tokens, in.value_dim, s.u_t, kChunk, padded);
  multiply<Part::LowerC, false>(s.d_o, vp, s.u_t, kChunk, s.x, kChunk, tokens, padded, in.value_dim, false);
  multiply<Part::LowerC, false>(z, vp, s.u_t, kChunk, s.n, kChunk, tokens, padded, in.value_dim, false);
  pair_gradients(tokens, scale, gates, s, d_beta, straddling);

  // dq (7.6): s e^gamma (dO S^T) + X K.
  transpose(state, vp, in.key_dim, in.value_dim, s.state_t, kp, kp);
  for (std::int64_t i = 0; i < tokens; ++i) factor[i] = scale * gates.from_start[i];
  scale_rows(s.d_o, factor, s.v_scaled, tokens, vp);
  multiply<Part::Full, false>(s.v_scaled, vp, s.state_t, kp, s.scaled, kp, tokens, kp, in.value_dim, false);
  for (std::int64_t i = 0; i < tokens; ++i) suffix[i] = dot(q + i * kp, s.scaled + i * kp, kp);
  const auto add_scaled = [&](T* sum, bool set) HWY_ATTR {
    for (std::int64_t j = 0; j < tokens * kp; j += lanes) {
      const auto value = hn::LoadU(d, s.scaled + j);
      hn::StoreU(set ? value : hn::Add(hn::LoadU(d, sum + j), value), d, sum + j);
    }
  };
  add_scaled(s.d_q, first_of_group);
  multiply<Part::LowerA, false>(s.x, kChunk, k, kp, s.d_q, kp, tokens, kp, tokens, true);

  // dk (7.7): -e^gamma beta (Z S^T) + e^(gamma_last - gamma) (U D'^T) + X^T Q + (N + N^T) K.
  for (std::int64_t i = 0; i < tokens; ++i) factor[i] = -gates.from_start[i] * gates.beta[i];
  scale_rows(z, factor, s.v_scaled, tokens, vp);
  multiply<Part::Full, false>(s.v_scaled, vp, s.state_t, kp, s.scaled, kp, tokens, kp, in.value_dim, false);
  for (std::int64_t i = 0; i < tokens; ++i) suffix[i] += dot(k + i * kp, s.scaled + i * kp, kp);
  add_scaled(s.d_k, first_of_group);
  transpose(d_state, vp, in.key_dim, in.value_dim, s.state_t, kp, kp);
  scale_rows(u, gates.to_end, s.v_scaled, tokens, vp);
  multiply<Part::Full, false>(s.v_scaled, vp, s.state_t, kp, s.scaled, kp, tokens, kp, in.value_dim, false);
  for (std::int64_t i = 0; i < tokens; ++i) prefix[i] = dot(k + i * kp, s.scaled + i * kp, kp);
  add_scaled(s.d_k, false);
  multiply<Part::LowerA, true>(s.x, kChunk, q, kp, s.d_k, kp, tokens, kp, tokens, true);
  multiply<Part::LowerA, false>(s.n, kChunk, k, kp, s.d_k, kp, tokens, kp, tokens, true);
  multiply<Part::LowerA, true>(s.n, kChunk, k, kp, s.d_k, kp, tokens, kp, tokens, true);

  // dg_t (7.10): pairs across t, reads of the old state from t on, writes before t that reach the next state, and the old state
  // itself.
  HWY_ALIGN T d_g[kChunk];
  const double carried = static_cast<double>(gates.whole) * static_cast<double>(dot(state, d_state, in.key_dim * vp));
  double sum = 0;
  for (std::int64_t t = tokens - 1; t >= 0; --t) {
    sum += static_cast<double>(suffix[t]);
    d_g[t] = static_cast<T>(sum);
  }
  sum = carried;
  for (std::int64_t t = 0; t < tokens; ++t) {
    d_g[t] = static_cast<T>(static_cast<double>(d_g[t]) + sum + static_cast<double>(straddling[t]));
    sum += static_cast<double>(prefix[t]);
  }
  if (in.gate_form == GateForm::Raw) {
    double d_A_log = 0, d_dt_bias = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      d_A_log += static_cast<double>(d_g[t]) * static_cast<double>(gates.g[t]);
      d_g[t] = -gates.rate * gates.slope[t] * d_g[t];
      d_dt_bias += static_cast<double>(d_g[t]);
      d_beta[t] *= gates.beta_slope[t];
    }
    gate_partial[0] = d_A_log;
    gate_partial[1] = d_dt_bias;
  }
  store_column<T>(args.d_gate_dtype, args.d_decay, in.documents, chunk, head, d_g);
  store_column<T>(args.d_gate_dtype, args.d_beta, in.documents, chunk, head, d_beta);
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
