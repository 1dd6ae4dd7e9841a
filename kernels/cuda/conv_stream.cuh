// The causal convolution of four taps with SiLU at the memory's speed: a warp owns 32 x 16 bytes of channels and walks a strip of
// tokens; inputs arrive in shared memory some tokens ahead, history and unfinished gradients stay in registers. Sizes and layouts
// that do not fit go through the plain kernels of causal_conv1d.cu.
#pragma once

#include "kernels/causal_conv1d.h"
#include "kernels/cuda/conv_walk.cuh"
#include "kernels/cuda/streams.cuh"

namespace deltron::kernels::cuda {

inline constexpr int kStreamTaps = 4;   // and tokens a step, so that places in registers are constants
inline constexpr int kStreamWarps = 4;  // a block's strips follow each other; their weight gradients are summed in the block
inline constexpr int kStreamThreads = 32 * kStreamWarps;
inline constexpr int kStreamStages = 3;  // steps of tokens in shared memory

// Tokens of a warp's strip, a multiple of the step: a function of their number alone. Short strips spread few tokens over the chip;
// backward's cost up to three tokens on either side and a set of partial sums each.
inline constexpr int kShortStrip = 64, kLongStrip = 128;
// With fewer a strip there would be more than kMostConvStrips blocks, and as many sets of partial sums.
inline int fewest_strip_tokens(std::int64_t tokens) {
  return static_cast<int>(ceil_div(ceil_div(tokens, kMostConvStrips * kStreamWarps), kStreamTaps) * kStreamTaps);
}
inline int backward_strip(std::int64_t tokens) {
  const int least = fewest_strip_tokens(tokens), usual = tokens < 256 * kLongStrip ? kShortStrip : kLongStrip;
  return least < usual ? usual : least;
}
inline std::int64_t stream_blocks(std::int64_t tokens, int strip) {
  return ceil_div(tokens, static_cast<std::int64_t>(strip) * kStreamWarps);
}
template <class S>
int stream_tiles(std::int64_t channels) {
  return static_cast<int>(ceil_div(channels, 32 * kVector<S>));
}

// Where a warp works. begin >= tokens: nowhere. Registers are scarce: numbers of tokens are 32-bit (streams() sees to it).
template <class S>
struct StreamPlace {
  int channel, begin, end;
  __device__ StreamPlace(int tiles, int strip, int tokens)
      : channel((static_cast<int>(blockIdx.x) % tiles * 32 + static_cast<int>(threadIdx.x) % 32) * kVector<S>),
        begin((static_cast<int>(blockIdx.x) / tiles * kStreamWarps + static_cast<int>(threadIdx.x) / 32) * strip),
        end(tokens - begin > strip ? begin + strip : tokens) {}
};

// Reach of conv_walk.cuh in 32 bits.
struct StreamReach {
  const std::int64_t* next;
  int start, end;
  __device__ StreamReach(const Documents& documents, int t)
      : next(documents.cu_seqlens + next_offset(documents, t)), start(static_cast<int>(next[-1])), end(static_cast<int>(*next)) {}
  __device__ int before(int t) {
    while (t >= end) {
      start = end;
      end = static_cast<int>(*++next);
    }
    return t - start;
  }
  // Whether the step of four tokens from t lies in one document and has its whole history there.
  __device__ bool whole_step(int t) { return before(t) >= kStreamTaps - 1 && end - t >= kStreamTaps; }
  __device__ int capped_before(int t) {
    const int tokens = before(t);
    return tokens < kStreamTaps - 1 ? tokens : kStreamTaps - 1;
  }
};

template <class C, int N>
__device__ __forceinline__ void load_stream_taps(const void* weight, DType dtype, std::int64_t channel, C (&w)[kStreamTaps][N]) {
  C flat[kStreamTaps * N];
  load_parameter(weight, dtype, channel * kStreamTaps, flat);
#pragma unroll
  for (int back = 0; back < kStreamTaps; ++back) {
#pragma unroll
    for (int j = 0; j < N; ++j) w[back][j] = flat[j * kStreamTaps + kStreamTaps - 1 - back];
  }
}

// The tokens before `begin` that the first step looks back at; token begin + i lies at place i % 4 of a step.
template <class S, class C, int N>
__device__ __forceinline__ void load_history(const S* x, std::int64_t stride, int begin, C (&history)[kStreamTaps][N]) {
#pragma unroll
  for (int place = 1; place < kStreamTaps; ++place) {
    const int back = kStreamTaps - place;
    if (back <= begin) {
      load(x + (begin - back) * stride, history[place]);
    } else {
#pragma unroll
      for (int j = 0; j < N; ++j) history[place][j] = C(0);
    }
  }
}

// z = sum over the taps within reach of the token at `place`, oldest first.
template <class C, int N>
__device__ __forceinline__ void convolve_at(const C (&w)[kStreamTaps][N], const C (&history)[kStreamTaps][N], int place, int before,
                                            C (&z)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) z[j] = C(0);
#pragma unroll
  for (int back = kStreamTaps - 1; back >= 0; --back) {
    if (back > before) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) z[j] = fma(w[back][j], history[(place - back) & (kStreamTaps - 1)][j], z[j]);
  }
}

