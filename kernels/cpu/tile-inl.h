// Dense micro-kernels on small row-major tiles in scratch memory: C (+)= A B and C (+)= A^T B with the triangular cases of a
// chunk, transposition, and the inverse of a unit lower triangular matrix. Compiled once a Highway target; used by the delta rules.
// Tiles: leading dimensions are multiples of kTilePad and the padding columns hold zeros, so that no product has a tail.
// Knows no delta rule. Sums run over k in ascending order for every element, whatever the blocking: bits do not depend on it.
#if defined(DELTRON_KERNELS_CPU_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_TILE_INL_H
#undef DELTRON_KERNELS_CPU_TILE_INL_H
#else
#define DELTRON_KERNELS_CPU_TILE_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kTilePad = 16;  // floats of one AVX-512 vector
template <class T>
using TileTag = hn::CappedTag<T, kTilePad>;

// Which part of a product is formed.
enum class Part {
  Full,
  LowerA,  // A is lower triangular (zeros above the diagonal inside the tile): k <= i
  LowerC,  // only C[i,j] with j <= i is needed; beyond it C holds whole vectors of whatever the sum is, or nothing
};

// One register block: C[0..kRows, 0..kVectors*lanes) (+)= sum_k A(r,k) B[k,:], A(r,k) = kTransA ? A[k*lda+r] : A[r*lda+k].
template <int kRows, int kVectors, bool kTransA, class D, class T = hn::TFromD<D>>
HWY_INLINE void register_block(D d, const T* HWY_RESTRICT a, std::int64_t lda, const T* HWY_RESTRICT b, std::int64_t ldb,
                               T* HWY_RESTRICT c, std::int64_t ldc, std::int64_t k_begin, std::int64_t k_end, bool accumulate) {
  using V = hn::Vec<D>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V sum[kRows][kVectors];
  if (accumulate) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::LoadU(d, c + r * ldc + v * lanes);
    }
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
    }
  }
  const T* HWY_RESTRICT b_row = b + k_begin * ldb;
  for (std::int64_t k = k_begin; k < k_end; ++k, b_row += ldb) {
    V right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = hn::LoadU(d, b_row + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V left = hn::Set(d, kTransA ? a[k * lda + r] : a[r * lda + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * ldc + v * lanes);
  }
}

// kRows rows of C, all columns.
template <int kRows, bool kTransA, class D, class T = hn::TFromD<D>>
HWY_NOINLINE void row_block(D d, const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T* c, std::int64_t ldc, std::int64_t n,
                            std::int64_t k_begin, std::int64_t k_end, bool accumulate) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) {
    register_block<kRows, 2, kTransA>(d, a, lda, b + j, ldb, c + j, ldc, k_begin, k_end, accumulate);
  }
  for (; j < n; j += lanes) register_block<kRows, 1, kTransA>(d, a, lda, b + j, ldb, c + j, ldc, k_begin, k_end, accumulate);
}

inline constexpr int kBlockRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;  // 16 or 8 sums in registers

// C [m,n] (+)= A B (kTransA: A^T B); A [m,k] (or [k,m]), B [k,n]; n a multiple of kTilePad.
// With LowerA and kTransA the lower triangle is A's before transposing, so that k >= i.
template <Part kPart, bool kTransA, class T>
void multiply(const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T* c, std::int64_t ldc, std::int64_t m, std::int64_t n,
              std::int64_t k, bool accumulate) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < m;) {
    const std::int64_t left = m - i;
    const std::int64_t rows = left >= kBlockRows ? kBlockRows : left >= 4 ? 4 : 1;
    std::int64_t k_begin = 0, k_end = k, columns = n;
    if (kPart == Part::LowerA && kTransA) k_begin = i;
    if (kPart == Part::LowerA && !kTransA) k_end = std::min(k, i + rows);
    if (kPart == Part::LowerC) columns = std::min(n, (i + rows + lanes - 1) / lanes * lanes);
    const T* a_rows = kTransA ? a + i : a + i * lda;
    T* c_rows = c + i * ldc;
    if (rows == kBlockRows) {
      row_block<kBlockRows, kTransA>(d, a_rows, lda, b, ldb, c_rows, ldc, columns, k_begin, k_end, accumulate);
    } else if (rows == 4) {
      row_block<4, kTransA>(d, a_rows, lda, b, ldb, c_rows, ldc, columns, k_begin, k_end, accumulate);
    } else {
      row_block<1, kTransA>(d, a_rows, lda, b, ldb, c_rows, ldc, columns, k_begin, k_end, accumulate);
    }
    i += rows;
  }
}

