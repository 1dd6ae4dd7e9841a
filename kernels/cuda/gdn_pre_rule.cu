// The fused preparation before the delta rule on cuda: entry points, and plain kernels for what the streaming ones
// (gdn_pre_stream.cuh) do not take: a warp owns a head of q, k or v and walks a strip of tokens with the taps in registers. Gates
// are in gdn_pre_gates.cuh.
#include "kernels/gdn_pre_rule.h"

#include <initializer_list>

#include "kernels/cuda/gdn_pre_gates.cuh"
#include "kernels/cuda/gdn_pre_stream.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kTaps = kPreRuleTapsCuda;
constexpr int kWarps = 4;  // of a block

// The head that a warp owns.
struct Head {
  bool normed;
  std::int64_t channel;
  int width;
};
template <class Args>
__device__ __forceinline__ Head head_of(const Args& a, std::int64_t number) {
  if (number < 2 * a.key_heads) return {true, number * a.key_dim, static_cast<int>(a.key_dim)};
  return {false, 2 * a.key_heads * a.key_dim + (number - 2 * a.key_heads) * a.value_dim, static_cast<int>(a.value_dim)};
}
template <class Args>
__host__ __device__ std::int64_t channels_of(const Args& a) {
  return 2 * a.key_heads * a.key_dim + a.value_heads * a.value_dim;
}

// Channels lane, lane + 32, ... of a head; beyond its width they are zero.
template <class S, class C, int kPer>
__device__ __forceinline__ void load_lanes(const S* from, int width, C (&to)[kPer]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kPer; ++j) to[j] = lane + 32 * j < width ? static_cast<C>(widen(from[lane + 32 * j])) : C(0);
}
template <class S, class C, int kPer>
__device__ __forceinline__ void store_lanes(const C (&from)[kPer], int width, S* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    if (lane + 32 * j < width) to[lane + 32 * j] = narrow<S>(from[j]);
  }
}

// Taps and the tokens before `begin`, for the walk (conv_walk.cuh): window[back] holds what is `back + 1` before it.
template <class S, class C, int kPer, class Args>
__device__ __forceinline__ void start_walk(const Args& a, const Head& head, const S* x, std::int64_t begin, std::int64_t before,
                                           C (&w)[kTaps][kPer], C (&window)[kTaps][kPer]) {
  const int kernel = static_cast<int>(a.kernel), lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int back = 0; back < kTaps; ++back) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      C one[1] = {C(0)};
      if (back < kernel && lane + 32 * j < head.width) {
        load_parameter(a.conv_weight, a.conv_weight_dtype, (head.channel + lane + 32 * j) * kernel + kernel - 1 - back, one);
      }
      w[back][j] = one[0];
      window[back][j] = C(0);
    }
  }
#pragma unroll
  for (int back = 1; back < kTaps; ++back) {
    if (back <= before) load_lanes(x + (begin - back) * a.qkv.row_stride, head.width, window[back - 1]);
  }
}

template <class S, int kPer>
__global__ void __launch_bounds__(32 * kWarps) forward_kernel(GdnPreRuleForwardArgs a, std::int64_t strip) {
  using C = Compute<S>;
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.y) * kWarps + threadIdx.x / 32;
  if (number >= 2 * a.key_heads + a.value_heads) return;
  const Head head = head_of(a, number);
  const std::int64_t begin = blockIdx.x * strip, end = begin + strip < a.tokens ? begin + strip : a.tokens;
  const S* x = static_cast<const S*>(a.qkv.data) + head.channel;
  S* y = static_cast<S*>(a.prepared.data) + head.channel;
  C w[kTaps][kPer], window[kTaps][kPer], z[kPer];
  Reach reach(a.documents, begin);
  start_walk(a, head, x, begin, reach.before(begin), w, window);
  for (std::int64_t t = begin; t < end; ++t) {
    const std::int64_t before = capped(reach.before(t), a.kernel);
    shift(window);
    load_lanes(x + t * a.qkv.row_stride, head.width, window[0]);
    convolve(w, window, before, z);
    C sum = C(0);
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      z[j] = silu(round_to_storage<S>(z[j]));
      if (head.normed) z[j] = round_to_storage<S>(z[j]);
      sum += z[j] * z[j];
    }
    if (head.normed) {
      const C rstd = C(1) / sqrt(group_sum<32, C>(sum, nullptr) + static_cast<C>(a.epsilon));
#pragma unroll
      for (int j = 0; j < kPer; ++j) z[j] *= rstd;
    }
    store_lanes(z, head.width, y + t * a.prepared.row_stride);
  }
}

