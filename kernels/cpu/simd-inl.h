// Vector helpers of all CPU kernels, compiled once a Highway target: loads and stores of storage types (float, double, bf16)
// as compute vectors with exact tails, exp/log/sigmoid/silu/softplus, horizontal sums in a fixed order.
// Include after hwy/foreach_target.h. Use:
//   const hn::ScalableTag<C> d;                                   // C = Compute<S>
//   for_lanes(d, count, [&](std::int64_t i, auto part) HWY_ATTR { store(f(load(d, x + i, part)), d, y + i, part); });
// Every lambda that touches vectors needs HWY_ATTR. A Tail never touches memory past the count; its unused lanes load as zero.
#if defined(DELTRON_KERNELS_CPU_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_SIMD_INL_H
#undef DELTRON_KERNELS_CPU_SIMD_INL_H
#else
#define DELTRON_KERNELS_CPU_SIMD_INL_H
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/simd_targets.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class C>
using Tag = hn::ScalableTag<C>;

struct Whole {};  // all lanes of the vector are inside the data
struct Tail {     // only the first `count` lanes are (0 < count < lanes)
  std::size_t count;
};

// function(i, Whole{}) for every full vector of [0, count), then function(i, Tail{rest}) if one is left.
template <class D, class F>
HWY_INLINE void for_lanes(D d, std::int64_t count, const F& function) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) function(i, Whole{});
  if (i < count) function(i, Tail{static_cast<std::size_t>(count - i)});
}

// Whether masked accesses of T are single instructions that never fault past the mask.
template <class T>
constexpr bool masks_are_native() {
#if HWY_TARGET == HWY_AVX3
  return true;
#elif HWY_TARGET == HWY_AVX2
  return sizeof(T) >= 4;
#else
  return false;
#endif
}

template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_lanes(D d, const T* from, Whole) {
  return hn::LoadU(d, from);
}
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_lanes(D d, const T* from, Tail tail) {
  if constexpr (masks_are_native<T>()) {
    return hn::MaskedLoad(hn::FirstN(d, tail.count), d, from);
  } else {
    HWY_ALIGN T buffer[hn::MaxLanes(d)] = {};
    std::memcpy(buffer, from, tail.count * sizeof(T));
    return hn::Load(d, buffer);
  }
}
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void store_lanes(hn::Vec<D> value, D d, T* to, Whole) {
  hn::StoreU(value, d, to);
}
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void store_lanes(hn::Vec<D> value, D d, T* to, Tail tail) {
  if constexpr (masks_are_native<T>()) {
    hn::BlendedStore(value, hn::FirstN(d, tail.count), d, to);
  } else {
    HWY_ALIGN T buffer[hn::MaxLanes(d)];
    hn::Store(value, d, buffer);
    std::memcpy(to, buffer, tail.count * sizeof(T));
  }
}

// Storage type S as a vector of compute type; Part is Whole or Tail.
template <class D, class Part = Whole>
HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* from, Part part = {}) {
  return load_lanes(d, from, part);
}
template <class D, class Part = Whole, class = std::enable_if_t<std::is_same_v<hn::TFromD<D>, float>>>
HWY_INLINE hn::Vec<D> load(D d, const bfloat16* from, Part part = {}) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const auto half = load_lanes(d16, reinterpret_cast<const std::uint16_t*>(from), part);
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, half)));
}

template <class D, class Part = Whole>
HWY_INLINE void store(hn::Vec<D> value, D d, hn::TFromD<D>* to, Part part = {}) {
  store_lanes(value, d, to, part);
}
// Round to nearest even; every NaN becomes 0x7fc0 (base/bfloat16.h).
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<std::uint16_t, D>> to_bfloat16_bits(D, hn::Vec<D> value) {
  const hn::Rebind<std::uint32_t, D> d32;
  const hn::Rebind<std::int32_t, D> i32;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu))));
  const auto quiet = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(value)), hn::Set(d32, 0x7fc0u), rounded);
  return hn::DemoteTo(d16, hn::BitCast(i32, quiet));
}
template <class D, class Part = Whole, class = std::enable_if_t<std::is_same_v<hn::TFromD<D>, float>>>
HWY_INLINE void store(hn::Vec<D> value, D d, bfloat16* to, Part part = {}) {
  const hn::Rebind<std::uint16_t, D> d16;
  store_lanes(to_bfloat16_bits(d, value), d16, reinterpret_cast<std::uint16_t*>(to), part);
}
// What a value becomes when it is stored as S and loaded again.
template <class S, class D>
HWY_INLINE hn::Vec<D> round_to_storage([[maybe_unused]] D d, hn::Vec<D> value) {
  if constexpr (std::is_same_v<S, bfloat16>) {
    const hn::Rebind<std::uint32_t, D> d32;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, to_bfloat16_bits(d, value))));
  } else {
    return value;
  }
}

// Sum of all lanes: a fixed tree for each instruction set.
template <class D>
HWY_INLINE hn::TFromD<D> sum_lanes(D d, hn::Vec<D> value) {
  return hn::GetLane(hn::SumOfLanes(d, value));
}
template <class D>
HWY_INLINE hn::TFromD<D> max_lanes(D d, hn::Vec<D> value) {
  return hn::GetLane(hn::MaxOfLanes(d, value));
}

// e^x over all of the type: overflow gives infinity, NaN stays NaN (Highway's gives neither).
template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto top = hn::Set(d, static_cast<T>(sizeof(T) == 4 ? 89.0 : 710.0));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, hn::Min(x, top)));
}
// e^x for x <= 0 that is known not to be NaN.
template <class D>
HWY_INLINE hn::Vec<D> exp_nonpositive(D d, hn::Vec<D> x) {
  return hn::Exp(d, x);
}
// Natural logarithm of x > 0; NaN stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> log(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Log(d, x));
}
// 1/(1+e^-x), accurate in both tails.
template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, static_cast<hn::TFromD<D>>(1));
  const auto e = hn::Exp(d, hn::Neg(hn::Abs(x)));  // in (0,1]
  const auto top = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Div(top, hn::Add(one, e)));
}
template <class D>
HWY_INLINE hn::Vec<D> silu(D d, hn::Vec<D> x) {
  return hn::Mul(x, sigmoid(d, x));
}
// d silu / dx = s (1 + x (1 - s)), s = sigmoid(x).
template <class D>
HWY_INLINE hn::Vec<D> silu_derivative(D d, hn::Vec<D> x, hn::Vec<D> s) {
  const auto one = hn::Set(d, static_cast<hn::TFromD<D>>(1));
  return hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one));
}
// log(1+e^x) = max(x,0) + log1p(e^-|x|).
template <class D>
HWY_INLINE hn::Vec<D> softplus(D d, hn::Vec<D> x) {
  const auto e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const auto value = hn::Add(hn::Max(x, hn::Zero(d)), hn::Log1p(d, e));
  return hn::IfThenElse(hn::IsNaN(x), x, value);
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
