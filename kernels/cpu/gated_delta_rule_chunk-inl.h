// One chunk of the gated delta rule forward: scalar gates with their cumulative decay, the decay matrix, and the steps that
// delta_rule_drive-inl.h puts in order. Compiled once a Highway target. Numbers in brackets are
// equations of docs/gdn.md.
#if defined(DELTRON_KERNELS_CPU_GATED_DELTA_RULE_CHUNK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_GATED_DELTA_RULE_CHUNK_INL_H
#undef DELTRON_KERNELS_CPU_GATED_DELTA_RULE_CHUNK_INL_H
#else
#define DELTRON_KERNELS_CPU_GATED_DELTA_RULE_CHUNK_INL_H
#endif

#include "kernels/cpu/delta_rule_chunk-inl.h"
#include "kernels/gated_delta_rule.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

// Gates of one (chunk, value head). gamma (5.1) is the inclusive cumulative sum of g, kept as an unevaluated pair (high + low), so
// that a difference of two of them is as exact as T allows however large they are.
template <class T>
struct ChunkGates {
  HWY_ALIGN T g[kChunk];           // log decay, clamped
  HWY_ALIGN T beta[kChunk];        // as used
  HWY_ALIGN T slope[kChunk];       // Raw: d softplus / d alpha
  HWY_ALIGN T beta_slope[kChunk];  // Raw: d beta / d beta_raw
  HWY_ALIGN T high[kChunk];
  HWY_ALIGN T low[kChunk];
  HWY_ALIGN T from_start[kChunk];  // e^gamma_i
  HWY_ALIGN T to_end[kChunk];      // e^(gamma_last - gamma_i), last = the last valid token
  T whole;                         // e^gamma_last
  T rate;                          // Raw: e^A_log
};

template <class T>
void load_gates(const ScalarGateInputs& in, const Chunk& chunk, std::int64_t head, ChunkGates<T>& gates) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t tokens = chunk.tokens;
  const std::int64_t padded = round_up_16(tokens);
  for (std::int64_t t = tokens; t < padded; ++t) gates.g[t] = gates.beta[t] = 0;
  load_column<T>(in.decay_dtype, in.decay, in.documents, chunk, head, gates.g);
  load_column<T>(in.beta_dtype, in.beta, in.documents, chunk, head, gates.beta);
  if (in.gate_form == GateForm::Raw) {
    gates.rate = std::exp(static_cast<const T*>(in.A_log)[head]);
    const auto rate = hn::Set(d, gates.rate);
    const auto bias = hn::Set(d, static_cast<const T*>(in.dt_bias)[head]);
    const auto one = hn::Set(d, T(1));
    const auto twenty = hn::Set(d, T(20));
    const auto factor = hn::Set(d, T(in.allow_neg_eigval ? 2 : 1));
    for (std::int64_t t = 0; t < padded; t += lanes) {
      const auto x = hn::Add(hn::LoadU(d, gates.g + t), bias);
      const auto linear = hn::Gt(x, twenty);
      hn::StoreU(hn::Neg(hn::Mul(rate, hn::IfThenElse(linear, x, softplus(d, x)))), d, gates.g + t);
      hn::StoreU(hn::IfThenElse(linear, one, sigmoid(d, x)), d, gates.slope + t);
      const auto s = sigmoid(d, hn::LoadU(d, gates.beta + t));
      hn::StoreU(hn::Mul(factor, s), d, gates.beta + t);
      hn::StoreU(hn::Mul(factor, hn::Mul(s, hn::Sub(one, s))), d, gates.beta_slope + t);
    }
  }
  // The sum and its pair form in double: 64 additions cost nothing.
  double gamma = 0;
  for (std::int64_t t = 0; t < padded; ++t) {
    if (t < tokens) {
      if (gates.g[t] < T(kLogDecayFloor)) gates.g[t] = T(kLogDecayFloor);
      gamma += static_cast<double>(gates.g[t]);
    }
    gates.high[t] = static_cast<T>(gamma);
    gates.low[t] = static_cast<T>(gamma - static_cast<double>(gates.high[t]));
  }
  const auto last_high = hn::Set(d, gates.high[tokens - 1]);
  const auto last_low = hn::Set(d, gates.low[tokens - 1]);
  for (std::int64_t t = 0; t < padded; t += lanes) {
    const auto high = hn::LoadU(d, gates.high + t);
    const auto low = hn::LoadU(d, gates.low + t);
    const auto start = exp(d, high);
    hn::StoreU(hn::MulAdd(start, low, start), d, gates.from_start + t);
    hn::StoreU(exp(d, hn::Add(hn::Sub(last_high, high), hn::Sub(last_low, low))), d, gates.to_end + t);
  }
  gates.whole = gates.from_start[tokens - 1];
}