template <class S, int kPer>
__global__ void __launch_bounds__(32 * kWarps)
    backward_kernel(GdnPreRuleBackwardArgs a, std::int64_t strip, Compute<S>* weight_sums) {
  using C = Compute<S>;
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.y) * kWarps + threadIdx.x / 32;
  if (number >= 2 * a.key_heads + a.value_heads) return;
  const Head head = head_of(a, number);
  const int kernel = static_cast<int>(a.kernel);
  const std::int64_t begin = blockIdx.x * strip, end = begin + strip < a.tokens ? begin + strip : a.tokens;
  const S* x = static_cast<const S*>(a.qkv.data) + head.channel;
  const S* dy = static_cast<const S*>(a.d_prepared.data) + head.channel;
  S* to = static_cast<S*>(a.d_qkv.data) + head.channel;
  C w[kTaps][kPer], window[kTaps][kPer], dw[kTaps][kPer] = {}, dx[kTaps][kPer] = {}, z[kPer], dz[kPer];
  Reach reach(a.documents, begin);
  start_walk(a, head, x, begin, reach.before(begin), w, window);
  for (std::int64_t t = begin; t < end + kernel - 1; ++t) {
    shift(dx);
#pragma unroll
    for (int j = 0; j < kPer; ++j) dx[0][j] = C(0);
    if (t < a.tokens) {  // the same for the whole warp
      const std::int64_t before = capped(reach.before(t), a.kernel);
      shift(window);
      load_lanes(x + t * a.qkv.row_stride, head.width, window[0]);
      load_lanes(dy + t * a.d_prepared.row_stride, head.width, dz);
      convolve(w, window, before, z);
      C square = C(0), along = C(0);
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        z[j] = round_to_storage<S>(z[j]);
        const C s = round_to_storage<S>(silu(z[j]));
        square += s * s;
        along += s * dz[j];
      }
      if (head.normed) {
        const C rstd = C(1) / sqrt(group_sum<32, C>(square, nullptr) + static_cast<C>(a.epsilon));
        const C inward = rstd * rstd * group_sum<32, C>(along, nullptr);
#pragma unroll
        for (int j = 0; j < kPer; ++j) dz[j] = rstd * (dz[j] - round_to_storage<S>(silu(z[j])) * inward);
      }
#pragma unroll
      for (int j = 0; j < kPer; ++j) dz[j] *= silu_derivative(z[j], sigmoid(z[j]));
#pragma unroll
      for (int back = 0; back < kTaps; ++back) {
        if (back > before) continue;
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
          dx[back][j] = fma(w[back][j], dz[j], dx[back][j]);
          if (t < end) dw[back][j] = fma(dz[j], window[back][j], dw[back][j]);
        }
      }
    }
    const std::int64_t done = t - (kernel - 1);
    if (done < begin) continue;
#pragma unroll
    for (int back = 0; back < kTaps; ++back) {
      if (back == kernel - 1) store_lanes(dx[back], head.width, to + done * a.d_qkv.row_stride);
    }
  }
  if (weight_sums == nullptr) return;
  const std::int64_t channels = channels_of(a);
#pragma unroll
  for (int back = 0; back < kTaps; ++back) {
    if (back < kernel)
      store_lanes(dw[back], head.width,
                  weight_sums + (static_cast<std::int64_t>(blockIdx.x) * kernel + kernel - 1 - back) * channels + head.channel);
  }
}