template <class S>
__global__ void __launch_bounds__(kStreamThreads, 4) conv_stream_forward(CausalConv1dForwardArgs a, int strip, int tiles) {
  using C = Compute<S>;
  constexpr int N = kVector<S>;
  __shared__ Pack<S, N> ring[kStreamStages][kStreamTaps][kStreamThreads];
  const StreamPlace<S> my(tiles, strip, static_cast<int>(a.tokens));
  if (my.channel >= a.channels || my.begin >= a.tokens) return;
  const std::int64_t x_stride = a.x.row_stride, y_stride = a.y.row_stride;
  const S* x = static_cast<const S*>(a.x.data) + my.channel;
  S* y = static_cast<S*>(a.y.data) + my.channel + static_cast<std::int64_t>(my.begin) * y_stride;
  const int steps = (my.end - my.begin + kStreamTaps - 1) / kStreamTaps;
  const S* next = x + static_cast<std::int64_t>(my.begin) * x_stride;
  int next_token = my.begin;
  const auto fetch = [&](int stage) {
#pragma unroll
    for (int i = 0; i < kStreamTaps; ++i) {
      if (next_token + i < my.end) copy_async(&ring[stage][i][threadIdx.x], next);
      next += x_stride;
    }
    next_token += kStreamTaps;
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStreamStages - 1; ++stage) fetch(stage);
  C w[kStreamTaps][N], history[kStreamTaps][N];
  load_stream_taps(a.weight, a.weight_dtype, my.channel, w);
  load_history(x, x_stride, my.begin, history);
  StreamReach reach(a.documents, my.begin);
  int stage = 0, free_stage = kStreamStages - 1;
  int first = my.begin;
  const auto step = [&](auto whole) {
    constexpr bool kWhole = decltype(whole)::value;
#pragma unroll
    for (int i = 0; i < kStreamTaps; ++i) {
      if (!kWhole && first + i >= my.end) break;
      const int before = kWhole ? kStreamTaps - 1 : reach.capped_before(first + i);
      unpack(ring[stage][i][threadIdx.x], history[i]);
      C z[N];
      convolve_at(w, history, i, before, z);
#pragma unroll
      for (int j = 0; j < N; ++j) z[j] *= sigmoid_for<S>(z[j]);
      write_pack(z, y);
      y += y_stride;
    }
  };
  for (int s = 0; s < steps; ++s) {
    wait_for_copies<kStreamStages - 2>();
    fetch(free_stage);
    if (my.end - first >= kStreamTaps && reach.whole_step(first)) {
      step(std::true_type{});
    } else {
      step(std::false_type{});
    }
    first += kStreamTaps;
    free_stage = stage;
    stage = stage + 1 == kStreamStages ? 0 : stage + 1;
  }
}