// decay [tokens, 64]: Gamma (5.2), e^(gamma_i - gamma_j) for j <= i, zero above the diagonal (up to the next multiple of 16
// columns of the chunk). The exponent is masked before exp.
template <class T>
void decay_matrix(const ChunkGates<T>& gates, std::int64_t tokens, T* decay) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t padded = round_up_16(tokens);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const auto high = hn::Set(d, gates.high[i]);
    const auto low = hn::Set(d, gates.low[i]);
    T* row = decay + i * kChunk;
    std::int64_t j = 0;
    for (; j <= i; j += lanes) {
      auto exponent = hn::Add(hn::Sub(high, hn::LoadU(d, gates.high + j)), hn::Sub(low, hn::LoadU(d, gates.low + j)));
      if (j + lanes <= i + 1) {
        hn::StoreU(exp_nonpositive(d, exponent), d, row + j);
      } else {
        const auto valid = hn::FirstN(d, static_cast<std::size_t>(i + 1 - j));
        hn::StoreU(hn::IfThenElseZero(valid, exp_nonpositive(d, hn::IfThenElseZero(valid, exponent))), d, row + j);
      }
    }
    for (; j < padded; j += lanes) hn::StoreU(hn::Zero(d), d, row + j);
  }
}

// out [tokens, 64] = factor_i decay_ij product_ij on and below the diagonal (strict: below it only), zero above: (5.3), (5.7).
// `factor` null: `scale`.
template <class T>
void decayed(const T* decay, const T* product, const T* factor, T scale, bool strict, std::int64_t tokens, T* out) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t padded = round_up_16(tokens);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const auto f = hn::Set(d, factor == nullptr ? scale : factor[i]);
    const std::int64_t row = i * kChunk;
    const std::int64_t valid = strict ? i : i + 1;
    std::int64_t j = 0;
    for (; j < valid; j += lanes) {
      auto value = hn::Mul(f, hn::Mul(hn::LoadU(d, decay + row + j), hn::LoadU(d, product + row + j)));
      if (j + lanes > valid) value = hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(valid - j)), value);
      hn::StoreU(value, d, out + row + j);
    }
    for (; j < padded; j += lanes) hn::StoreU(hn::Zero(d), d, out + row + j);
  }
}

// What forward and backward do alike: K K^T and Q K^T once a key head, gates once a value head (each is its own gate head).
template <class T>
struct GatedChunk {
  using Value = T;
  using Inputs = ScalarGateInputs;

  KeyTiles<T> keys;
  ChunkGates<T> gates;
  T* kk;      // [64, 64] lower part of K K^T
  T* qk;      // [64, 64] lower part of Q K^T
  T* decay;   // [64, 64] Gamma
  T* scaled;  // [64, Kp]
  T* write;   // [64, Vp]

  void carve_chunk(Carver& carver, const Inputs& in) {
    keys.carve(carver, in.padded_key());
    for (T** square : {&kk, &qk, &decay}) *square = carver.take<T>(kChunk * kChunk);
    scaled = carver.take<T>(kChunk * in.padded_key());
    write = carver.take<T>(kChunk * in.padded_value());
  }
  void load_queries(const Inputs& in, const Chunk& chunk, std::int64_t key_head) { keys.load_queries(in, chunk, key_head); }
  void key_products(const Inputs& in, const Chunk& chunk, bool want_m, bool want_p) {
    const std::int64_t padded = round_up_16(chunk.tokens), kp = in.padded_key();
    keys.transpose_keys(in, chunk);
    if (want_m) multiply<Part::LowerC, false>(keys.k, kp, keys.k_t, kChunk, kk, kChunk, chunk.tokens, padded, in.key_dim, false);
    if (want_p) multiply<Part::LowerC, false>(keys.q, kp, keys.k_t, kChunk, qk, kChunk, chunk.tokens, padded, in.key_dim, false);
  }
  void load_gates(const Inputs& in, const Chunk& chunk, std::int64_t head, bool) {
    deltron::kernels::cpu::HWY_NAMESPACE::load_gates(in, chunk, head, gates);
  }

