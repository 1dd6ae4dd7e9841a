// Gradients of one chunk of the gated delta rule (docs/gdn.md section 7): scratch of a thread and the steps that
// delta_rule_drive-inl.h puts in order. Compiled once a Highway target.
#if defined(DELTRON_KERNELS_CPU_GATED_DELTA_RULE_GRADIENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_GATED_DELTA_RULE_GRADIENTS_INL_H
#undef DELTRON_KERNELS_CPU_GATED_DELTA_RULE_GRADIENTS_INL_H
#else
#define DELTRON_KERNELS_CPU_GATED_DELTA_RULE_GRADIENTS_INL_H
#endif

#include "kernels/cpu/gated_delta_rule_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

template <class T>
struct GatedBackward : GatedChunk<T> {
  using Args = GatedDeltaRuleBackwardArgs;
  using Inputs = ScalarGateInputs;
  static constexpr bool kNeedsY = true;
  static constexpr bool kRebuildsInverse = false;  // forward kept it

  T* p;        // [64, 64] s P
  T* t;        // [64, 64]
  T* x;        // [64, 64] dO U^T, then dP o Gamma
  T* n;        // [64, 64] Z U^T, then N
  T* d_q;      // [64, Kp] sums over the group
  T* d_k;      // [64, Kp]
  T* d_o;      // [64, Vp]
  T* d_u;      // [64, Vp]
  T* z;        // [64, Vp]
  T* u_t;      // [Vp, 64]
  T* state_t;  // [Vp, Kp]
  T* states;   // [group, K, Vp] states on the way forward, their gradients on the way back
  HWY_ALIGN T d_beta[kChunk];
  HWY_ALIGN T straddling[kChunk];  // part of dg from pairs
  HWY_ALIGN T suffix[kChunk];      // dg_t gets the sum over i >= t
  HWY_ALIGN T prefix[kChunk];      // dg_t gets the sum over i < t
  double carried;                  // part of every dg: the old state that reaches the next one
  bool first_of_key_head;          // the first value head sets dq and dk, the others add

