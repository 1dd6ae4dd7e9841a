// What forward and backward of the fused preparation share, compiled once a Highway target: the convolution of one token over a run of
// channels, rounded as kernels/gdn_pre_rule.h says, and the transposed weights that it reads.
#if defined(DELTRON_KERNELS_CPU_GDN_PRE_RULE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_GDN_PRE_RULE_INL_H
#undef DELTRON_KERNELS_CPU_GDN_PRE_RULE_INL_H
#else
#define DELTRON_KERNELS_CPU_GDN_PRE_RULE_INL_H
#endif

#include "kernels/cpu/simd-inl.h"
#include "kernels/gdn_pre_rule.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

template <class Args>
std::int64_t pre_rule_channels(const Args& args) {
  return 2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim;
}

// conv_weight [channels, kernel] as [kernel, channels] of the compute type.
template <class T, class Args>
void transpose_conv_weight(const Args& args, T* to) {
  const std::int64_t channels = pre_rule_channels(args);
  with_storage_of<T>(args.conv_weight_dtype, "gdn_pre_rule", [&](auto w) {
    const auto* from = static_cast<const decltype(w)*>(args.conv_weight);
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t i = 0; i < args.kernel; ++i) to[i * channels + c] = widen(from[c * args.kernel + i]);
    }
  });
}

// The convolution's sum at one token, oldest tap first, rounded. x and weights point at the channel; `before` taps lie in the document.
template <class S, class D, class P, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> convolve_rounded(D d, const S* x, std::int64_t stride, const T* weights, std::int64_t channels,
                                       std::int64_t kernel, std::int64_t before, P part) {
  auto sum = hn::Zero(d);
  for (std::int64_t back = before; back >= 0; --back) {
    sum = hn::MulAdd(load(d, weights + (kernel - 1 - back) * channels, part), load(d, x - back * stride, part), sum);
  }
  return round_to_storage<S>(d, sum);
}

// softplus, with its linear branch above 20, and its slope.
template <class D>
HWY_INLINE hn::Vec<D> softplus_linear_above_20(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, hn::TFromD<D>(20))), x, softplus(d, x));
}
template <class D>
HWY_INLINE hn::Vec<D> softplus_slope(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, hn::TFromD<D>(20))), hn::Set(d, hn::TFromD<D>(1)), sigmoid(d, x));
}

// g = - e^A_log softplus(f + dt_bias), from `rate` = e^A_log and x = f + dt_bias.
template <class D>
HWY_INLINE hn::Vec<D> log_decay(D d, hn::Vec<D> rate, hn::Vec<D> x) {
  return hn::Neg(hn::Mul(rate, softplus_linear_above_20(d, x)));
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