template <class S>
__global__ void __launch_bounds__(kStreamThreads, 3) conv_stream_backward(CausalConv1dBackwardArgs a, int strip, int tiles) {
  using C = Compute<S>;
  constexpr int N = kVector<S>;
  union Shared {
    Pack<S, N> ring[kStreamStages][kStreamTaps][2][kStreamThreads];
    C sums[kStreamWarps][kStreamTaps][N][32];
  };
  __shared__ __align__(16) unsigned char memory[sizeof(Shared)];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const StreamPlace<S> my(tiles, strip, static_cast<int>(a.tokens));
  C dw[kStreamTaps][N] = {};
  if (my.channel < a.channels && my.begin < a.tokens) {
    const std::int64_t x_stride = a.x.row_stride, dy_stride = a.dy.row_stride, dx_stride = a.dx.row_stride;
    const S* x = static_cast<const S*>(a.x.data) + my.channel;
    // Three tokens behind the strip add to the gradient of its last ones.
    const int tokens = static_cast<int>(a.tokens), last = tokens - my.end >= kStreamTaps - 1 ? my.end + kStreamTaps - 1 : tokens;
    const int steps = (my.end - my.begin + 2 * kStreamTaps - 2) / kStreamTaps;
    const S* next_x = x + static_cast<std::int64_t>(my.begin) * x_stride;
    const S* next_dy = static_cast<const S*>(a.dy.data) + my.channel + static_cast<std::int64_t>(my.begin) * dy_stride;
    S* to = static_cast<S*>(a.dx.data) + my.channel + static_cast<std::int64_t>(my.begin) * dx_stride;
    int next_token = my.begin;
    const auto fetch = [&](int stage) {
#pragma unroll
      for (int i = 0; i < kStreamTaps; ++i) {
        if (next_token + i < last) {
          copy_async(&shared.ring[stage][i][0][threadIdx.x], next_x);
          copy_async(&shared.ring[stage][i][1][threadIdx.x], next_dy);
        }
        next_x += x_stride;
        next_dy += dy_stride;
      }
      next_token += kStreamTaps;
      commit_copies();
    };
#pragma unroll
    for (int stage = 0; stage < kStreamStages - 1; ++stage) fetch(stage);
    // dx[place] gathers the gradient of the token at that place; it is complete when the fourth token behind takes the place.
    C w[kStreamTaps][N], history[kStreamTaps][N], dx[kStreamTaps][N] = {};
    load_stream_taps(a.weight, a.weight_dtype, my.channel, w);
    load_history(x, x_stride, my.begin, history);
    StreamReach reach(a.documents, my.begin);
    int stage = 0, free_stage = kStreamStages - 1;
    int first = my.begin;
    const auto step = [&](auto whole) {
      constexpr bool kWhole = decltype(whole)::value;
#pragma unroll
      for (int i = 0; i < kStreamTaps; ++i) {
        const int t = first + i;
        int before = kStreamTaps - 1;
        if (!kWhole) before = t < last ? reach.capped_before(t) : -1;
#pragma unroll
        for (int j = 0; j < N; ++j) dx[i][j] = C(0);
        if (kWhole || before >= 0) {
          C z[N], dz[N];
          unpack(shared.ring[stage][i][0][threadIdx.x], history[i]);
          unpack(shared.ring[stage][i][1][threadIdx.x], dz);
          convolve_at(w, history, i, before, z);
#pragma unroll
          for (int j = 0; j < N; ++j) dz[j] *= silu_derivative(z[j], sigmoid_for<S>(z[j]));
#pragma unroll
          for (int back = 0; back < kStreamTaps; ++back) {
            if (!kWhole && back > before) continue;
            const int place = (i - back) & (kStreamTaps - 1);
#pragma unroll
            for (int j = 0; j < N; ++j) {
              dx[place][j] = fma(w[back][j], dz[j], dx[place][j]);
              if (kWhole || t < my.end) dw[back][j] = fma(dz[j], history[place][j], dw[back][j]);
            }
          }
        }
        const int done = t - (kStreamTaps - 1);
        if (done < my.begin || (!kWhole && done >= my.end)) continue;
        write_pack(dx[(i + 1) & (kStreamTaps - 1)], to);
        to += dx_stride;
      }
    };
    for (int s = 0; s < steps; ++s) {
      wait_for_copies<kStreamStages - 2>();
      fetch(free_stage);
      if (my.end - first >= kStreamTaps && reach.whole_step(first)) {
        step(std::true_type{});
      } else {
        step(std::false_type{});
      }
      first += kStreamTaps;
      free_stage = stage;
      stage = stage + 1 == kStreamStages ? 0 : stage + 1;
    }
    wait_for_copies<0>();
  }
  if (a.dweight == nullptr) return;
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int back = 0; back < kStreamTaps; ++back) {
#pragma unroll
    for (int j = 0; j < N; ++j) shared.sums[warp][back][j][lane] = dw[back][j];
  }
  __syncthreads();
  if (my.channel >= a.channels) return;
  // Each warp adds the strips' sums of one tap, in ascending order.
  static_assert(kStreamWarps == kStreamTaps);
  C* partial = static_cast<C*>(a.workspace.data) +
               (static_cast<std::int64_t>(blockIdx.x) / tiles * kStreamTaps + kStreamTaps - 1 - warp) * a.channels + my.channel;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    C sum = shared.sums[0][warp][j][lane];
#pragma unroll
    for (int other = 1; other < kStreamWarps; ++other) sum += shared.sums[other][warp][j][lane];
    partial[j] = sum;
  }
}

}  // namespace deltron::kernels::cuda