template <class Args>
void check_pre_rule(const Args& args) {
  DELTRON_CHECK(args.kernel >= 1 && args.kernel <= kTaps, "gdn_pre_rule on cuda takes kernels of 1 to ", kTaps, ", not ",
                args.kernel);
  DELTRON_CHECK(args.key_dim <= kPreRuleHeadDimCuda && args.value_dim <= kPreRuleHeadDimCuda,
                "gdn_pre_rule on cuda takes heads of up to ", kPreRuleHeadDimCuda, ", not ", args.key_dim, " and ", args.value_dim);
  DELTRON_CHECK(args.tokens == 0 || args.documents.count > 0, "gdn_pre_rule needs documents");
  const std::int64_t* offsets = args.documents.host();
  DELTRON_CHECK(args.tokens == 0 || (offsets[0] == 0 && offsets[args.documents.count] == args.tokens),
                "cu_seqlens must run from 0 to the number of tokens, ", args.tokens);
  check_parameter(args.dtype, args.conv_weight_dtype, "gdn_pre_rule");
}

// f(channels a lane) as a compile-time constant.
template <class F>
void with_width(std::int64_t width, const F& f) {
  if (width <= 32) return f(std::integral_constant<int, 1>{});
  if (width <= 64) return f(std::integral_constant<int, 2>{});
  if (width <= 128) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 8>{});
}

// f(lanes of a head) as a compile-time constant and true, if the streaming kernels take the call; `views` are all rows they touch.
template <class S, class Args, class F>
bool with_stream(const Args& args, std::initializer_list<MatrixView> views, const F& f) {
  if constexpr (std::is_same_v<S, double>) {
    (void)args, (void)views, (void)f;
    return false;
  } else {
    const int group = pre_stream_group(args.key_dim, kVector<S>);
    bool fits = group > 0 && args.kernel == kStreamTaps && aligned16(args.conv_weight) && args.tokens < (1 << 30) &&
                channels_of(args) < (1 << 24) && args.value_heads * args.value_dim % kVector<S> == 0;
    for (const MatrixView& view : views) fits = fits && aligned16(view, args.dtype);
    if (!fits) return false;
    if (group == 8) f(std::integral_constant<int, 8>{});
    if (group == 16) f(std::integral_constant<int, 16>{});
    if (group == 32) f(std::integral_constant<int, 32>{});
    return true;
  }
}

template <class Args>
dim3 walk_grid(const Args& args, std::int64_t strip) {
  return dim3(static_cast<unsigned>(ceil_div(args.tokens, strip)),
              static_cast<unsigned>(ceil_div(2 * args.key_heads + args.value_heads, kWarps)));
}

struct BackwardSpace {  // numbers of values
  std::int64_t strips, weights, gates;
};
BackwardSpace space_of(const GdnPreRuleBackwardArgs& args) {
  const std::int64_t strips = ceil_div(args.tokens, strip_tokens(args.tokens));
  return {strips, strips * args.kernel * channels_of(args), strips * gate_columns(args)};
}

}  // namespace

std::int64_t gdn_pre_rule_forward_workspace_bytes(const GdnPreRuleForwardArgs&, const StreamHandle&) { return 0; }

void gdn_pre_rule_forward(const GdnPreRuleForwardArgs& args, const StreamHandle& stream) {
  check_pre_rule(args);
  if (args.tokens == 0) return;
  const std::int64_t strip = strip_tokens(args.tokens), width = args.key_dim > args.value_dim ? args.key_dim : args.value_dim;
  const char* what = "gdn_pre_rule_forward";
  with_storage(args.dtype, "gdn_pre_rule", [&](auto s) {
    using S = decltype(s);
    const bool streamed = with_stream<S>(args, {args.qkv, {args.prepared.data, args.prepared.row_stride}}, [&](auto group) {
      const int keys = pre_key_tiles(args, decltype(group)::value);
      const PreStreamGrid grid{kShortStrip, keys, keys + pre_value_tiles(args, kVector<S>)};
      const dim3 blocks(static_cast<unsigned>(grid.tiles * stream_blocks(args.tokens, grid.strip)));
      launch_kernel(what, pre_stream_forward<S, decltype(group)::value>, blocks, dim3(kStreamThreads), stream, args, grid);
    });
    if (!streamed) {
      with_width(width, [&](auto per) {
        launch_kernel(what, forward_kernel<S, decltype(per)::value>, walk_grid(args, strip), dim3(32 * kWarps), stream, args,
                      strip);
      });
    }
    launch_gates<S>(args, stream);
  });
}