  // The step of the state over one chunk, as forward and the recomputation in backward do it:
  //   (5.5) Y = V - e^gamma (K S);  (5.6) U = T (beta Y);  (5.9) S' = e^gamma_last S + K^T (e^(gamma_last - gamma) U).
  void update(const Inputs& in, const Chunk& chunk, std::int64_t head, const T* t, const T* state, T* y, T* u) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value(), tokens = chunk.tokens;
    load_tile<T>(in.dtype, in.v, in.documents, chunk, head, in.value_dim, y, vp);
    HWY_ALIGN T factor[kChunk];
    for (std::int64_t i = 0; i < tokens; ++i) factor[i] = -gates.from_start[i];
    scale_rows(keys.k, factor, scaled, tokens, kp);
    multiply<Part::Full, false>(scaled, kp, state, vp, y, vp, tokens, vp, in.key_dim, true);
    scale_rows(y, gates.beta, write, tokens, vp);
    multiply<Part::LowerA, false>(t, kChunk, write, vp, u, vp, tokens, vp, tokens, false);
  }
  void next_state(const Inputs& in, const Chunk& chunk, const T* u, T* state) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value();
    scale_rows(u, gates.to_end, write, chunk.tokens, vp);
    scale_in_place(state, gates.whole, in.key_dim * vp);
    multiply<Part::Full, true>(keys.k, kp, write, vp, state, vp, in.key_dim, vp, chunk.tokens, true);
  }
};

template <class T>
struct GatedForward : GatedChunk<T> {
  using Args = GatedDeltaRuleForwardArgs;
  using Inputs = ScalarGateInputs;
  T* m;       // [64, 64]
  T* p;       // [64, 64] s P
  T* t;       // [64, 64]
  T* y;       // [64, Vp]
  T* u;       // [64, Vp]
  T* o;       // [64, Vp]
  T* states;  // [group, K, Vp]

  void carve(Carver& carver, const Inputs& in) {
    this->carve_chunk(carver, in);
    for (T** square : {&m, &p, &t}) *square = carver.take<T>(kChunk * kChunk);
    for (T** tile : {&y, &u, &o}) *tile = carver.take<T>(kChunk * in.padded_value());
    states = carver.take<T>(in.group() * in.key_dim * in.padded_value());
  }
  void load_keys(const Inputs& in, const Chunk& chunk, std::int64_t key_head) { this->keys.load_keys(in, chunk, key_head); }
  // (5.3) M_ij = beta_i Gamma_ij (k_i.k_j) below the diagonal; (5.7) P_ij = Gamma_ij (q_i.k_j) on and below it.
  void pair_products(const Inputs& in, const Chunk& chunk, bool want_m, bool want_p) {
    decay_matrix(this->gates, chunk.tokens, this->decay);
    if (want_m) decayed<T>(this->decay, this->kk, this->gates.beta, 0, true, chunk.tokens, m);
    if (want_p) decayed<T>(this->decay, this->qk, nullptr, static_cast<T>(in.scale), false, chunk.tokens, p);
  }
  void keep_inverse(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t head, T* inverse) const {
    if (args.t_inverse == nullptr) return;
    const std::int64_t padded = round_up_16(chunk.tokens);
    if (padded < kChunk) {
      for (std::int64_t i = 0; i < chunk.tokens; ++i) std::fill(inverse + i * kChunk + padded, inverse + (i + 1) * kChunk, T(0));
    }
    MutableHeadView view{args.t_inverse, 0, in.value_heads * kChunk, kChunk};
    store_tile<T>(in.dtype, view, in.documents, chunk, head, kChunk, inverse, kChunk);
  }
  // (5.8) O = s (e^gamma (Q S) + P U).
  void output(const Inputs& in, const Chunk& chunk, const T* state, const T* update, T* out) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value(), tokens = chunk.tokens;
    HWY_ALIGN T factor[kChunk];
    for (std::int64_t i = 0; i < tokens; ++i) factor[i] = static_cast<T>(in.scale) * this->gates.from_start[i];
    scale_rows(this->keys.q, factor, this->scaled, tokens, kp);
    multiply<Part::Full, false>(this->scaled, kp, state, vp, out, vp, tokens, vp, in.key_dim, false);
    multiply<Part::LowerA, false>(p, kChunk, update, vp, out, vp, tokens, vp, tokens, true);
  }
};

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
