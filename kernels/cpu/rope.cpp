// Rotary embedding: sines and cosines in fp64, once a token and then used by all its heads.
#include "kernels/rope.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/simd-inl.h"

#ifndef DELTRON_KERNELS_CPU_ROPE_CONSTANTS
#define DELTRON_KERNELS_CPU_ROPE_CONSTANTS
namespace deltron::kernels::cpu {
inline constexpr std::int64_t kMostRotaryPairs = 512;  // tables of one token live on the stack
inline constexpr std::int64_t kRopeGrain = 64;         // tokens a part
}  // namespace deltron::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {

// cosine and sine of position * frequency[i]. The whole turns are taken off first, so that any position is in the polynomials'
// range.
template <class C>
void turn_table(double position, const double* frequency, std::int64_t pairs, C sign, C* cosine, C* sine) {
  const Tag<double> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_ALIGN double buffer[hn::MaxLanes(d)];
  for (std::int64_t i = 0; i < pairs; i += lanes) {
    const std::int64_t count = std::min(lanes, pairs - i);
    const auto angle = hn::Mul(hn::Set(d, position), load(d, frequency + i, Tail{static_cast<std::size_t>(count)}));
    const auto turns = hn::Round(hn::Mul(angle, hn::Set(d, 0.15915494309189533577)));
    // 2 pi in two parts; the first has 20 low bits clear, so that its product with the number of turns is exact.
    const auto rest = hn::NegMulAdd(turns, hn::Set(d, 0x1.921fb54400000p+2), angle);
    const auto x = hn::NegMulAdd(turns, hn::Set(d, 0x1.0b4611a626331p-32), rest);
    hn::Store(hn::Cos(d, x), d, buffer);
    for (std::int64_t l = 0; l < count; ++l) cosine[i + l] = static_cast<C>(buffer[l]);
    hn::Store(hn::Sin(d, x), d, buffer);
    for (std::int64_t l = 0; l < count; ++l) sine[i + l] = sign * static_cast<C>(buffer[l]);
  }
}

template <class S, class C = Compute<S>>
void turn_head(const S* x, S* y, std::int64_t pairs, std::int64_t dim, const C* cosine, const C* sine) {
  const Tag<C> d;
  for_lanes(d, pairs, [&](std::int64_t i, auto part) HWY_ATTR {
    const auto low = load(d, x + i, part), high = load(d, x + pairs + i, part);
    const auto c = load(d, cosine + i, part), s = load(d, sine + i, part);
    store(hn::NegMulAdd(high, s, hn::Mul(low, c)), d, y + i, part);
    store(hn::MulAdd(low, s, hn::Mul(high, c)), d, y + pairs + i, part);
  });
  if (x != y) std::copy(x + 2 * pairs, x + dim, y + 2 * pairs);
}

template <class S>
void rope_tokens(const RopeArgs& args, const double* frequency, std::int64_t begin, std::int64_t end) {
  using C = Compute<S>;
  const std::int64_t pairs = args.rotary_dim / 2;
  C cosine[kMostRotaryPairs], sine[kMostRotaryPairs];
  for (std::int64_t t = begin; t < end; ++t) {
    turn_table<C>(args.positions[t], frequency, pairs, args.inverse ? C(-1) : C(1), cosine, sine);
    for (std::int64_t h = 0; h < args.heads; ++h) {
      turn_head<S>(static_cast<const S*>(args.x.data) + t * args.x.token_stride + h * args.x.head_stride,
                   static_cast<S*>(args.y.data) + t * args.y.token_stride + h * args.y.head_stride, pairs, args.dim, cosine, sine);
    }
  }
}

void rope_run(const RopeArgs& args, const double* frequency, std::int64_t begin, std::int64_t end) {
  with_storage(args.dtype, "rope", [&](auto storage) { rope_tokens<decltype(storage)>(args, frequency, begin, end); });
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(rope_run);

void rope(const RopeArgs& args, const StreamHandle& stream) {
  DELTRON_CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.dim, "rope: rotary dim ", args.rotary_dim, " of ", args.dim);
  DELTRON_CHECK_LE(args.rotary_dim / 2, kMostRotaryPairs, "rope: pairs");
  DELTRON_CHECK(args.x.sequence_stride == 0 && args.y.sequence_stride == 0, "rope takes flat tokens");
  double frequency[kMostRotaryPairs];
  for (std::int64_t i = 0; i < args.rotary_dim / 2; ++i) {
    frequency[i] = std::pow(args.theta, -2.0 * static_cast<double>(i) / static_cast<double>(args.rotary_dim));
  }
  const auto run = HWY_DYNAMIC_DISPATCH(rope_run);
  parallel_for(*stream.pool, args.tokens, kRopeGrain,
               [&](std::int64_t begin, std::int64_t end) { run(args, frequency, begin, end); });
}

}  // namespace deltron::kernels::cpu
#endif