  void carve(Carver& carver, const Inputs& in) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value();
    this->carve_chunk(carver, in);
    for (T** square : {&p, &t, &x, &n}) *square = carver.take<T>(kChunk * kChunk);
    for (T** tile : {&d_q, &d_k}) *tile = carver.take<T>(kChunk * kp);
    for (T** tile : {&d_o, &d_u, &z, &u_t}) *tile = carver.take<T>(kChunk * vp);
    state_t = carver.take<T>(vp * kp);
    states = carver.take<T>(in.group() * in.key_dim * vp);
  }

  void load_chunk(const Inputs& in, const Chunk& chunk, std::int64_t key_head) {
    this->keys.load_keys(in, chunk, key_head);
    this->keys.load_queries(in, chunk, key_head);
    this->key_products(in, chunk, true, true);
  }
  // Keys as `inverse` needs them.
  void load_keys(const Inputs& in, const Chunk& chunk, std::int64_t key_head) {
    this->keys.load_keys(in, chunk, key_head);
    if (refines_inverse(in)) this->key_products(in, chunk, true, false);
  }
  void pair_products(const Inputs& in, const Chunk& chunk, bool, bool want_p) {
    decay_matrix(this->gates, chunk.tokens, this->decay);
    if (want_p) decayed<T>(this->decay, this->qk, nullptr, static_cast<T>(in.scale), false, chunk.tokens, p);
  }
  void first_inverse(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t head, bool want_p, T* kept) {
    inverse(in, args, chunk, head, kept);
    if (want_p) pair_products(in, chunk, false, true);
  }
  // t = the kept T. One that was rounded to bf16 first gets a Newton step (6.2): with beta near 2 and parallel
  // keys its rounding alone would cost dg 3 %. Uses decay, p, x and n as scratch.
  void inverse(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t head, T*) {
    const HeadView view{args.t_inverse, 0, in.value_heads * kChunk, kChunk};
    const std::int64_t tokens = chunk.tokens, padded = round_up_16(tokens);
    load_tile<T>(in.dtype, view, in.documents, chunk, head, padded, t, kChunk);
    if (!refines_inverse(in)) return;
    decay_matrix(this->gates, tokens, this->decay);
    decayed<T>(this->decay, this->kk, this->gates.beta, 0, true, tokens, n);
    multiply<Part::LowerA, false>(n, kChunk, t, kChunk, x, kChunk, tokens, padded, tokens, false);
    for (std::int64_t i = 0; i < tokens; ++i) {
      for (std::int64_t j = 0; j < padded; ++j) {
        p[i * kChunk + j] = t[i * kChunk + j];
        x[i * kChunk + j] = (i == j ? T(1) : T(0)) - t[i * kChunk + j] - x[i * kChunk + j];
      }
    }
    multiply<Part::LowerA, false>(p, kChunk, x, kChunk, t, kChunk, tokens, padded, tokens, true);
  }
  static bool refines_inverse(const Inputs& in) { return in.dtype != compute_dtype(in.dtype); }

  void load_output_gradient(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t head) {
    load_tile<T>(in.dtype, args.d_o, in.documents, chunk, head, in.value_dim, d_o, in.padded_value());
  }
  // dU of what the chunk's own outputs read: s P^T dO, the first term of (7.1).
  void local_update_gradient(const Inputs& in, const Chunk& chunk, T* du) {
    const std::int64_t vp = in.padded_value();
    multiply<Part::LowerA, true>(p, kChunk, d_o, vp, du, vp, chunk.tokens, vp, chunk.tokens, false);
  }
  // (7.1) dU += e^(gamma_last - gamma) (K D');  (7.2) Z = T^T dU.
  void update_gradient(const Inputs& in, const Chunk& chunk, const T* d_state, T* du, T* dz) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value(), tokens = chunk.tokens;
    scale_rows(this->keys.k, this->gates.to_end, this->scaled, tokens, kp);
    multiply<Part::Full, false>(this->scaled, kp, d_state, vp, du, vp, tokens, vp, in.key_dim, true);
    multiply<Part::LowerA, true>(t, kChunk, du, vp, dz, vp, tokens, vp, tokens, false);
  }
  // (7.9) D = e^gamma_last D' + s Q^T (e^gamma dO) - K^T (e^gamma beta Z).
  void state_gradient(const Inputs& in, const Chunk& chunk, const T* dz, T* d_state) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value(), tokens = chunk.tokens;
    HWY_ALIGN T factor[kChunk];
    scale_in_place(d_state, this->gates.whole, in.key_dim * vp);
    for (std::int64_t i = 0; i < tokens; ++i) factor[i] = static_cast<T>(in.scale) * this->gates.from_start[i];
    scale_rows(d_o, factor, this->write, tokens, vp);
    multiply<Part::Full, true>(this->keys.q, kp, this->write, vp, d_state, vp, in.key_dim, vp, tokens, true);
    for (std::int64_t i = 0; i < tokens; ++i) factor[i] = -this->gates.from_start[i] * this->gates.beta[i];
    scale_rows(dz, factor, this->write, tokens, vp);
    multiply<Part::Full, true>(this->keys.k, kp, this->write, vp, d_state, vp, in.key_dim, vp, tokens, true);
  }

  void begin_gate_head(const Inputs&, const Chunk&, bool first) { first_of_key_head = first; }
  void head_gradients(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t head, const T* state, const T* d_state,
                      const T* y, const T* u, const T* dz);
  void pair_gradients(std::int64_t tokens, T scale);
  void finish_gate_head(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t head, double* partial);
  void store_keys(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t key_head) {
    this->keys.store_gradients(in, args, chunk, key_head, d_q, d_k);
  }

  static std::int64_t partial_size(const Inputs&) { return 2; }
  static void add_gate_parameters(const Inputs&, const Args& args, std::int64_t head, const double* sums) {
    if (args.d_A_log != nullptr) static_cast<T*>(args.d_A_log)[head] += static_cast<T>(sums[0]);
    if (args.d_dt_bias != nullptr) static_cast<T*>(args.d_dt_bias)[head] += static_cast<T>(sums[1]);
  }
};