std::int64_t gdn_pre_rule_backward_workspace_bytes(const GdnPreRuleBackwardArgs& args, const StreamHandle&) {
  const BackwardSpace space = space_of(args);
  return (space.weights + 2 * space.gates) * static_cast<std::int64_t>(dtype_size(compute_dtype(args.dtype)));
}

void gdn_pre_rule_backward(const GdnPreRuleBackwardArgs& args, const StreamHandle& stream) {
  check_pre_rule(args);
  if (args.tokens == 0) return;
  DELTRON_CHECK_GE(args.workspace.bytes, gdn_pre_rule_backward_workspace_bytes(args, stream), "workspace of gdn_pre_rule_backward");
  const std::int64_t strip = strip_tokens(args.tokens), width = args.key_dim > args.value_dim ? args.key_dim : args.value_dim;
  const std::int64_t n = gate_columns(args);
  const BackwardSpace space = space_of(args);
  const char* what = "gdn_pre_rule_backward";
  with_storage(args.dtype, "gdn_pre_rule", [&](auto s) {
    using S = decltype(s);
    using C = Compute<S>;
    C* weight_sums = static_cast<C*>(args.workspace.data);
    C* bias_sums = weight_sums + space.weights;
    C* rate_sums = bias_sums + space.gates;
    C* wanted_sums = args.d_conv_weight == nullptr ? nullptr : weight_sums;
    std::int64_t partials = space.strips;
    const bool streamed =
        with_stream<S>(args, {args.qkv, args.d_prepared, {args.d_qkv.data, args.d_qkv.row_stride}}, [&](auto group) {
          if constexpr (std::is_same_v<C, float>) {
            constexpr int N = kVector<S>, kGroup = decltype(group)::value;
            const int keys = pre_key_tiles(args, kGroup), values = pre_value_tiles(args, N), most = keys > values ? keys : values;
            const int strip = pre_backward_strip(args.tokens, most, kHopperProcessors * kPreBackwardBlocks<N>);
            partials = stream_blocks(args.tokens, strip);
            DELTRON_CHECK_LE(partials, space.strips, "partial sums, and what the workspace holds of them");
            const auto blocks = [&](int tiles) { return dim3(static_cast<unsigned>(tiles * partials)); };
            launch_kernel(what, pre_stream_backward<S, kGroup, true>, blocks(keys), dim3(kStreamThreads), stream, args,
                          PreStreamGrid{strip, keys, keys}, wanted_sums);
            launch_kernel(what, pre_stream_backward<S, 32, false>, blocks(values), dim3(kStreamThreads), stream, args,
                          PreStreamGrid{strip, 0, values}, wanted_sums);
          }
        });
    if (!streamed) {
      with_width(width, [&](auto per) {
        launch_kernel(what, backward_kernel<S, decltype(per)::value>, walk_grid(args, strip), dim3(32 * kWarps), stream, args,
                      strip, wanted_sums);
      });
    }
    launch_gates_backward<S>(args, space.strips, strip, bias_sums, rate_sums, stream);
    if (args.d_conv_weight != nullptr)
      add_partials<C>(weight_sums, partials, args.kernel * channels_of(args), args.kernel, args.d_conv_weight, stream);
    if (args.d_dt_bias != nullptr) add_partials<C>(bias_sums, space.strips, n, 1, args.d_dt_bias, stream);
    if (args.d_A_log != nullptr) {
      const int of_head = args.gates == PreRuleGates::Heads ? 1 : static_cast<int>(args.key_dim);
      launch_kernel("gdn_pre_rule_backward A_log", rate_kernel<C>, dim3(static_cast<unsigned>(n / of_head)), dim3(256), stream,
                    static_cast<const C*>(rate_sums), space.strips, n, of_head, static_cast<C*>(args.d_A_log));
    }
  });
}

}  // namespace deltron::kernels::cuda
