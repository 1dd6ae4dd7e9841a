// Vector code of one chunk that the delta rules share: rows of strided views in and out of tiles, L2 normalisation and its
// gradient, scalar gates with their cumulative decay, and the decay matrix. Compiled once a Highway target. Numbers in brackets
// are equations of docs/gdn.md.
#if defined(DELTRON_KERNELS_CPU_DELTA_RULE_CHUNK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_DELTA_RULE_CHUNK_INL_H
#undef DELTRON_KERNELS_CPU_DELTA_RULE_CHUNK_INL_H
#else
#define DELTRON_KERNELS_CPU_DELTA_RULE_CHUNK_INL_H
#endif

#include <cmath>

#include "kernels/cpu/delta_rule_plan.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kChunk = kDeltaRuleChunk;
inline constexpr double kQkNormEpsilon = 1e-6;
inline constexpr std::int64_t round_up_16(std::int64_t n) { return (n + 15) / 16 * 16; }

template <class S, class T>
void load_rows(const S* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, T* to, std::int64_t ld) {
  const TileTag<T> d;
  for (std::int64_t r = 0; r < rows; ++r) {
    const S* row = from + r * stride;
    T* target = to + r * ld;
    for_lanes(d, columns, [&](std::int64_t i, auto part) HWY_ATTR { hn::StoreU(load(d, row + i, part), d, target + i); });
    for (std::int64_t i = columns; i < ld; ++i) target[i] = 0;
  }
}
template <class S, class T>
void store_rows(const T* from, std::int64_t ld, std::int64_t rows, std::int64_t columns, S* to, std::int64_t stride) {
  const TileTag<T> d;
  for (std::int64_t r = 0; r < rows; ++r) {
    S* row = to + r * stride;
    const T* source = from + r * ld;
    for_lanes(d, columns, [&](std::int64_t i, auto part) HWY_ATTR { store(hn::LoadU(d, source + i), d, row + i, part); });
  }
}

// Rows of a chunk of a view as a tile [tokens, ld], padding columns zero.
template <class T>
void load_tile(DType dtype, const HeadView& view, const Documents& documents, const Chunk& chunk, std::int64_t head,
               std::int64_t columns, T* to, std::int64_t ld) {
  const std::int64_t offset = view_offset(view, documents, chunk.document, chunk.begin, head);
  with_storage_of<T>(dtype, "gated_delta_rule", [&](auto storage) {
    using S = decltype(storage);
    load_rows<S, T>(static_cast<const S*>(view.data) + offset, view.token_stride, chunk.tokens, columns, to, ld);
  });
}
template <class T>
void store_tile(DType dtype, const MutableHeadView& view, const Documents& documents, const Chunk& chunk, std::int64_t head,
                std::int64_t columns, const T* from, std::int64_t ld) {
  const std::int64_t offset = view_offset(view, documents, chunk.document, chunk.begin, head);
  with_storage_of<T>(dtype, "gated_delta_rule", [&](auto storage) {
    using S = decltype(storage);
    store_rows<S, T>(from, ld, chunk.tokens, columns, static_cast<S*>(view.data) + offset, view.token_stride);
  });
}

// One value a token: gates and their gradients.
template <class T>
void load_column(DType dtype, const HeadView& view, const Documents& documents, const Chunk& chunk, std::int64_t head, T* to) {
  const std::int64_t offset = view_offset(view, documents, chunk.document, chunk.begin, head);
  with_storage_of<T>(dtype, "gated_delta_rule", [&](auto storage) {
    using S = decltype(storage);
    const S* from = static_cast<const S*>(view.data) + offset;
    for (std::int64_t t = 0; t < chunk.tokens; ++t) to[t] = widen(from[t * view.token_stride]);
  });
}
template <class T>
void store_column(DType dtype, const MutableHeadView& view, const Documents& documents, const Chunk& chunk, std::int64_t head,
                  const T* from) {
  const std::int64_t offset = view_offset(view, documents, chunk.document, chunk.begin, head);
  with_storage_of<T>(dtype, "gated_delta_rule", [&](auto storage) {
    using S = decltype(storage);
    S* to = static_cast<S*>(view.data) + offset;
    for (std::int64_t t = 0; t < chunk.tokens; ++t) to[t * view.token_stride] = narrow<S>(from[t]);
  });
}

// States [K, V] in the compute type against tiles [K, ld].
template <class T>
void load_state(const void* states, std::int64_t index, std::int64_t key_dim, std::int64_t value_dim, T* to, std::int64_t ld) {
  if (states == nullptr) {
    for (std::int64_t i = 0; i < key_dim * ld; ++i) to[i] = 0;
    return;
  }
  load_rows<T, T>(static_cast<const T*>(states) + index * key_dim * value_dim, value_dim, key_dim, value_dim, to, ld);
}
template <class T>
void store_state(const T* from, std::int64_t ld, std::int64_t key_dim, std::int64_t value_dim, void* states, std::int64_t index) {
  store_rows<T, T>(from, ld, key_dim, value_dim, static_cast<T*>(states) + index * key_dim * value_dim, value_dim);
}

