// What attention forward and backward share, compiled once a Highway target: rows in and out of tiles, the exponential of scores,
// the dropout mask. Score tiles are transposed, [keys, queries], so that every statistic of a query is one lane.
#if defined(DELTRON_KERNELS_CPU_ATTENTION_TILES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_ATTENTION_TILES_INL_H
#undef DELTRON_KERNELS_CPU_ATTENTION_TILES_INL_H
#else
#define DELTRON_KERNELS_CPU_ATTENTION_TILES_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/tile_matmul-inl.h"
#include "kernels/elementwise.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {

// Row-contiguous operand of a product: [rows, dim], or a padded copy of it.
template <class C>
struct TileRows {
  const C* data;
  std::int64_t row_stride;
};

// Rows as compute type: in place where storage allows, else copied to `buffer` [rows, padded_dim] with zeros behind dim.
// `whole_vectors`: rows will be read in whole vectors, so dim must be a multiple of the lanes to be used in place.
template <class S, class C = Compute<S>>
TileRows<C> load_rows(const S* rows, std::int64_t row_stride, std::int64_t count, std::int64_t dim, bool whole_vectors, C* buffer) {
  const Tag<C> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  if constexpr (std::is_same_v<S, C>) {
    if (!whole_vectors || dim % lanes == 0) return {rows, row_stride};
  }
  const std::int64_t padded = pad_to(dim, kAttentionPad);
  for (std::int64_t r = 0; r < count; ++r) {
    C* to = buffer + r * padded;
    const S* from = rows + r * row_stride;
    std::int64_t c = 0;
    for (; c + lanes <= dim; c += lanes) hn::StoreU(load(d, from + c), d, to + c);
    if (c < dim) {
      hn::StoreU(load(d, from + c, Tail{static_cast<std::size_t>(dim - c)}), d, to + c);
      c += lanes;
    }
    for (; c < padded; c += lanes) hn::StoreU(hn::Zero(d), d, to + c);
  }
  return {buffer, padded};
}

// to [count, dim] = from * factor, in storage type.
template <class S, class C = Compute<S>>
void store_rows(const C* from, std::int64_t from_stride, std::int64_t count, std::int64_t dim, C factor, S* to,
                std::int64_t to_stride) {
  const Tag<C> d;
  const auto times = hn::Set(d, factor);
  for (std::int64_t r = 0; r < count; ++r) {
    const C* row = from + r * from_stride;
    S* out = to + r * to_stride;
    for_lanes(d, dim, [&](std::int64_t c, auto part) HWY_ATTR { store(hn::Mul(load(d, row + c, part), times), d, out + c, part); });
  }
}

// to = transpose of the square `from`, whose columns (lanes) are first multiplied by `factor`.
template <class From, class To, class D>
HWY_INLINE void transpose_square(D d, const From* from, std::int64_t from_stride, hn::Vec<D> factor, To* to,
                                 std::int64_t to_stride) {
#if HWY_TARGET == HWY_SCALAR
  (void)from_stride, (void)to_stride;
  store(hn::Mul(load(d, from), factor), d, to);
#else
  const auto r0 = hn::Mul(load(d, from), factor), r1 = hn::Mul(load(d, from + from_stride), factor);
  if constexpr (hn::MaxLanes(d) == 2) {
    store(hn::InterleaveLower(d, r0, r1), d, to);
    store(hn::InterleaveUpper(d, r0, r1), d, to + to_stride);
  } else {
    const auto r2 = hn::Mul(load(d, from + 2 * from_stride), factor), r3 = hn::Mul(load(d, from + 3 * from_stride), factor);
    const auto low01 = hn::InterleaveLower(d, r0, r1), low23 = hn::InterleaveLower(d, r2, r3);
    const auto high01 = hn::InterleaveUpper(d, r0, r1), high23 = hn::InterleaveUpper(d, r2, r3);
    store(hn::ConcatLowerLower(d, low23, low01), d, to);
    store(hn::ConcatUpperUpper(d, low23, low01), d, to + to_stride);
    store(hn::ConcatLowerLower(d, high23, high01), d, to + 2 * to_stride);
    store(hn::ConcatUpperUpper(d, high23, high01), d, to + 3 * to_stride);
  }
#endif
}

// At most one 16-byte vector: 4 floats or 2 doubles.
template <class C>
using SquareTag = hn::CappedTag<C, 16 / sizeof(C)>;

// to [cols, padded_rows] = transpose of from [rows, cols] times factor; zeros behind `rows`.
template <class S, class C = Compute<S>>
void transpose_in(const S* from, std::int64_t from_stride, std::int64_t rows, std::int64_t cols, C factor, C* to,
                  std::int64_t padded_rows) {
  const SquareTag<C> d;
  constexpr std::int64_t kSide = static_cast<std::int64_t>(hn::MaxLanes(d));
  const std::int64_t whole_rows = rows / kSide * kSide, whole_cols = cols / kSide * kSide;
  const auto times = hn::Set(d, factor);
  for (std::int64_t c = 0; c < whole_cols; c += kSide) {
    for (std::int64_t r = 0; r < whole_rows; r += kSide) {
      transpose_square(d, from + r * from_stride + c, from_stride, times, to + c * padded_rows + r, padded_rows);
    }
  }
  for (std::int64_t c = 0; c < cols; ++c) {
    C* out = to + c * padded_rows;
    for (std::int64_t r = c < whole_cols ? whole_rows : 0; r < rows; ++r) out[r] = widen(from[r * from_stride + c]) * factor;
    for (std::int64_t r = rows; r < padded_rows; ++r) out[r] = 0;
  }
}

