// Depthwise causal convolution and SiLU (kernels/causal_conv1d.h): vectors of channels, blocks of tokens. Backward recomputes the
// value before SiLU for the block and the few tokens after it that read the block; dweight is summed by fixed blocks of tokens.
#include "kernels/causal_conv1d.h"

#include <algorithm>

#include "kernels/cpu/conv_reach.h"
#include "kernels/cpu/simd_targets.h"
#include "src/base/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/causal_conv1d.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

// Weights of one vector of channels as [kernel][lanes] of the compute type; lanes past the last channel are zero.
template <class W, class D, class T = hn::TFromD<D>>
void load_conv_weights(D d, const W* weight, std::int64_t kernel, std::int64_t channel, std::int64_t channels, T* to) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t w = 0; w < kernel; ++w) {
    for (std::int64_t l = 0; l < lanes; ++l)
      to[w * lanes + l] = channel + l < channels ? widen(weight[(channel + l) * kernel + w]) : T(0);
  }
}

// The value before SiLU of one token: sum over the taps inside the document, oldest first.
template <class S, class D, class P, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> convolve(D d, const S* x, std::int64_t stride, const T* weights, std::int64_t kernel, std::int64_t before,
                               P part) {
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  for (std::int64_t back = before; back >= 0; --back) {
    sum = hn::MulAdd(hn::Load(d, weights + (kernel - 1 - back) * lanes), load(d, x - back * stride, part), sum);
  }
  return sum;
}

template <class S, class W>
void conv_forward(const CausalConv1dForwardArgs& args, ThreadPool& pool) {
  using T = Compute<S>;
  parallel_for(pool, args.tokens, kConvBlock, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    const Tag<T> d;
    ConvReach reach;
    reach.fill(args.documents, begin, end, args.kernel);
    HWY_ALIGN T weights[kConvMaxKernel * hn::MaxLanes(d)];
    for_lanes(d, args.channels, [&](std::int64_t channel, auto part) HWY_ATTR {
      load_conv_weights(d, static_cast<const W*>(args.weight), args.kernel, channel, args.channels, weights);
      for (std::int64_t t = begin; t < end; ++t) {
        const S* x = static_cast<const S*>(args.x.data) + t * args.x.row_stride + channel;
        S* y = static_cast<S*>(args.y.data) + t * args.y.row_stride + channel;
        const auto z = convolve(d, x, args.x.row_stride, weights, args.kernel, reach.before[t - begin], part);
        store(args.silu ? silu(d, z) : z, d, y, part);
      }
    });
  });
}