// x: dO U^T -> X = s (dO U^T) o Gamma (7.4);  n: Z U^T -> N = -beta_i Gamma o (Z U^T) below the diagonal (7.5);  both zero above
// it. d_beta_i -= sum_j (Z U^T o Gamma o K K^T)_ij (7.8);  straddling_t = sum over i >= t > j of (X o Q K^T + N o K K^T)_ij, the
// first term of (7.10): kept as column sums of the rows from the last one up, so that nothing cancels and row 0 is exactly zero.
template <class T>
void GatedBackward<T>::pair_gradients(std::int64_t tokens, T scale) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t padded = round_up_16(tokens);
  const auto factor = hn::Set(d, scale);
  HWY_ALIGN T columns[kChunk] = {};
  for (std::int64_t i = tokens - 1; i >= 0; --i) {
    const auto minus_beta = hn::Set(d, -this->gates.beta[i]);
    const std::int64_t row = i * kChunk;
    auto beta_sum = hn::Zero(d);
    auto straddling_sum = hn::Zero(d);
    std::int64_t j = 0;
    for (; j <= i; j += lanes) {
      const auto gamma = hn::LoadU(d, this->decay + row + j);  // zero above the diagonal
      const auto keys_product = hn::LoadU(d, this->kk + row + j);
      auto pair_x = hn::Mul(factor, hn::Mul(gamma, hn::LoadU(d, x + row + j)));
      auto zu = hn::Mul(gamma, hn::LoadU(d, n + row + j));
      auto kk_valid = keys_product;
      auto qk_valid = hn::LoadU(d, this->qk + row + j);
      if (j + lanes > i) {
        const auto strict = hn::FirstN(d, static_cast<std::size_t>(i - j));
        const auto valid = hn::FirstN(d, static_cast<std::size_t>(i + 1 - j));
        pair_x = hn::IfThenElseZero(valid, pair_x);
        zu = hn::IfThenElseZero(strict, zu);
        kk_valid = hn::IfThenElseZero(strict, kk_valid);
        qk_valid = hn::IfThenElseZero(strict, qk_valid);
      }
      const auto pair_n = hn::Mul(minus_beta, zu);
      beta_sum = hn::MulAdd(zu, kk_valid, beta_sum);
      hn::StoreU(pair_x, d, x + row + j);
      hn::StoreU(pair_n, d, n + row + j);
      // Column sums over rows >= i; of this row's own columns only j < i straddle token i.
      const auto column = hn::MulAdd(pair_n, kk_valid, hn::MulAdd(pair_x, qk_valid, hn::LoadU(d, columns + j)));
      hn::StoreU(column, d, columns + j);
      straddling_sum = hn::Add(straddling_sum,
                               j + lanes > i ? hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(i - j)), column) : column);
    }
    for (; j < padded; j += lanes) {
      hn::StoreU(hn::Zero(d), d, x + row + j);
      hn::StoreU(hn::Zero(d), d, n + row + j);
    }
    d_beta[i] -= sum_lanes(d, beta_sum);
    straddling[i] = sum_lanes(d, straddling_sum);
  }
}

