// Products of small tiles held in the first-level cache: C [M,N] = A [M,K] B [K,N], compiled once a Highway target.
// A may have any strides (its elements are broadcast), the columns of B and C are contiguous and N is a multiple of the lanes.
// Every element of C is one chain of multiply-adds over ascending k: its bits do not depend on how the tile is cut.
#if defined(DELTRON_KERNELS_CPU_TILE_MATMUL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_TILE_MATMUL_INL_H
#undef DELTRON_KERNELS_CPU_TILE_MATMUL_INL_H
#else
#define DELTRON_KERNELS_CPU_TILE_MATMUL_INL_H
#endif

#include <cstdint>

#include "kernels/cpu/simd_targets.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {

// What C starts from: zero, its own values, or its own values times `column_scale[n]`.
enum class TileStart { Zero, Keep, Scale };

template <class C>
struct TileProduct {
  std::int64_t m, n, k;
  const C* a;  // [M,K]
  std::int64_t a_row_stride, a_col_stride;
  const C* b;  // [K,N]
  std::int64_t b_row_stride;
  C* c;  // [M,N]
  std::int64_t c_row_stride;
  const C* column_scale = nullptr;  // [N], TileStart::Scale only
};

// MR rows by NR vectors, all sums in registers.
template <int MR, int NR, TileStart kStart, class D, class C = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_INLINE void tile_registers(D d, const TileProduct<C>& p, std::int64_t row, std::int64_t col) {
  namespace hn = hwy::HWY_NAMESPACE;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  C* HWY_RESTRICT c = p.c + row * p.c_row_stride + col;
  hn::Vec<D> sum[MR][NR];
  HWY_UNROLL(8)
  for (int i = 0; i < MR; ++i) {
    HWY_UNROLL(8)
    for (int j = 0; j < NR; ++j) {
      if constexpr (kStart == TileStart::Zero) {
        sum[i][j] = hn::Zero(d);
      } else {
        sum[i][j] = hn::LoadU(d, c + i * p.c_row_stride + j * lanes);
        if constexpr (kStart == TileStart::Scale) sum[i][j] = hn::Mul(sum[i][j], hn::LoadU(d, p.column_scale + col + j * lanes));
      }
    }
  }
  const C* HWY_RESTRICT a = p.a + row * p.a_row_stride;
  const C* HWY_RESTRICT b = p.b + col;
  for (std::int64_t k = 0; k < p.k; ++k) {
    hn::Vec<D> right[NR];
    HWY_UNROLL(8)
    for (int j = 0; j < NR; ++j) right[j] = hn::LoadU(d, b + j * lanes);
    HWY_UNROLL(8)
    for (int i = 0; i < MR; ++i) {
      const hn::Vec<D> left = hn::Set(d, a[i * p.a_row_stride]);
      HWY_UNROLL(8)
      for (int j = 0; j < NR; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
    a += p.a_col_stride;
    b += p.b_row_stride;
  }
  HWY_UNROLL(8)
  for (int i = 0; i < MR; ++i) {
    HWY_UNROLL(8)
    for (int j = 0; j < NR; ++j) hn::StoreU(sum[i][j], d, c + i * p.c_row_stride + j * lanes);
  }
}

template <int NR, TileStart kStart, class D, class C = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_INLINE void tile_columns(D d, const TileProduct<C>& p, std::int64_t col) {
#if HWY_TARGET == HWY_AVX3
  constexpr int kRows = 8;  // 32 registers: 16 sums, 2 of B, the rest for latency
#else
  constexpr int kRows = 4;
#endif
  std::int64_t row = 0;
  for (; row + kRows <= p.m; row += kRows) tile_registers<kRows, NR, kStart>(d, p, row, col);
  for (; row + 2 <= p.m; row += 2) tile_registers<2, NR, kStart>(d, p, row, col);
  if (row < p.m) tile_registers<1, NR, kStart>(d, p, row, col);
}

template <TileStart kStart, class D, class C = hwy::HWY_NAMESPACE::TFromD<D>>
HWY_NOINLINE void tile_product(D d, const TileProduct<C> p) {
  const std::int64_t lanes = static_cast<std::int64_t>(hwy::HWY_NAMESPACE::Lanes(d));
  std::int64_t col = 0;
  for (; col + 2 * lanes <= p.n; col += 2 * lanes) tile_columns<2, kStart>(d, p, col);
  if (col < p.n) tile_columns<1, kStart>(d, p, col);
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
