// The gates of the fused preparation: columns of `raw` become log-decays, strengths and write gates, and their gradients come back.
// A thread owns N neighbouring columns of one gate and head. Sums over tokens are kept by strips and added in rising order.
#pragma once

#include "kernels/cuda/streams.cuh"
#include "kernels/gdn_pre_rule.h"

namespace deltron::kernels::cuda {

__device__ __forceinline__ float log_of_one_plus(float x) { return log1pf(x); }
__device__ __forceinline__ double log_of_one_plus(double x) { return log1p(x); }
// softplus, with its linear branch above 20.
template <class C>
__device__ __forceinline__ C softplus(C x) {
  return x > C(20) ? x : (x > C(0) ? x : C(0)) + log_of_one_plus(exponential(x < C(0) ? x : -x));
}

// The same and its slope, of one exponential; the slope beside 16-bit storage by the approximate reciprocal.
template <class S, class C>
__device__ __forceinline__ C softplus(C x, C& slope) {
  const C e = exponential(x < C(0) ? x : -x), above = x < C(0) ? e : C(1);
#ifdef __CUDACC__
  if constexpr (sizeof(S) == 2) {
    slope = __fdividef(above, C(1) + e);
  } else {
    slope = above / (C(1) + e);
  }
#else
  slope = above / (C(1) + e);
#endif
  if (x > C(20)) slope = C(1);
  return x > C(20) ? x : (x > C(0) ? x : C(0)) + log_of_one_plus(e);
}

// Column `col` of raw: which gate, which column of it, and the head whose A_log counts.
enum class Gate { Decay, Strength, Write };
struct GateColumn {
  Gate gate;
  int col, head;
};
template <class Args>
__device__ __forceinline__ GateColumn gate_column(const Args& a, int col) {
  if (a.gates == PreRuleGates::Heads) {
    const int heads = static_cast<int>(a.value_heads);
    return col < heads ? GateColumn{Gate::Strength, col, 0} : GateColumn{Gate::Decay, col - heads, col - heads};
  }
  const int width = static_cast<int>(a.key_heads * a.key_dim);
  if (col < width) return {Gate::Decay, col, col / static_cast<int>(a.key_dim)};
  return col < 2 * width ? GateColumn{Gate::Strength, col - width, 0} : GateColumn{Gate::Write, col - 2 * width, 0};
}
template <class Args>
__host__ __device__ std::int64_t gate_columns(const Args& a) {  // of decay and strength
  return a.gates == PreRuleGates::Heads ? a.value_heads : a.key_heads * a.key_dim;
}
template <class Args>
__host__ __device__ std::int64_t raw_columns(const Args& a) {
  return a.gates == PreRuleGates::Heads ? 2 * a.value_heads : 2 * a.key_heads * a.key_dim + a.value_heads * a.value_dim;
}
// Whether N columns from a multiple of N on are always of one gate and head, and their addresses fit: a gate by head is one column.
template <class S, class Args>
bool gates_in_vectors(const Args& a) {
  return a.gates == PreRuleGates::Channels && kVector<S> > 1 && a.key_dim % kVector<S> == 0 &&
         a.value_heads * a.value_dim % kVector<S> == 0 && aligned16(a.raw, a.dtype) && aligned16(a.dt_bias);
}

template <class S>
struct Gates {
  GdnPreRuleForwardArgs a;
  template <int N>
  __device__ void at(std::int64_t t, std::int64_t col) const {
    using C = Compute<S>;
    C value[N];
    load(static_cast<const S*>(a.raw.data) + t * a.raw.row_stride + col, value);
    const GateColumn c = gate_column(a, static_cast<int>(col));
    if (c.gate == Gate::Decay) {
      const C rate = exponential(static_cast<const C*>(a.A_log)[c.head]);
      C bias[N];
      load(static_cast<const C*>(a.dt_bias) + c.col, bias);
#pragma unroll
      for (int j = 0; j < N; ++j) value[j] = -(rate * softplus(value[j] + bias[j]));
      store(value, static_cast<C*>(a.decay) + t * gate_columns(a) + c.col);
      return;
    }
    const C top = c.gate == Gate::Strength && a.allow_neg_eigval ? C(2) : C(1);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = top * sigmoid_for<S>(value[j]);
    store(value, c.gate == Gate::Strength ? static_cast<S*>(a.strength) + t * gate_columns(a) + c.col
                                          : static_cast<S*>(a.write) + t * a.value_heads * a.value_dim + c.col);
  }
};
template <class S>
void launch_gates(const GdnPreRuleForwardArgs& args, const StreamHandle& stream) {
  const char* what = "gdn_pre_rule_forward gates";
  if constexpr (kVector < S >> 1) {
    if (gates_in_vectors<S>(args) && aligned16(args.decay) && aligned16(args.strength) && aligned16(args.write))
      return launch_matrix<kVector<S>>(Gates<S>{args}, args.tokens, raw_columns(args), stream, what);
  }
  launch_matrix<1>(Gates<S>{args}, args.tokens, raw_columns(args), stream, what);
}

inline constexpr int kGateRows = 8;   // tokens that a block looks at side by side
inline constexpr int kGateAhead = 2;  // tokens that a thread has under way

// Blocks of 32 x kGateRows threads, a strip of tokens and 32 N columns each. bias_sums, rate_sums [strips, gate columns].
template <class S, int N>
__global__ void __launch_bounds__(32 * kGateRows)
    gates_backward_kernel(GdnPreRuleBackwardArgs a, std::int64_t strip, Compute<S>* bias_sums, Compute<S>* rate_sums) {
  using C = Compute<S>;
  __shared__ C shared[2][kGateRows][32 * N];
  const int col = (static_cast<int>(blockIdx.y) * 32 + static_cast<int>(threadIdx.x)) * N;
  const std::int64_t begin = blockIdx.x * strip, end = begin + strip < a.tokens ? begin + strip : a.tokens, n = gate_columns(a);
  const bool mine = col < raw_columns(a);
  const GateColumn c = gate_column(a, mine ? col : 0);
  C bias_sum[N] = {}, rate_sum[N] = {};
  // A gate's gradient lies in rows of `width`; a decay's is of the compute type.
  const std::int64_t width = c.gate == Gate::Write ? a.value_heads * a.value_dim : n;
  const S* raw = static_cast<const S*>(a.raw.data) + col;
  S* to = static_cast<S*>(a.d_raw.data) + col;
  const auto walk = [&](auto decay) {
    constexpr bool kDecay = decltype(decay)::value;
    using G = std::conditional_t<kDecay, C, S>;
    const G* from = static_cast<const G*>(kDecay ? a.d_decay : c.gate == Gate::Strength ? a.d_strength : a.d_write) + c.col;
    C rate = C(0), bias[N];
    const C top = c.gate == Gate::Strength && a.allow_neg_eigval ? C(2) : C(1);
    if constexpr (kDecay) {
      rate = exponential(static_cast<const C*>(a.A_log)[c.head]);
      load(static_cast<const C*>(a.dt_bias) + c.col, bias);
    }
    for (std::int64_t first = begin + threadIdx.y; first < end; first += kGateRows * kGateAhead) {
      C x[kGateAhead][N], d[kGateAhead][N];
#pragma unroll
      for (int k = 0; k < kGateAhead; ++k) {
        const std::int64_t t = first + k * kGateRows;
        if (t >= end) continue;
        load(raw + t * a.raw.row_stride, x[k]);
        load(from + t * width, d[k]);
      }
#pragma unroll
      for (int k = 0; k < kGateAhead; ++k) {
        const std::int64_t t = first + k * kGateRows;
        if (t >= end) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if constexpr (kDecay) {
            C gain;
            const C soft = softplus<S>(x[k][j] + bias[j], gain), rated = rate * d[k][j], slope = -(rated * gain);
            bias_sum[j] += slope;
            rate_sum[j] -= rated * soft;
            d[k][j] = slope;
          } else {
            const C s = sigmoid_for<S>(x[k][j]);
            d[k][j] = top * d[k][j] * (s * (C(1) - s));
          }
        }
        store(d[k], to + t * a.d_raw.row_stride);
      }
    }
  };
  if (mine) c.gate == Gate::Decay ? walk(std::true_type{}) : walk(std::false_type{});
#pragma unroll
  for (int j = 0; j < N; ++j) {
    shared[0][threadIdx.y][threadIdx.x * N + j] = bias_sum[j];
    shared[1][threadIdx.y][threadIdx.x * N + j] = rate_sum[j];
  }
  __syncthreads();
  if (!mine || c.gate != Gate::Decay || threadIdx.y >= 2) return;
  C* sums = threadIdx.y == 0 ? bias_sums : rate_sums;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    C sum = C(0);
    for (int row = 0; row < kGateRows; ++row) sum += shared[threadIdx.y][row][threadIdx.x * N + j];
    sums[blockIdx.x * n + c.col + j] = sum;
  }
}
template <class S>
void launch_gates_backward(const GdnPreRuleBackwardArgs& args, std::int64_t strips, std::int64_t strip, Compute<S>* bias_sums,
                           Compute<S>* rate_sums, const StreamHandle& stream) {
  const char* what = "gdn_pre_rule_backward gates";
  const dim3 block(32, kGateRows);
  if constexpr (kVector < S >> 1) {
    if (gates_in_vectors<S>(args) && aligned16(args.d_raw, args.dtype) && aligned16(args.d_decay) && aligned16(args.d_strength) &&
        aligned16(args.d_write)) {
      const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(ceil_div(raw_columns(args), 32 * kVector<S>)));
      return launch_kernel(what, gates_backward_kernel<S, kVector<S>>, grid, block, stream, args, strip, bias_sums, rate_sums);
    }
  }
  const dim3 grid(static_cast<unsigned>(strips), static_cast<unsigned>(ceil_div(raw_columns(args), 32)));
  launch_kernel(what, gates_backward_kernel<S, 1>, grid, block, stream, args, strip, bias_sums, rate_sums);
}

// d_A_log [n / width] += sums over strips and over the head's channels, in fp64; a block a head, thread i takes every 256th sum.
template <class C>
__global__ void __launch_bounds__(256) rate_kernel(const C* sums, std::int64_t strips, std::int64_t n, int width, C* out) {
  __shared__ double shared[8];
  const std::int64_t head = blockIdx.x;
  double sum = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(strips) * width; i += 256)
    sum += static_cast<double>(sums[i / width * n + head * width + i % width]);
  sum = group_sum<256>(sum, shared);
  if (threadIdx.x == 0) out[head] += static_cast<C>(sum);
}

}  // namespace deltron::kernels::cuda
