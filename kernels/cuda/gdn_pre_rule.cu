// The fused preparation before the delta rule on cuda (kernels/gdn_pre_rule.h): a warp owns a head of q, k or v and walks a strip
// of tokens with the taps in registers; gates go by column. Sums over tokens are kept by strips and added in rising order.
#include "kernels/gdn_pre_rule.h"

#include "kernels/cuda/conv_walk.cuh"

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

__device__ __forceinline__ float log_of_one_plus(float x) { return log1pf(x); }
__device__ __forceinline__ double log_of_one_plus(double x) { return log1p(x); }
// softplus, with its linear branch above 20.
template <class C>
__device__ __forceinline__ C softplus(C x) {
  return x > C(20) ? x : (x > C(0) ? x : C(0)) + log_of_one_plus(exponential(x < C(0) ? x : -x));
}

// Column `col` of raw: which gate, which column of it, and the head whose A_log counts.
enum class Gate { Decay, Strength, Write };
struct Column {
  Gate gate;
  std::int64_t col, head;
};
template <class Args>
__device__ __forceinline__ Column column_of(const Args& a, std::int64_t col) {
  if (a.gates == PreRuleGates::Heads) {
    return col < a.value_heads ? Column{Gate::Strength, col, 0} : Column{Gate::Decay, col - a.value_heads, col - a.value_heads};
  }
  const std::int64_t width = a.key_heads * a.key_dim;
  if (col < width) return {Gate::Decay, col, col / a.key_dim};
  return col < 2 * width ? Column{Gate::Strength, col - width, 0} : Column{Gate::Write, col - 2 * width, 0};
}
template <class Args>
__host__ __device__ std::int64_t gate_columns(const Args& a) {  // of decay and strength
  return a.gates == PreRuleGates::Heads ? a.value_heads : a.key_heads * a.key_dim;
}
template <class Args>
std::int64_t raw_columns(const Args& a) {
  return a.gates == PreRuleGates::Heads ? 2 * a.value_heads : 2 * a.key_heads * a.key_dim + a.value_heads * a.value_dim;
}

template <class S>
struct Gates {
  GdnPreRuleForwardArgs a;
  template <int N>
  __device__ void at(std::int64_t t, std::int64_t col) const {
    using C = Compute<S>;
    const C raw = widen(static_cast<const S*>(a.raw.data)[t * a.raw.row_stride + col]);
    const Column c = column_of(a, col);
    if (c.gate == Gate::Decay) {
      const C rate = exponential(static_cast<const C*>(a.A_log)[c.head]);
      static_cast<C*>(a.decay)[t * gate_columns(a) + c.col] = -(rate * softplus(raw + static_cast<const C*>(a.dt_bias)[c.col]));
    } else if (c.gate == Gate::Strength) {
      static_cast<S*>(a.strength)[t * gate_columns(a) + c.col] = narrow<S>((a.allow_neg_eigval ? C(2) : C(1)) * sigmoid(raw));
    } else {
      static_cast<S*>(a.write)[t * a.value_heads * a.value_dim + c.col] = narrow<S>(sigmoid(raw));
    }
  }
};

// A thread owns a column of raw and a strip of tokens.
template <class S>
__global__ void gates_backward_kernel(GdnPreRuleBackwardArgs a, std::int64_t columns, std::int64_t strip, Compute<S>* bias_sums,
                                      Compute<S>* rate_sums) {
  using C = Compute<S>;
  const std::int64_t col = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (col >= columns) return;
  const std::int64_t begin = blockIdx.x * strip, end = begin + strip < a.tokens ? begin + strip : a.tokens, n = gate_columns(a);
  const Column c = column_of(a, col);
  const C rate = c.gate == Gate::Decay ? exponential(static_cast<const C*>(a.A_log)[c.head]) : C(0);
  const C bias = c.gate == Gate::Decay ? static_cast<const C*>(a.dt_bias)[c.col] : C(0);
  const C top = c.gate == Gate::Strength && a.allow_neg_eigval ? C(2) : C(1);
  C bias_sum = C(0), rate_sum = C(0);
  for (std::int64_t t = begin; t < end; ++t) {
    const C raw = widen(static_cast<const S*>(a.raw.data)[t * a.raw.row_stride + col]);
    C slope;
    if (c.gate == Gate::Decay) {
      const C x = raw + bias, dg = static_cast<const C*>(a.d_decay)[t * n + c.col];
      slope = -(rate * (x > C(20) ? C(1) : sigmoid(x)) * dg);
      bias_sum += slope;
      rate_sum -= rate * softplus(x) * dg;
    } else {
      const S* from = c.gate == Gate::Strength ? static_cast<const S*>(a.d_strength) + t * n
                                               : static_cast<const S*>(a.d_write) + t * a.value_heads * a.value_dim;
      const C s = sigmoid(raw);
      slope = top * static_cast<C>(widen(from[c.col])) * (s * (C(1) - s));
    }
    static_cast<S*>(a.d_raw.data)[t * a.d_raw.row_stride + col] = narrow<S>(slope);
  }
  if (c.gate != Gate::Decay) return;
  if (bias_sums != nullptr) bias_sums[blockIdx.x * n + c.col] = bias_sum;
  if (rate_sums != nullptr) rate_sums[blockIdx.x * n + c.col] = rate_sum;
}

