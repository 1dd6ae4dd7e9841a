// The fused preparation, backward (kernels/gdn_pre_rule.h): blocks of tokens over the threads. The convolution is formed again for a
// block and the few tokens after it that read the block; sums over tokens are kept by block and added in rising order of blocks.
#include <cmath>

#include "kernels/cpu/conv_reach.h"
#include "kernels/cpu/delta_rule_plan.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/gdn_pre_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gdn_pre_rule_backward.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/gdn_pre_rule-inl.h"

#ifndef DELTRON_KERNELS_CPU_GDN_PRE_RULE_BACKWARD_ONCE
#define DELTRON_KERNELS_CPU_GDN_PRE_RULE_BACKWARD_ONCE
namespace deltron::kernels::cpu {

// Workspace of a backward call, as counts or as places.
template <class T>
struct PreRuleBackwardSpace {
  T* weights;      // [kernel, channels]
  T* weight_sums;  // [blocks, kernel, channels], null where the gradient is not wanted
  T* bias_sums;    // [blocks, N]; N: Hv, or Dq
  T* rate_sums;    // [blocks, N]
  T* scratch;      // [threads, slot]
  std::int64_t slot;

  PreRuleBackwardSpace(Carver& carver, const GdnPreRuleBackwardArgs& args, int threads) {
    const std::int64_t channels = 2 * args.key_heads * args.key_dim + args.value_heads * args.value_dim;
    const std::int64_t blocks = (args.tokens + kConvBlock - 1) / kConvBlock;
    const std::int64_t width = (std::max(args.key_dim, args.value_dim) + 15) / 16 * 16;
    const std::int64_t n = args.gates == PreRuleGates::Heads ? args.value_heads : args.key_heads * args.key_dim;
    slot = (kConvRows + 1) * width;
    weights = carver.take<T>(args.kernel * channels);
    weight_sums = carver.take<T>(args.d_conv_weight != nullptr ? blocks * args.kernel * channels : 0);
    bias_sums = carver.take<T>(args.d_dt_bias != nullptr ? blocks * n : 0);
    rate_sums = carver.take<T>(args.d_A_log != nullptr ? blocks * n : 0);
    scratch = carver.take<T>(threads * slot);
    if (args.d_conv_weight == nullptr) weight_sums = nullptr;
    if (args.d_dt_bias == nullptr) bias_sums = nullptr;
    if (args.d_A_log == nullptr) rate_sums = nullptr;
  }
};

}  // namespace deltron::kernels::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {
namespace {

template <class S>
struct PreRuleBackward {
  using T = Compute<S>;
  const GdnPreRuleBackwardArgs& args;
  const PreRuleBackwardSpace<T>& space;
  const std::int64_t channels;
  const std::int64_t key_width;  // Dq

  // Gradient of the convolution's sum at one token and head -> to [width]. `values` [width]: scratch.
  template <bool kNormed>
  void sum_gradient(std::int64_t t, std::int64_t before, std::int64_t channel, std::int64_t width, T* to, T* values) const {
    const Tag<T> d;
    const S* x = static_cast<const S*>(args.qkv.data) + t * args.qkv.row_stride + channel;
    const S* dy = static_cast<const S*>(args.d_prepared.data) + t * args.d_prepared.row_stride + channel;
    const auto convolved = [&](std::int64_t i, auto part) HWY_ATTR {
      return convolve_rounded(d, x + i, args.qkv.row_stride, space.weights + channel + i, channels, args.kernel, before, part);
    };
    if constexpr (kNormed) {
      auto square = hn::Zero(d), along = hn::Zero(d);
      for_lanes(d, width, [&](std::int64_t i, auto part) HWY_ATTR {
        const auto c = convolved(i, part);
        const auto s = round_to_storage<S>(d, silu(d, c));
        square = hn::MulAdd(s, s, square);
        along = hn::MulAdd(s, load(d, dy + i, part), along);
        store(c, d, to + i, part);
        store(s, d, values + i, part);
      });
      const T r = T(1) / std::sqrt(sum_lanes(d, square) + static_cast<T>(args.epsilon));
      const auto rstd = hn::Set(d, r), inward = hn::Set(d, r * r * sum_lanes(d, along));
      for_lanes(d, width, [&](std::int64_t i, auto part) HWY_ATTR {
        const auto c = load(d, to + i, part);
        const auto ds = hn::Mul(rstd, hn::NegMulAdd(load(d, values + i, part), inward, load(d, dy + i, part)));
        store(hn::Mul(ds, silu_derivative(d, c, sigmoid(d, c))), d, to + i, part);
      });
    } else {
      for_lanes(d, width, [&](std::int64_t i, auto part) HWY_ATTR {
        const auto c = convolved(i, part);
        store(hn::Mul(load(d, dy + i, part), silu_derivative(d, c, sigmoid(d, c))), d, to + i, part);
      });
    }
  }