// x = x / sqrt(sum x^2 + eps) by rows (4.3); the reciprocal roots are kept for the gradient.
template <class T>
void normalise_rows(T* x, std::int64_t rows, std::int64_t ld, T* rstd) {
  for (std::int64_t r = 0; r < rows; ++r) {
    rstd[r] = T(1) / std::sqrt(dot(x + r * ld, x + r * ld, ld) + static_cast<T>(kQkNormEpsilon));
    scale_in_place(x + r * ld, rstd[r], ld);
  }
}
// dx = rstd (dy - y (y.dy)) by rows (4.4), in place of dy; y is the normalised tile.
template <class T>
void normalise_rows_backward(T* dy, const T* y, const T* rstd, std::int64_t rows, std::int64_t ld) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto along = hn::Set(d, dot(y + r * ld, dy + r * ld, ld));
    const auto f = hn::Set(d, rstd[r]);
    for (std::int64_t j = 0; j < ld; j += lanes) {
      const auto rest = hn::NegMulAdd(hn::LoadU(d, y + r * ld + j), along, hn::LoadU(d, dy + r * ld + j));
      hn::StoreU(hn::Mul(f, rest), d, dy + r * ld + j);
    }
  }
}

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

// e^-1000 is zero in every type; a finite clamp makes g = -inf a reset instead of a NaN.
inline constexpr double kLogDecayFloor = -1000;

template <class T>
void load_gates(const DeltaRuleInputs& in, const Chunk& chunk, std::int64_t head, ChunkGates<T>& gates) {
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

// Keys (and queries) of a chunk: packed, normalised if asked, with the products that all value heads of a group share.
template <class T>
struct KeyTiles {
  T* q;       // [64, Kp]
  T* k;       // [64, Kp]
  T* k_t;     // [Kp, 64]
  T* kk;      // [64, 64] lower part of K K^T
  T* qk;      // [64, 64] lower part of Q K^T
  T* q_rstd;  // [64]
  T* k_rstd;  // [64]

  void carve(Carver& carver, std::int64_t padded_key) {
    q = carver.take<T>(kChunk * padded_key);
    k = carver.take<T>(kChunk * padded_key);
    k_t = carver.take<T>(kChunk * padded_key);
    kk = carver.take<T>(kChunk * kChunk);
    qk = carver.take<T>(kChunk * kChunk);
    q_rstd = carver.take<T>(kChunk);
    k_rstd = carver.take<T>(kChunk);
  }
  void load_keys(const DeltaRuleInputs& in, const Chunk& chunk, std::int64_t key_head) {
    load_tile<T>(in.dtype, in.k, in.documents, chunk, key_head, in.key_dim, k, in.padded_key());
    if (in.use_qk_l2norm) normalise_rows(k, chunk.tokens, in.padded_key(), k_rstd);
  }
  void load_queries(const DeltaRuleInputs& in, const Chunk& chunk, std::int64_t key_head) {
    load_tile<T>(in.dtype, in.q, in.documents, chunk, key_head, in.key_dim, q, in.padded_key());
    if (in.use_qk_l2norm) normalise_rows(q, chunk.tokens, in.padded_key(), q_rstd);
  }
  void transpose_keys(const DeltaRuleInputs& in, const Chunk& chunk) {
    transpose(k, in.padded_key(), chunk.tokens, in.key_dim, k_t, kChunk, round_up_16(chunk.tokens));
  }
  void key_products(const DeltaRuleInputs& in, const Chunk& chunk) {
    multiply<Part::LowerC, false>(k, in.padded_key(), k_t, kChunk, kk, kChunk, chunk.tokens, round_up_16(chunk.tokens), in.key_dim,
                                  false);
  }
  void query_products(const DeltaRuleInputs& in, const Chunk& chunk) {
    multiply<Part::LowerC, false>(q, in.padded_key(), k_t, kChunk, qk, kChunk, chunk.tokens, round_up_16(chunk.tokens), in.key_dim,
                                  false);
  }
};

// The step of the state over one chunk, as forward and the recomputation in backward do it:
//   (5.5) Y = V - e^gamma (K S) (v holds V, then Y);  (5.6) U = T (beta Y);
//   (5.9) S' = e^gamma_last S + K^T (e^(gamma_last - gamma) U).
// erased [64, Kp] and write [64, Vp] are scratch.
template <class T>
void chunk_update(const DeltaRuleInputs& in, std::int64_t tokens, const ChunkGates<T>& gates, const T* k, const T* t,
                  const T* state, T* v, T* u, T* erased, T* write) {
  const std::int64_t kp = in.padded_key(), vp = in.padded_value();
  HWY_ALIGN T factor[kChunk];
  for (std::int64_t i = 0; i < tokens; ++i) factor[i] = -gates.from_start[i];
  scale_rows(k, factor, erased, tokens, kp);
  multiply<Part::Full, false>(erased, kp, state, vp, v, vp, tokens, vp, in.key_dim, true);
  scale_rows(v, gates.beta, write, tokens, vp);
  multiply<Part::LowerA, false>(t, kChunk, write, vp, u, vp, tokens, vp, tokens, false);
}
template <class T>
void chunk_state(const DeltaRuleInputs& in, std::int64_t tokens, const ChunkGates<T>& gates, const T* k, const T* u, T* state,
                 T* write) {
  const std::int64_t kp = in.padded_key(), vp = in.padded_value();
  scale_rows(u, gates.to_end, write, tokens, vp);
  scale_in_place(state, gates.whole, in.key_dim * vp);
  multiply<Part::Full, true>(k, kp, write, vp, state, vp, in.key_dim, vp, tokens, true);
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