template <class S, class W>
void conv_backward(const CausalConv1dBackwardArgs& args, ThreadPool& pool) {
  using T = Compute<S>;
  const std::int64_t kernel = args.kernel, channels = args.channels;
  T* partials = static_cast<T*>(args.workspace.data);  // [blocks, kernel, channels]
  parallel_for(pool, args.tokens, kConvBlock, [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    const Tag<T> d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const std::int64_t halo = std::min(args.tokens, end + kernel - 1);
    ConvReach reach;
    reach.fill(args.documents, begin, halo, kernel);
    T* partial = partials == nullptr ? nullptr : partials + begin / kConvBlock * kernel * channels;
    HWY_ALIGN T weights[kConvMaxKernel * hn::MaxLanes(d)];
    HWY_ALIGN T dz[kConvRows * hn::MaxLanes(d)];
    for_lanes(d, channels, [&](std::int64_t channel, auto part) HWY_ATTR {
      load_conv_weights(d, static_cast<const W*>(args.weight), kernel, channel, channels, weights);
      const S* x = static_cast<const S*>(args.x.data) + channel;
      const S* dy = static_cast<const S*>(args.dy.data) + channel;
      S* dx = static_cast<S*>(args.dx.data) + channel;
      for (std::int64_t t = begin; t < halo; ++t) {
        auto gradient = load(d, dy + t * args.dy.row_stride, part);
        if (args.silu) {
          const auto z = convolve(d, x + t * args.x.row_stride, args.x.row_stride, weights, kernel, reach.before[t - begin], part);
          gradient = hn::Mul(gradient, silu_derivative(d, z, sigmoid(d, z)));
        }
        hn::Store(gradient, d, dz + (t - begin) * lanes);
      }
      for (std::int64_t t = begin; t < end; ++t) {
        auto sum = hn::Zero(d);
        for (std::int64_t ahead = 0; ahead <= reach.after[t - begin]; ++ahead) {
          sum = hn::MulAdd(hn::Load(d, weights + (kernel - 1 - ahead) * lanes), hn::Load(d, dz + (t - begin + ahead) * lanes), sum);
        }
        store(sum, d, dx + t * args.dx.row_stride, part);
      }
      if (partial == nullptr) return;
      for (std::int64_t back = 0; back < kernel; ++back) {
        auto sum = hn::Zero(d);
        for (std::int64_t t = begin; t < end; ++t) {
          if (back > reach.before[t - begin]) continue;
          sum = hn::MulAdd(hn::Load(d, dz + (t - begin) * lanes), load(d, x + (t - back) * args.x.row_stride, part), sum);
        }
        store(sum, d, partial + (kernel - 1 - back) * channels + channel, part);
      }
    });
  });
  if (args.dweight == nullptr) return;
  const std::int64_t blocks = (args.tokens + kConvBlock - 1) / kConvBlock;
  T* dweight = static_cast<T*>(args.dweight);
  parallel_for(pool, channels, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t w = 0; w < kernel; ++w) {
      T sums[64] = {};
      for (std::int64_t block = 0; block < blocks; ++block) {
        const T* row = partials + (block * kernel + w) * channels;
        for (std::int64_t c = begin; c < end; ++c) sums[c - begin] += row[c];
      }
      for (std::int64_t c = begin; c < end; ++c) dweight[c * kernel + w] += sums[c - begin];
    }
  });
}

void conv_forward_any(const CausalConv1dForwardArgs& args, ThreadPool& pool) {
  with_storage(args.dtype, "causal_conv1d", [&](auto s) {
    using S = decltype(s);
    with_storage_of<Compute<S>>(args.weight_dtype, "causal_conv1d", [&](auto w) { conv_forward<S, decltype(w)>(args, pool); });
  });
}
void conv_backward_any(const CausalConv1dBackwardArgs& args, ThreadPool& pool) {
  with_storage(args.dtype, "causal_conv1d", [&](auto s) {
    using S = decltype(s);
    with_storage_of<Compute<S>>(args.weight_dtype, "causal_conv1d", [&](auto w) { conv_backward<S, decltype(w)>(args, pool); });
  });
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(conv_forward_any);
HWY_EXPORT(conv_backward_any);

void causal_conv1d_forward(const CausalConv1dForwardArgs& args, const StreamHandle& stream) {
  check_conv(args, "causal_conv1d");
  HWY_DYNAMIC_DISPATCH(conv_forward_any)(args, *stream.pool);
}

std::int64_t causal_conv1d_backward_workspace_bytes(const CausalConv1dBackwardArgs& args, const StreamHandle&) {
  if (args.dweight == nullptr) return 0;
  return (args.tokens + kConvBlock - 1) / kConvBlock * args.kernel * args.channels *
         static_cast<std::int64_t>(dtype_size(compute_dtype(args.dtype)));
}

void causal_conv1d_backward(const CausalConv1dBackwardArgs& args, const StreamHandle& stream) {
  check_conv(args, "causal_conv1d");
  DELTRON_CHECK_GE(args.workspace.bytes, causal_conv1d_backward_workspace_bytes(args, stream),
                   "workspace of causal_conv1d_backward");
  CausalConv1dBackwardArgs checked = args;
  if (args.dweight == nullptr) checked.workspace.data = nullptr;
  HWY_DYNAMIC_DISPATCH(conv_backward_any)(checked, *stream.pool);
}

}  // namespace deltron::kernels::cpu
#endif