// to [rows, cols] = transpose of from [cols, padded_rows], row r times factor[r], in storage type.
template <class S, class C = Compute<S>>
void transpose_out(const C* from, std::int64_t padded_rows, std::int64_t rows, std::int64_t cols, const C* factor, S* to,
                   std::int64_t to_stride) {
  const SquareTag<C> d;
  constexpr std::int64_t kSide = static_cast<std::int64_t>(hn::MaxLanes(d));
  const std::int64_t whole_rows = rows / kSide * kSide, whole_cols = cols / kSide * kSide;
  for (std::int64_t r = 0; r < whole_rows; r += kSide) {
    const auto times = hn::LoadU(d, factor + r);
    for (std::int64_t c = 0; c < whole_cols; c += kSide) {
      transpose_square(d, from + c * padded_rows + r, padded_rows, times, to + r * to_stride + c, to_stride);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = r < whole_rows ? whole_cols : 0; c < cols; ++c) {
      to[r * to_stride + c] = narrow<S>(from[c * padded_rows + r] * factor[r]);
    }
  }
}

// e^x for x <= 0 (minus infinity gives 0); NaN stays NaN. fp32: within 2 ulp, results below the normal range are 0.
template <class D, class C = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> exp_score(D d, hn::Vec<D> x) {
  if constexpr (sizeof(C) == 8) {
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
  } else {
    const hn::Rebind<std::int32_t, D> di;
    const auto bias = hn::Set(d, 12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
    const auto shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), bias);
    const auto n = hn::Sub(shifted, bias);
    auto r = hn::MulAdd(n, hn::Set(d, -0.693359375f), x);
    r = hn::MulAdd(n, hn::Set(d, 2.12194440e-4f), r);
    auto y = hn::MulAdd(r, hn::Set(d, 1.9875691500e-4f), hn::Set(d, 1.3981999507e-3f));
    y = hn::MulAdd(y, r, hn::Set(d, 8.3334519073e-3f));
    y = hn::MulAdd(y, r, hn::Set(d, 4.1665795894e-2f));
    y = hn::MulAdd(y, r, hn::Set(d, 1.6666665459e-1f));
    y = hn::MulAdd(y, r, hn::Set(d, 5.0000001201e-1f));
    y = hn::Add(hn::MulAdd(y, hn::Mul(r, r), r), hn::Set(d, 1.0f));
    // A product, not an integer addition: whatever bits a NaN leaves in the exponent, NaN times them is NaN.
    const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::BitCast(di, shifted), hn::Set(di, 127))));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0f)), hn::Mul(y, power));
  }
}

// Lanes i.. of the queries that may not see key j: i < j.
template <class D>
HWY_INLINE hn::Mask<D> hidden_queries(D d, std::int64_t i, std::int64_t j) {
  using C = hn::TFromD<D>;
  return hn::Lt(hn::Iota(d, static_cast<C>(i)), hn::Set(d, static_cast<C>(j)));
}

// keep [keys, kAttentionBlock]: 1/(1-p) where the pair is kept, else 0. Key blocks start at multiples of 4.
// Plain loops over 16 queries at a time, in the form compilers turn into vectors.
template <class C>
void dropout_tile(const TokenRng& rng, std::int64_t head, std::int64_t first_token, std::int64_t queries, std::int64_t first_key,
                  std::int64_t keys, C* keep) {
  constexpr int kLanes = 16;
  const std::uint32_t threshold = dropout_threshold(rng.drop_probability);
  const C factor = static_cast<C>(1.0 / (1.0 - rng.drop_probability));
  for (std::int64_t i0 = 0; i0 < queries; i0 += kLanes) {
    std::uint32_t position[kLanes] = {}, sample_low[kLanes] = {}, sample_high[kLanes] = {};
    for (std::int64_t i = 0; i < std::min<std::int64_t>(kLanes, queries - i0); ++i) {
      const std::uint64_t sample = static_cast<std::uint64_t>(rng.token_sample[first_token + i0 + i]);
      position[i] = static_cast<std::uint32_t>(rng.token_offset[first_token + i0 + i]);
      sample_low[i] = static_cast<std::uint32_t>(sample);
      sample_high[i] = static_cast<std::uint32_t>(sample >> 32);
    }
    for (std::int64_t j = 0; j < keys; j += 4) {
      const std::uint32_t block = (static_cast<std::uint32_t>(rng.first_head + head) << 20) + static_cast<std::uint32_t>((first_key + j) / 4);
      std::uint32_t words[4][kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const std::uint64_t sample = (static_cast<std::uint64_t>(sample_high[i]) << 32) | sample_low[i];
        const Philox4 drawn = rng_words(rng.key, sample, position[i], block);
        for (int w = 0; w < 4; ++w) words[w][i] = drawn.word[w];
      }
      for (std::int64_t w = 0; w < std::min<std::int64_t>(4, keys - j); ++w) {
        C* row = keep + (j + w) * kAttentionBlock + i0;
        for (int i = 0; i < kLanes; ++i) row[i] = words[w][i] >= threshold ? factor : C(0);
      }
    }
  }
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