// d_A_log [n / width] += sums over strips and over the head's channels, in fp64; a block a head.
template <class C>
__global__ void rate_kernel(const C* sums, std::int64_t strips, std::int64_t n, std::int64_t width, C* out) {
  __shared__ double shared[8];
  const std::int64_t head = blockIdx.x;
  double sum = 0;
  for (std::int64_t j = threadIdx.x; j < width; j += 256) {
    for (std::int64_t strip = 0; strip < strips; ++strip) sum += static_cast<double>(sums[strip * n + head * width + j]);
  }
  sum = group_sum<256>(sum, shared);
  if (threadIdx.x == 0) out[head] += static_cast<C>(sum);
}

template <class Args>
void check_pre_rule(const Args& args) {
  DELTRON_CHECK(args.kernel >= 1 && args.kernel <= kTaps, "gdn_pre_rule on cuda takes kernels of 1 to ", kTaps, ", not ",
                args.kernel);
  DELTRON_CHECK(args.key_dim <= kPreRuleHeadDimCuda && args.value_dim <= kPreRuleHeadDimCuda, "gdn_pre_rule on cuda takes heads of up to ",
                kPreRuleHeadDimCuda, ", not ", args.key_dim, " and ", args.value_dim);
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
  with_storage(args.dtype, "gdn_pre_rule", [&](auto s) {
    using S = decltype(s);
    with_width(width, [&](auto per) {
      forward_kernel<S, decltype(per)::value><<<walk_grid(args, strip), 32 * kWarps, 0, native(stream)>>>(args, strip);
    });
    check_launch("gdn_pre_rule_forward");
    launch_matrix<1>(Gates<S>{args}, args.tokens, raw_columns(args), stream, "gdn_pre_rule_forward gates");
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
  const std::int64_t n = gate_columns(args), columns = raw_columns(args);
  const BackwardSpace space = space_of(args);
  with_storage(args.dtype, "gdn_pre_rule", [&](auto s) {
    using S = decltype(s);
    using C = Compute<S>;
    C* weight_sums = static_cast<C*>(args.workspace.data);
    C* bias_sums = weight_sums + space.weights;
    C* rate_sums = bias_sums + space.gates;
    with_width(width, [&](auto per) {
      backward_kernel<S, decltype(per)::value><<<walk_grid(args, strip), 32 * kWarps, 0, native(stream)>>>(
          args, strip, args.d_conv_weight == nullptr ? nullptr : weight_sums);
    });
    check_launch("gdn_pre_rule_backward");
    const dim3 grid(static_cast<unsigned>(space.strips), static_cast<unsigned>(ceil_div(columns, 64)));
    gates_backward_kernel<S><<<grid, 64, 0, native(stream)>>>(args, columns, strip, bias_sums, rate_sums);
    check_launch("gdn_pre_rule_backward gates");
    if (args.d_conv_weight != nullptr)
      add_partials<C>(weight_sums, space.strips, args.kernel * channels_of(args), args.kernel, args.d_conv_weight, stream);
    if (args.d_dt_bias != nullptr) add_partials<C>(bias_sums, space.strips, n, 1, args.d_dt_bias, stream);
    if (args.d_A_log != nullptr) {
      const std::int64_t of_head = args.gates == PreRuleGates::Heads ? 1 : args.key_dim;
      rate_kernel<C><<<static_cast<unsigned>(n / of_head), 256, 0, native(stream)>>>(rate_sums, space.strips, n, of_head,
                                                                                     static_cast<C*>(args.d_A_log));
      check_launch("gdn_pre_rule_backward A_log");
    }
  });
}

}  // namespace deltron::kernels::cuda
