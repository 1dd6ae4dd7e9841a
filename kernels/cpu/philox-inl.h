// Philox4x32-10 on vectors: the words of base/rng.h's rng_words for a run of blocks of one row, bit for bit.
#if defined(DELTRON_KERNELS_CPU_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_PHILOX_INL_H
#undef DELTRON_KERNELS_CPU_PHILOX_INL_H
#else
#define DELTRON_KERNELS_CPU_PHILOX_INL_H
#endif

#include <cstdint>

#include "kernels/cpu/simd-inl.h"
#include "src/base/rng.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

// Words a caller's buffer must have beyond 4*blocks: whole vectors are written.
constexpr std::int64_t kPhiloxSlack = 64;

#if HWY_TARGET == HWY_SCALAR
inline void philox_row(std::uint64_t key, std::uint64_t sample, std::uint32_t position, std::uint32_t first_block, std::int64_t blocks,
                       std::uint32_t* words) {
  for (std::int64_t i = 0; i < blocks; ++i) {
    const Philox4 four = rng_words(key, sample, position, first_block + static_cast<std::uint32_t>(i));
    for (int j = 0; j < 4; ++j) words[4 * i + j] = four.word[j];
  }
}
#else
template <class V>
struct Product64 {
  V low, high;
};
template <class D>
HWY_INLINE Product64<hn::Vec<D>> multiply_wide(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::Repartition<std::uint64_t, D> d64;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a))), b);
  return {hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even)),
          hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)))};
}

// words[4*i + j] = word j of block first_block + i, for i in [0, blocks).
inline void philox_row(std::uint64_t key, std::uint64_t sample, std::uint32_t position, std::uint32_t first_block, std::int64_t blocks,
                       std::uint32_t* words) {
  const hn::ScalableTag<std::uint32_t> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto m0 = hn::Set(d, 0xD2511F53u), m1 = hn::Set(d, 0xCD9E8D57u);
  for (std::int64_t i = 0; i < blocks; i += lanes) {
    auto c0 = hn::Iota(d, first_block + static_cast<std::uint32_t>(i));
    auto c1 = hn::Set(d, position);
    auto c2 = hn::Set(d, static_cast<std::uint32_t>(sample)), c3 = hn::Set(d, static_cast<std::uint32_t>(sample >> 32));
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const auto p0 = multiply_wide(d, c0, m0);
      const auto p1 = multiply_wide(d, c2, m1);
      c0 = hn::Xor(hn::Xor(p1.high, c1), hn::Set(d, k0));
      c2 = hn::Xor(hn::Xor(p0.high, c3), hn::Set(d, k1));
      c1 = p1.low;
      c3 = p0.low;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    hn::StoreInterleaved4(c0, c1, c2, c3, d, words + 4 * i);
  }
}
#endif

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
