// The fused preparation, forward (kernels/gdn_pre_rule.h): blocks of tokens over the threads; a block goes head by head, so that a head's
// L2 norm reads values that are still in registers' reach.
#include <cmath>

#include "kernels/cpu/conv_reach.h"
#include "kernels/cpu/delta_rule_plan.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/gdn_pre_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gdn_pre_rule_forward.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/gdn_pre_rule-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {

template <class S>
struct PreRuleForward {
  using T = Compute<S>;
  const GdnPreRuleForwardArgs& args;
  const T* weights;  // [kernel, channels]
  const std::int64_t channels;
  const std::int64_t key_width;  // Dq

  // One head of q or k, or of v, at channel `channel`. `values` [width]: scratch.
  template <bool kNormed>
  void head(const ConvReach& reach, std::int64_t begin, std::int64_t end, std::int64_t channel, std::int64_t width, T* values) const {
    const Tag<T> d;
    for (std::int64_t t = begin; t < end; ++t) {
      const S* x = static_cast<const S*>(args.qkv.data) + t * args.qkv.row_stride + channel;
      S* y = static_cast<S*>(args.prepared.data) + t * args.prepared.row_stride + channel;
      const std::int64_t before = reach.before[t - begin];
      if constexpr (kNormed) {
        auto sum = hn::Zero(d);
        for_lanes(d, width, [&](std::int64_t i, auto part) HWY_ATTR {
          const auto c = convolve_rounded(d, x + i, args.qkv.row_stride, weights + channel + i, channels, args.kernel, before, part);
          const auto s = round_to_storage<S>(d, silu(d, c));
          sum = hn::MulAdd(s, s, sum);
          store(s, d, values + i, part);
        });
        const auto rstd = hn::Set(d, T(1) / std::sqrt(sum_lanes(d, sum) + static_cast<T>(args.epsilon)));
        for_lanes(d, width, [&](std::int64_t i, auto part) HWY_ATTR { store(hn::Mul(load(d, values + i, part), rstd), d, y + i, part); });
      } else {
        for_lanes(d, width, [&](std::int64_t i, auto part) HWY_ATTR {
          const auto c = convolve_rounded(d, x + i, args.qkv.row_stride, weights + channel + i, channels, args.kernel, before, part);
          store(silu(d, c), d, y + i, part);
        });
      }
    }
  }

  void gates_by_head(std::int64_t begin, std::int64_t end) const {
    const Tag<T> d;
    const std::int64_t heads = args.value_heads;
    const auto top = hn::Set(d, T(args.allow_neg_eigval ? 2 : 1));
    for_lanes(d, heads, [&](std::int64_t i, auto part) HWY_ATTR {
      const auto rate = exp(d, load(d, static_cast<const T*>(args.A_log) + i, part));
      const auto bias = load(d, static_cast<const T*>(args.dt_bias) + i, part);
      for (std::int64_t t = begin; t < end; ++t) {
        const S* raw = static_cast<const S*>(args.raw.data) + t * args.raw.row_stride + i;
        store(hn::Mul(top, sigmoid(d, load(d, raw, part))), d, static_cast<S*>(args.strength) + t * heads + i, part);
        const auto x = hn::Add(load(d, raw + heads, part), bias);
        store(log_decay(d, rate, x), d, static_cast<T*>(args.decay) + t * heads + i, part);
      }
    });
  }

  void gates_by_channel(std::int64_t begin, std::int64_t end) const {
    const Tag<T> d;
    const auto top = hn::Set(d, T(args.allow_neg_eigval ? 2 : 1));
    for (std::int64_t head = 0; head < args.key_heads; ++head) {
      const auto rate = exp(d, hn::Set(d, static_cast<const T*>(args.A_log)[head]));
      for_lanes(d, args.key_dim, [&](std::int64_t j, auto part) HWY_ATTR {
        const std::int64_t i = head * args.key_dim + j;
        const auto bias = load(d, static_cast<const T*>(args.dt_bias) + i, part);
        for (std::int64_t t = begin; t < end; ++t) {
          const S* raw = static_cast<const S*>(args.raw.data) + t * args.raw.row_stride + i;
          const auto x = hn::Add(load(d, raw, part), bias);
          store(log_decay(d, rate, x), d, static_cast<T*>(args.decay) + t * key_width + i, part);
          store(hn::Mul(top, sigmoid(d, load(d, raw + key_width, part))), d, static_cast<S*>(args.strength) + t * key_width + i, part);
        }
      });
    }
    const std::int64_t width = args.value_heads * args.value_dim;
    for (std::int64_t t = begin; t < end; ++t) {
      const S* raw = static_cast<const S*>(args.raw.data) + t * args.raw.row_stride + 2 * key_width;
      S* write = static_cast<S*>(args.write) + t * width;
      for_lanes(d, width, [&](std::int64_t i, auto part) HWY_ATTR { store(sigmoid(d, load(d, raw + i, part)), d, write + i, part); });
    }
  }

  void block(std::int64_t begin, std::int64_t end, T* values) const {
    ConvReach reach;
    reach.fill(args.documents, begin, end, args.kernel);
    for (std::int64_t h = 0; h < 2 * args.key_heads; ++h) head<true>(reach, begin, end, h * args.key_dim, args.key_dim, values);
    head<false>(reach, begin, end, 2 * key_width, channels - 2 * key_width, values);
    if (args.gates == PreRuleGates::Heads) {
      gates_by_head(begin, end);
    } else {
      gates_by_channel(begin, end);
    }
  }
};

void pre_rule_forward(const GdnPreRuleForwardArgs& args, ThreadPool& pool) {
  with_storage(args.dtype, "gdn_pre_rule", [&](auto s) {
    using S = decltype(s);
    using T = Compute<S>;
    Carver carver(args.workspace.data);
    const std::int64_t channels = pre_rule_channels(args), width = (args.key_dim + 15) / 16 * 16;
    T* weights = carver.take<T>(args.kernel * channels);
    T* scratch = carver.take<T>(pool.threads() * width);
    transpose_conv_weight(args, weights);
    const PreRuleForward<S> work{args, weights, channels, args.key_heads * args.key_dim};
    run_items(pool, (args.tokens + kConvBlock - 1) / kConvBlock, [&](std::int64_t item, std::int64_t slot) {
      work.block(item * kConvBlock, std::min(args.tokens, (item + 1) * kConvBlock), scratch + slot * width);
    });
  });
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(pre_rule_forward);

std::int64_t gdn_pre_rule_forward_workspace_bytes(const GdnPreRuleForwardArgs& args, const StreamHandle& stream) {
  Carver carver(nullptr);
  const std::int64_t size = static_cast<std::int64_t>(dtype_size(compute_dtype(args.dtype)));
  const std::int64_t channels = 2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim;
  carver.take<char>(args.kernel * channels * size);
  carver.take<char>(stream.pool->threads() * ((args.key_dim + 15) / 16 * 16) * size);
  return carver.bytes();
}

void gdn_pre_rule_forward(const GdnPreRuleForwardArgs& args, const StreamHandle& stream) {
  check_conv(args, "gdn_pre_rule");
  DELTRON_CHECK_GE(args.workspace.bytes, gdn_pre_rule_forward_workspace_bytes(args, stream), "workspace of gdn_pre_rule_forward");
  if (args.tokens == 0) return;
  HWY_DYNAMIC_DISPATCH(pre_rule_forward)(args, *stream.pool);
}

}  // namespace deltron::kernels::cpu
#endif