// to [columns, ld_to] = from [rows, ld_from]^T; columns rows..to_columns of `to` become zero.
template <class T>
void transpose(const T* HWY_RESTRICT from, std::int64_t ld_from, std::int64_t rows, std::int64_t columns, T* HWY_RESTRICT to,
               std::int64_t ld_to, std::int64_t to_columns) {
  constexpr std::int64_t kBlock = 8;
  for (std::int64_t r0 = 0; r0 < rows; r0 += kBlock) {
    const std::int64_t r1 = std::min(rows, r0 + kBlock);
    for (std::int64_t c = 0; c < columns; ++c) {
      T* HWY_RESTRICT row = to + c * ld_to;
      for (std::int64_t r = r0; r < r1; ++r) row[r] = from[r * ld_from + c];
    }
  }
  for (std::int64_t c = 0; c < columns; ++c) std::fill(to + c * ld_to + rows, to + c * ld_to + to_columns, T(0));
}

// t = (I + m)^-1 for strictly lower triangular m [size,size]; both with leading dimension ld, zeros above the diagonal of m up to
// a multiple of 16 columns, and zeros written likewise to t. Forward substitution (docs/gdn.md (6.1)) throughout (stable for beta
// up to 2 and identical keys, where powers of m explode): a block of 16 rows first takes -m t of the blocks above as one product.
template <class T>
void invert_unit_lower(const T* HWY_RESTRICT m, T* HWY_RESTRICT t, std::int64_t ld, std::int64_t size) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t padded = (size + kTilePad - 1) / kTilePad * kTilePad;
  for (std::int64_t begin = 0; begin < size; begin += 16) {
    const std::int64_t end = std::min(size, begin + 16);
    const std::int64_t columns = begin + 16;  // of the block's rows that can be non-zero, a multiple of lanes
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = begin; j < padded; ++j) t[i * ld + j] = 0;
    }
    if (begin > 0) multiply<Part::Full, false>(m + begin * ld, ld, t, ld, t + begin * ld, ld, end - begin, begin, begin, false);
    for (std::int64_t i = begin; i < end; ++i) {
      // The product above holds +m t; row i = e_i - that - sum over the rows of this block.
      for (std::int64_t j = 0; j < columns; j += lanes) {
        auto sum = hn::Neg(hn::LoadU(d, t + i * ld + j));
        for (std::int64_t r = begin; r < i; ++r) sum = hn::NegMulAdd(hn::Set(d, m[i * ld + r]), hn::LoadU(d, t + r * ld + j), sum);
        hn::StoreU(sum, d, t + i * ld + j);
      }
      t[i * ld + i] += T(1);
    }
  }
}

// Rows: to [rows, n] = factor[row] * from; n a multiple of kTilePad.
template <class T>
void scale_rows(const T* HWY_RESTRICT from, const T* HWY_RESTRICT factor, T* HWY_RESTRICT to, std::int64_t rows, std::int64_t n) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto f = hn::Set(d, factor[r]);
    for (std::int64_t j = 0; j < n; j += lanes) hn::StoreU(hn::Mul(f, hn::LoadU(d, from + r * n + j)), d, to + r * n + j);
  }
}

// x *= factor over n values (a multiple of kTilePad).
template <class T>
void scale_in_place(T* x, T factor, std::int64_t n) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto f = hn::Set(d, factor);
  for (std::int64_t j = 0; j < n; j += lanes) hn::StoreU(hn::Mul(f, hn::LoadU(d, x + j)), d, x + j);
}

// sum a*b over n values (a multiple of kTilePad), in a fixed order.
template <class T>
T dot(const T* a, const T* b, std::int64_t n) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  for (std::int64_t j = 0; j < n; j += lanes) sum = hn::MulAdd(hn::LoadU(d, a + j), hn::LoadU(d, b + j), sum);
  return sum_lanes(d, sum);
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
