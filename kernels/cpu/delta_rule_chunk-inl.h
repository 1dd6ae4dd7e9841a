// Vector code of one chunk that both delta rules share: rows of strided views in and out of tiles, states, keys and queries with
// their L2 normalisation and its gradient. Compiled once a Highway target. Knows no gates. Numbers in
// brackets are equations of docs/gdn.md.
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

// e^-1000 is zero in every type; a finite clamp makes g = -inf a reset instead of a NaN.
inline constexpr double kLogDecayFloor = -1000;

// Keys (and queries) of a chunk: packed, normalised if asked.
template <class T>
struct KeyTiles {
  T* q;       // [64, Kp]
  T* k;       // [64, Kp]
  T* k_t;     // [Kp, 64]
  T* q_rstd;  // [64]
  T* k_rstd;  // [64]

  void carve(Carver& carver, std::int64_t padded_key) {
    for (T** tile : {&q, &k, &k_t}) *tile = carver.take<T>(kChunk * padded_key);
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
  // d_q, d_k [64, Kp] through the normalisation, then out.
  template <class Args>
  void store_gradients(const DeltaRuleInputs& in, const Args& args, const Chunk& chunk, std::int64_t key_head, T* d_q,
                       T* d_k) const {
    const std::int64_t kp = in.padded_key();
    if (in.use_qk_l2norm) {
      normalise_rows_backward(d_q, q, q_rstd, chunk.tokens, kp);
      normalise_rows_backward(d_k, k, k_rstd, chunk.tokens, kp);
    }
    store_tile<T>(in.dtype, args.dq, in.documents, chunk, key_head, in.key_dim, d_q, kp);
    store_tile<T>(in.dtype, args.dk, in.documents, chunk, key_head, in.key_dim, d_k, kp);
  }
};

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