  template <bool kNormed>
  void head(const ConvReach& reach, std::int64_t begin, std::int64_t end, std::int64_t channel, std::int64_t width, T* scratch) const {
    const Tag<T> d;
    const std::int64_t kernel = args.kernel, halo = std::min(args.tokens, end + kernel - 1);
    T* dz = scratch;  // [halo - begin, width]
    T* values = scratch + kConvRows * width;
    for (std::int64_t t = begin; t < halo; ++t)
      sum_gradient<kNormed>(t, reach.before[t - begin], channel, width, dz + (t - begin) * width, values);
    for_lanes(d, width, [&](std::int64_t i, auto part) HWY_ATTR {
      const S* x = static_cast<const S*>(args.qkv.data) + channel + i;
      S* dx = static_cast<S*>(args.d_qkv.data) + channel + i;
      const T* weights = space.weights + channel + i;
      for (std::int64_t t = begin; t < end; ++t) {
        auto sum = hn::Zero(d);
        for (std::int64_t ahead = 0; ahead <= reach.after[t - begin]; ++ahead) {
          sum = hn::MulAdd(load(d, weights + (kernel - 1 - ahead) * channels, part), load(d, dz + (t - begin + ahead) * width + i, part), sum);
        }
        store(sum, d, dx + t * args.d_qkv.row_stride, part);
      }
      if (space.weight_sums == nullptr) return;
      T* sums = space.weight_sums + begin / kConvBlock * kernel * channels + channel + i;
      for (std::int64_t back = 0; back < kernel; ++back) {
        auto sum = hn::Zero(d);
        for (std::int64_t t = begin; t < end; ++t) {
          if (back > reach.before[t - begin]) continue;
          sum = hn::MulAdd(load(d, dz + (t - begin) * width + i, part), load(d, x + (t - back) * args.qkv.row_stride, part), sum);
        }
        store(sum, d, sums + (kernel - 1 - back) * channels, part);
      }
    });
  }

  // Channels [i, i + lanes) of the decay, whose pre-activation lies at column `column` of raw: d f, and sums over the block's tokens.
  template <class P>
  void decay_gradient(std::int64_t begin, std::int64_t end, std::int64_t i, std::int64_t n, std::int64_t column, hn::Vec<Tag<T>> rate,
                      P part) const {
    const Tag<T> d;
    const auto bias = load(d, static_cast<const T*>(args.dt_bias) + i, part);
    auto bias_sum = hn::Zero(d), rate_sum = hn::Zero(d);
    for (std::int64_t t = begin; t < end; ++t) {
      const auto x = hn::Add(load(d, static_cast<const S*>(args.raw.data) + t * args.raw.row_stride + column + i, part), bias);
      const auto dg = load(d, static_cast<const T*>(args.d_decay) + t * n + i, part);
      const auto df = hn::Neg(hn::Mul(hn::Mul(rate, softplus_slope(d, x)), dg));
      store(df, d, static_cast<S*>(args.d_raw.data) + t * args.d_raw.row_stride + column + i, part);
      bias_sum = hn::Add(bias_sum, df);
      rate_sum = hn::MulAdd(log_decay(d, rate, x), dg, rate_sum);
    }
    const std::int64_t block = begin / kConvBlock;
    if (space.bias_sums != nullptr) store(bias_sum, d, space.bias_sums + block * n + i, part);
    if (space.rate_sums != nullptr) store(rate_sum, d, space.rate_sums + block * n + i, part);
  }

  // top sigmoid(raw): `count` columns from `column` on.
  void sigmoid_gradient(std::int64_t begin, std::int64_t end, std::int64_t column, std::int64_t count, const void* gradient, T top) const {
    const Tag<T> d;
    const auto one = hn::Set(d, T(1)), factor = hn::Set(d, top);
    for (std::int64_t t = begin; t < end; ++t) {
      const S* raw = static_cast<const S*>(args.raw.data) + t * args.raw.row_stride + column;
      const S* dy = static_cast<const S*>(gradient) + t * count;
      S* to = static_cast<S*>(args.d_raw.data) + t * args.d_raw.row_stride + column;
      for_lanes(d, count, [&](std::int64_t i, auto part) HWY_ATTR {
        const auto s = sigmoid(d, load(d, raw + i, part));
        store(hn::Mul(hn::Mul(factor, load(d, dy + i, part)), hn::Mul(s, hn::Sub(one, s))), d, to + i, part);
      });
    }
  }