// Everything that needs S, D' and Z of one chunk and value head: dv, gradients of the gates, and this head's share of dq and dk.
template <class T>
void GatedBackward<T>::head_gradients(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t head, const T* state,
                                      const T* d_state, const T* y, const T* u, const T* dz) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t kp = in.padded_key(), vp = in.padded_value(), tokens = chunk.tokens, padded = round_up_16(tokens);
  const T* q = this->keys.q;
  const T* k = this->keys.k;
  const T scale = static_cast<T>(in.scale);
  HWY_ALIGN T factor[kChunk];

  scale_rows(dz, this->gates.beta, this->write, tokens, vp);  // dV = beta Z (7.3)
  store_tile<T>(in.dtype, args.dv, in.documents, chunk, head, in.value_dim, this->write, vp);
  for (std::int64_t i = 0; i < tokens; ++i) d_beta[i] = dot(dz + i * vp, y + i * vp, vp);

  transpose(u, vp, tokens, in.value_dim, u_t, kChunk, padded);
  multiply<Part::LowerC, false>(d_o, vp, u_t, kChunk, x, kChunk, tokens, padded, in.value_dim, false);
  multiply<Part::LowerC, false>(dz, vp, u_t, kChunk, n, kChunk, tokens, padded, in.value_dim, false);
  pair_gradients(tokens, scale);

  // dq (7.6): s e^gamma (dO S^T) + X K.
  transpose(state, vp, in.key_dim, in.value_dim, state_t, kp, kp);
  for (std::int64_t i = 0; i < tokens; ++i) factor[i] = scale * this->gates.from_start[i];
  scale_rows(d_o, factor, this->write, tokens, vp);
  multiply<Part::Full, false>(this->write, vp, state_t, kp, this->scaled, kp, tokens, kp, in.value_dim, false);
  for (std::int64_t i = 0; i < tokens; ++i) suffix[i] = dot(q + i * kp, this->scaled + i * kp, kp);
  const auto add_scaled = [&](T* sum, bool set) HWY_ATTR {
    for (std::int64_t j = 0; j < tokens * kp; j += lanes) {
      const auto value = hn::LoadU(d, this->scaled + j);
      hn::StoreU(set ? value : hn::Add(hn::LoadU(d, sum + j), value), d, sum + j);
    }
  };
  add_scaled(d_q, first_of_key_head);
  multiply<Part::LowerA, false>(x, kChunk, k, kp, d_q, kp, tokens, kp, tokens, true);

  // dk (7.7): -e^gamma beta (Z S^T) + e^(gamma_last - gamma) (U D'^T) + X^T Q + (N + N^T) K.
  for (std::int64_t i = 0; i < tokens; ++i) factor[i] = -this->gates.from_start[i] * this->gates.beta[i];
  scale_rows(dz, factor, this->write, tokens, vp);
  multiply<Part::Full, false>(this->write, vp, state_t, kp, this->scaled, kp, tokens, kp, in.value_dim, false);
  for (std::int64_t i = 0; i < tokens; ++i) suffix[i] += dot(k + i * kp, this->scaled + i * kp, kp);
  add_scaled(d_k, first_of_key_head);
  transpose(d_state, vp, in.key_dim, in.value_dim, state_t, kp, kp);
  scale_rows(u, this->gates.to_end, this->write, tokens, vp);
  multiply<Part::Full, false>(this->write, vp, state_t, kp, this->scaled, kp, tokens, kp, in.value_dim, false);
  for (std::int64_t i = 0; i < tokens; ++i) prefix[i] = dot(k + i * kp, this->scaled + i * kp, kp);
  add_scaled(d_k, false);
  multiply<Part::LowerA, true>(x, kChunk, q, kp, d_k, kp, tokens, kp, tokens, true);
  multiply<Part::LowerA, false>(n, kChunk, k, kp, d_k, kp, tokens, kp, tokens, true);
  multiply<Part::LowerA, true>(n, kChunk, k, kp, d_k, kp, tokens, kp, tokens, true);

  carried = static_cast<double>(this->gates.whole) * static_cast<double>(dot(state, d_state, in.key_dim * vp));
}

template <class T>
void GatedBackward<T>::finish_gate_head(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t head,
                                        double* partial) {
  const std::int64_t tokens = chunk.tokens;
  // dg_t (7.10): pairs across t, reads of the old state from t on, writes before t that reach the next state, and the old state
  // itself.
  HWY_ALIGN T d_g[kChunk];
  double sum = 0;
  for (std::int64_t i = tokens - 1; i >= 0; --i) {
    sum += static_cast<double>(suffix[i]);
    d_g[i] = static_cast<T>(sum);
  }
  sum = carried;
  for (std::int64_t i = 0; i < tokens; ++i) {
    d_g[i] = static_cast<T>(static_cast<double>(d_g[i]) + sum + static_cast<double>(straddling[i]));
    sum += static_cast<double>(prefix[i]);
  }
  if (in.gate_form == GateForm::Raw) {
    double d_A_log = 0, d_dt_bias = 0;
    for (std::int64_t i = 0; i < tokens; ++i) {
      d_A_log += static_cast<double>(d_g[i]) * static_cast<double>(this->gates.g[i]);
      d_g[i] = -this->gates.rate * this->gates.slope[i] * d_g[i];
      d_dt_bias += static_cast<double>(d_g[i]);
      d_beta[i] *= this->gates.beta_slope[i];
    }
    partial[0] = d_A_log;
    partial[1] = d_dt_bias;
  }
  store_column<T>(args.d_gate_dtype, args.d_decay, in.documents, chunk, head, d_g);
  store_column<T>(args.d_gate_dtype, args.d_beta, in.documents, chunk, head, d_beta);
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