  void block(std::int64_t begin, std::int64_t end, T* scratch) const {
    const Tag<T> d;
    ConvReach reach;
    reach.fill(args.documents, begin, std::min(args.tokens, end + args.kernel - 1), args.kernel);
    for (std::int64_t h = 0; h < 2 * args.key_heads; ++h) head<true>(reach, begin, end, h * args.key_dim, args.key_dim, scratch);
    for (std::int64_t h = 0; h < args.value_heads; ++h)
      head<false>(reach, begin, end, 2 * key_width + h * args.value_dim, args.value_dim, scratch);
    const T top = args.allow_neg_eigval ? T(2) : T(1);
    const T* A_log = static_cast<const T*>(args.A_log);
    if (args.gates == PreRuleGates::Heads) {
      const std::int64_t heads = args.value_heads;
      sigmoid_gradient(begin, end, 0, heads, args.d_strength, top);
      for_lanes(d, heads, [&](std::int64_t i, auto part) HWY_ATTR {
        decay_gradient(begin, end, i, heads, heads, exp(d, load(d, A_log + i, part)), part);
      });
      return;
    }
    for (std::int64_t h = 0; h < args.key_heads; ++h) {
      const auto rate = exp(d, hn::Set(d, A_log[h]));
      for_lanes(d, args.key_dim, [&](std::int64_t j, auto part) HWY_ATTR {
        decay_gradient(begin, end, h * args.key_dim + j, key_width, 0, rate, part);
      });
    }
    sigmoid_gradient(begin, end, key_width, key_width, args.d_strength, top);
    sigmoid_gradient(begin, end, 2 * key_width, channels - 2 * key_width, args.d_write, T(1));
  }

  // Sums over blocks in rising order, in fp64.
  void reduce(std::int64_t blocks, ThreadPool& pool) const {
    if (space.weight_sums != nullptr) {
      T* to = static_cast<T*>(args.d_conv_weight);
      parallel_for(pool, channels, 64, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = 0; i < args.kernel; ++i) {
          for (std::int64_t c = begin; c < end; ++c) {
            double sum = 0;
            for (std::int64_t b = 0; b < blocks; ++b) sum += space.weight_sums[(b * args.kernel + i) * channels + c];
            to[c * args.kernel + i] += static_cast<T>(sum);
          }
        }
      });
    }
    const bool by_head = args.gates == PreRuleGates::Heads;
    const std::int64_t n = by_head ? args.value_heads : key_width;
    const auto total = [&](const T* sums, std::int64_t i) {
      double sum = 0;
      for (std::int64_t b = 0; b < blocks; ++b) sum += sums[b * n + i];
      return sum;
    };
    if (space.bias_sums != nullptr) {
      for (std::int64_t i = 0; i < n; ++i) static_cast<T*>(args.d_dt_bias)[i] += static_cast<T>(total(space.bias_sums, i));
    }
    if (space.rate_sums != nullptr) {
      const std::int64_t width = by_head ? 1 : args.key_dim;
      for (std::int64_t h = 0; h < n / width; ++h) {
        double sum = 0;
        for (std::int64_t j = 0; j < width; ++j) sum += total(space.rate_sums, h * width + j);
        static_cast<T*>(args.d_A_log)[h] += static_cast<T>(sum);
      }
    }
  }
};

void pre_rule_backward(const GdnPreRuleBackwardArgs& args, ThreadPool& pool) {
  with_storage(args.dtype, "gdn_pre_rule", [&](auto s) {
    using S = decltype(s);
    using T = Compute<S>;
    Carver carver(args.workspace.data);
    const PreRuleBackwardSpace<T> space(carver, args, pool.threads());
    transpose_conv_weight(args, space.weights);
    const PreRuleBackward<S> work{args, space, pre_rule_channels(args), args.key_heads * args.key_dim};
    const std::int64_t blocks = (args.tokens + kConvBlock - 1) / kConvBlock;
    run_items(pool, blocks, [&](std::int64_t item, std::int64_t slot) {
      work.block(item * kConvBlock, std::min(args.tokens, (item + 1) * kConvBlock), space.scratch + slot * space.slot);
    });
    work.reduce(blocks, pool);
  });
}

}  // namespace
}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(pre_rule_backward);

std::int64_t gdn_pre_rule_backward_workspace_bytes(const GdnPreRuleBackwardArgs& args, const StreamHandle& stream) {
  Carver carver(nullptr);
  if (args.dtype == DType::F64) {
    const PreRuleBackwardSpace<double> space(carver, args, stream.pool->threads());
  } else {
    const PreRuleBackwardSpace<float> space(carver, args, stream.pool->threads());
  }
  return carver.bytes();
}

void gdn_pre_rule_backward(const GdnPreRuleBackwardArgs& args, const StreamHandle& stream) {
  check_conv(args, "gdn_pre_rule");
  DELTRON_CHECK_GE(args.workspace.bytes, gdn_pre_rule_backward_workspace_bytes(args, stream), "workspace of gdn_pre_rule_backward");
  if (args.tokens == 0) return;
  HWY_DYNAMIC_DISPATCH(pre_rule_backward)(args, *stream.pool);
}

}  // namespace deltron::kernels::cpu
#endif
