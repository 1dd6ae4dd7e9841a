// The fused preparation's convolution, SiLU and L2 norm at the memory's speed, four taps: the walk of conv_stream.cuh, in which a
// warp owns whole heads of q and k (kGroup lanes each, a power of two, the last ones idle where the head is narrower) or 32 x 16
// bytes of v's channels. Sizes and layouts that do not fit go through the plain kernels of gdn_pre_rule.cu.
#pragma once

#include <algorithm>

#include "kernels/cuda/conv_stream.cuh"
#include "kernels/gdn_pre_rule.h"

namespace deltron::kernels::cuda {

// Lanes of a head where a lane owns n channels, 0 if the streaming kernels do not take it.
inline int pre_stream_group(std::int64_t key_dim, int n) {
  if (key_dim % n != 0) return 0;
  const std::int64_t lanes = key_dim / n;
  return lanes <= 8 ? 8 : lanes <= 16 ? 16 : lanes <= 32 ? 32 : 0;
}

// What a launch works on: tiles of q and k, then tiles of v.
struct PreStreamGrid {
  int strip, key_tiles, tiles;
};
template <class Args>
int pre_key_tiles(const Args& args, int group) {
  return static_cast<int>(ceil_div(2 * args.key_heads, 32 / group));
}
template <class Args>
int pre_value_tiles(const Args& args, int n) {
  return static_cast<int>(ceil_div(args.value_heads * args.value_dim, 32 * n));
}
inline constexpr int kHopperProcessors = 132;
// Tokens of a backward warp's strip: near kLongStrip, and so many that the blocks nearly fill a whole number of rounds of `slots`
// (blocks that a Hopper GPU has under way), but no more blocks a tile than kMostConvStrips. A function of the shape alone.
inline int pre_backward_strip(std::int64_t tokens, int tiles, int slots) {
  const std::int64_t usual = ceil_div(tokens, kLongStrip * kStreamWarps) * tiles, rounds = (usual + slots / 2) / slots;
  const std::int64_t blocks = (rounds > 0 ? rounds * slots : usual) / tiles;  // of a tile
  const std::int64_t strip = ceil_div(ceil_div(tokens, (blocks > 0 ? blocks : 1) * kStreamWarps), kStreamTaps) * kStreamTaps;
  const int usual_strip = backward_strip(tokens);
  const int least = usual_strip == kLongStrip ? std::max(kShortStrip, fewest_strip_tokens(tokens)) : usual_strip;
  return static_cast<int>(strip < least ? least : strip);
}

// Where a warp works and what its lanes own. begin >= tokens: nowhere.
struct PreStreamPlace {
  bool normed, mine;
  int channel, begin, end;
};
template <int N, int kGroup, class Args>
__device__ __forceinline__ PreStreamPlace pre_stream_place(const Args& a, const PreStreamGrid& grid) {
  const int tile = static_cast<int>(blockIdx.x) % grid.tiles, lane = static_cast<int>(threadIdx.x) % 32;
  const int tokens = static_cast<int>(a.tokens), key_dim = static_cast<int>(a.key_dim), key_heads = static_cast<int>(a.key_heads);
  PreStreamPlace p;
  p.normed = tile < grid.key_tiles;
  if (p.normed) {
    const int head = tile * (32 / kGroup) + lane / kGroup, at = lane % kGroup * N;
    p.mine = head < 2 * key_heads && at < key_dim;
    p.channel = head * key_dim + at;
  } else {
    const int at = ((tile - grid.key_tiles) * 32 + lane) * N;
    p.mine = at < static_cast<int>(a.value_heads * a.value_dim);
    p.channel = 2 * key_heads * key_dim + at;
  }
  p.begin = (static_cast<int>(blockIdx.x) / grid.tiles * kStreamWarps + static_cast<int>(threadIdx.x) / 32) * grid.strip;
  p.end = tokens - p.begin > grid.strip ? p.begin + grid.strip : tokens;
  if (!p.mine) p.channel = 0;
  return p;
}

// As pack, the NaN's bits left as they come: what is stored in the end sets them.
template <class S, class C, int N>
__device__ __forceinline__ Pack<S, N> pack_between(const C (&values)[N]) {
  Pack<S, N> to;
  if constexpr (std::is_same_v<S, bf16>) {
#pragma unroll
    for (int i = 0; i < N; i += 2)
      *reinterpret_cast<__nv_bfloat162*>(&to.value[i]) = __floats2bfloat162_rn(values[i], values[i + 1]);
  } else if constexpr (std::is_same_v<S, fp16>) {
#pragma unroll
    for (int i = 0; i < N; i += 2) *reinterpret_cast<__half2*>(&to.value[i]) = __floats2half2_rn(values[i], values[i + 1]);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to.value[i] = values[i];
  }
  return to;
}
template <class S, class C, int N>
__device__ __forceinline__ void round_between(C (&values)[N]) {
  if constexpr (sizeof(S) == 2) unpack(pack_between<S>(values), values);
}
// Keeps the compiler from holding what it unpacked of this and of shared memory in registers until the next use.
template <class S, int N>
__device__ __forceinline__ void read_again(Pack<S, N>& pack) {
#ifdef __CUDACC__
  unsigned* bits = reinterpret_cast<unsigned*>(&pack);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(pack) / 4); ++i) asm volatile("" : "+r"(bits[i])::"memory");
#else
  (void)pack;
#endif
}

template <int kGroup>
__device__ __forceinline__ float lanes_sum(float value) {
#pragma unroll
  for (int offset = kGroup / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
// 1/sqrt(x); beside 16-bit storage from the approximate instruction (relative error below 2e-7).
template <class S>
__device__ __forceinline__ float inverse_root(float x) {
  if constexpr (sizeof(S) == 2) {
    return rsqrtf(x);
  } else {
    return 1.0f / sqrtf(x);
  }
}

// An idle lane copies nothing, but its zeros take part in its head's sums.
template <class S, int N>
__device__ __forceinline__ void clear_slots(Pack<S, N>* ring, int slots) {
  const float zeros[N] = {};
  for (int slot = 0; slot < slots; ++slot) ring[slot * kStreamThreads + threadIdx.x] = pack<S>(zeros);
}

template <class S>
using PreForwardRing = Pack<S, kVector<S>>[kStreamStages][kStreamTaps][kStreamThreads];

template <class S, int kGroup, bool kNormed>
__device__ __forceinline__ void pre_stream_forward_walk(const GdnPreRuleForwardArgs& a, const PreStreamPlace& my,
                                                        PreForwardRing<S>& ring) {
  constexpr int N = kVector<S>;
  const std::int64_t x_stride = a.qkv.row_stride, y_stride = a.prepared.row_stride;
  const S* x = static_cast<const S*>(a.qkv.data) + my.channel;
  S* y = static_cast<S*>(a.prepared.data) + my.channel + static_cast<std::int64_t>(my.begin) * y_stride;
  const int steps = (my.end - my.begin + kStreamTaps - 1) / kStreamTaps;
  const S* next = x + static_cast<std::int64_t>(my.begin) * x_stride;
  int next_token = my.begin;
  const int fetched_end = my.mine ? my.end : 0;
  const auto fetch = [&](int stage) {
#pragma unroll
    for (int i = 0; i < kStreamTaps; ++i) {
      if (next_token + i < fetched_end) copy_async(&ring[stage][i][threadIdx.x], next);
      next += x_stride;
    }
    next_token += kStreamTaps;
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStreamStages - 1; ++stage) fetch(stage);
  float w[kStreamTaps][N] = {}, history[kStreamTaps][N] = {};
  if (!my.mine) clear_slots<S, N>(&ring[0][0][0], kStreamStages * kStreamTaps);
  if (my.mine) {
    load_stream_taps(a.conv_weight, a.conv_weight_dtype, my.channel, w);
    load_history(x, x_stride, my.begin, history);
  }
  StreamReach reach(a.documents, my.begin);
  const float epsilon = static_cast<float>(a.epsilon);
  int stage = 0, free_stage = kStreamStages - 1;
  int first = my.begin;
  const auto step = [&](auto whole) {
    constexpr bool kWhole = decltype(whole)::value;
#pragma unroll
    for (int i = 0; i < kStreamTaps; ++i) {
      if (!kWhole && first + i >= my.end) break;  // for the whole warp
      const int before = kWhole ? kStreamTaps - 1 : reach.capped_before(first + i);
      unpack(ring[stage][i][threadIdx.x], history[i]);
      float z[N];
      convolve_at(w, history, i, before, z);
      round_between<S>(z);
#pragma unroll
      for (int j = 0; j < N; ++j) z[j] *= sigmoid_for<S>(z[j]);
      if constexpr (kNormed) {
        round_between<S>(z);
        float square = 0;
#pragma unroll
        for (int j = 0; j < N; ++j) square = fma(z[j], z[j], square);
        const float rstd = inverse_root<S>(lanes_sum<kGroup>(square) + epsilon);
#pragma unroll
        for (int j = 0; j < N; ++j) z[j] *= rstd;
      }
      if (my.mine) write_pack(z, y);
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

template <class S, int kGroup>
__global__ void __launch_bounds__(kStreamThreads, 4) pre_stream_forward(GdnPreRuleForwardArgs a, PreStreamGrid grid) {
  __shared__ PreForwardRing<S> ring;
  const PreStreamPlace my = pre_stream_place<kVector<S>, kGroup>(a, grid);
  if (my.begin >= static_cast<int>(a.tokens)) return;
  if (my.normed) {
    pre_stream_forward_walk<S, kGroup, true>(a, my, ring);
  } else if (my.mine) {
    pre_stream_forward_walk<S, kGroup, false>(a, my, ring);
  }
}

template <class S>
using PreBackwardRing = Pack<S, kVector<S>>[kStreamStages][kStreamTaps][2][kStreamThreads];

template <class S, int kGroup, bool kNormed>
__device__ __forceinline__ void pre_stream_backward_walk(const GdnPreRuleBackwardArgs& a, const PreStreamPlace& my,
                                                         PreBackwardRing<S>& ring, float (&dw)[kStreamTaps][kVector<S>]) {
  constexpr int N = kVector<S>;
  const std::int64_t x_stride = a.qkv.row_stride, dy_stride = a.d_prepared.row_stride, dx_stride = a.d_qkv.row_stride;
  const S* x = static_cast<const S*>(a.qkv.data) + my.channel;
  // Three tokens behind the strip add to the gradient of its last ones.
  const int tokens = static_cast<int>(a.tokens), last = tokens - my.end >= kStreamTaps - 1 ? my.end + kStreamTaps - 1 : tokens;
  const int steps = (my.end - my.begin + 2 * kStreamTaps - 2) / kStreamTaps;
  const S* next_x = x + static_cast<std::int64_t>(my.begin) * x_stride;
  const S* next_dy = static_cast<const S*>(a.d_prepared.data) + my.channel + static_cast<std::int64_t>(my.begin) * dy_stride;
  S* to = static_cast<S*>(a.d_qkv.data) + my.channel + static_cast<std::int64_t>(my.begin) * dx_stride;
  int next_token = my.begin;
  const int fetched_end = my.mine ? last : 0;
  const auto fetch = [&](int stage) {
#pragma unroll
    for (int i = 0; i < kStreamTaps; ++i) {
      if (next_token + i < fetched_end) {
        copy_async(&ring[stage][i][0][threadIdx.x], next_x);
        copy_async(&ring[stage][i][1][threadIdx.x], next_dy);
      }
      next_x += x_stride;
      next_dy += dy_stride;
    }
    next_token += kStreamTaps;
    commit_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStreamStages - 1; ++stage) fetch(stage);
  if (!my.mine) clear_slots<S, N>(&ring[0][0][0][0], kStreamStages * kStreamTaps * 2);
  // dx[place] gathers the gradient of the token at that place; it is complete when the fourth token behind takes the place.
  float w[kStreamTaps][N] = {}, history[kStreamTaps][N] = {}, dx[kStreamTaps][N] = {};
  if (my.mine) {
    load_stream_taps(a.conv_weight, a.conv_weight_dtype, my.channel, w);
    load_history(x, x_stride, my.begin, history);
  }
  StreamReach reach(a.documents, my.begin);
  const float epsilon = static_cast<float>(a.epsilon);
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
      for (int j = 0; j < N; ++j) dx[i][j] = 0;
      if (kWhole || before >= 0) {  // for the whole warp
        float dz[N];
        {
          float z[N];
          unpack(ring[stage][i][0][threadIdx.x], history[i]);
          convolve_at(w, history, i, before, z);
          round_between<S>(z);
          if constexpr (kNormed) {
            // What is needed behind the sums over the head stays narrow, or is read again: registers are the limit here.
            float wide[N], square = 0, along = 0;
#pragma unroll
            for (int j = 0; j < N; ++j) {
              const float s = sigmoid_for<S>(z[j]);
              wide[j] = z[j] * s;
              z[j] = silu_derivative(z[j], s);
            }
            Pack<S, N> y = pack_between<S>(wide);
            unpack(y, wide);
            unpack(ring[stage][i][1][threadIdx.x], dz);
#pragma unroll
            for (int j = 0; j < N; ++j) square = fma(wide[j], wide[j], square), along = fma(wide[j], dz[j], along);
            square = lanes_sum<kGroup>(square);
            along = lanes_sum<kGroup>(along);
            const float rstd = inverse_root<S>(square + epsilon);
            const float inward = -(rstd * rstd * along);
            read_again(y);
            unpack(y, wide);
            unpack(ring[stage][i][1][threadIdx.x], dz);
#pragma unroll
            for (int j = 0; j < N; ++j) dz[j] = rstd * fma(wide[j], inward, dz[j]) * z[j];
          } else {
            unpack(ring[stage][i][1][threadIdx.x], dz);
#pragma unroll
            for (int j = 0; j < N; ++j) dz[j] *= silu_derivative(z[j], sigmoid_for<S>(z[j]));
          }
        }
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
      if (my.mine) write_pack(dx[(i + 1) & (kStreamTaps - 1)], to);
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

// Blocks a multiprocessor: of the registers they leave.
template <int N>
inline constexpr int kPreBackwardBlocks = N == 8 ? 3 : 4;

// kNormed: q and k alone (grid.tiles == grid.key_tiles), else v alone (no key tiles). weight_sums [blocks of strips, 4, channels];
// null: not wanted.
template <class S, int kGroup, bool kNormed>
__global__ void __launch_bounds__(kStreamThreads, kPreBackwardBlocks<kVector<S>>)
    pre_stream_backward(GdnPreRuleBackwardArgs a, PreStreamGrid grid, float* weight_sums) {
  constexpr int N = kVector<S>;
  union Shared {
    PreBackwardRing<S> ring;
    float sums[kStreamWarps][kStreamTaps][N][32];
  };
  __shared__ __align__(16) unsigned char memory[sizeof(Shared)];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const PreStreamPlace my = pre_stream_place<N, kGroup>(a, grid);
  float dw[kStreamTaps][N] = {};
  if (my.begin < static_cast<int>(a.tokens) && (kNormed || my.mine))
    pre_stream_backward_walk<S, kGroup, kNormed>(a, my, shared.ring, dw);
  if (weight_sums == nullptr) return;
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int back = 0; back < kStreamTaps; ++back) {
#pragma unroll
    for (int j = 0; j < N; ++j) shared.sums[warp][back][j][lane] = dw[back][j];
  }
  __syncthreads();
  if (!my.mine) return;
  // Each warp adds the strips' sums of one tap, in ascending order.
  static_assert(kStreamWarps == kStreamTaps);
  const std::int64_t channels = 2 * a.key_heads * a.key_dim + a.value_heads * a.value_dim;
  float* partial = weight_sums +
                   (static_cast<std::int64_t>(blockIdx.x) / grid.tiles * kStreamTaps + kStreamTaps - 1 - warp) * channels +
                   my.channel;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float sum = shared.sums[0][warp][j][lane];
#pragma unroll
    for (int other = 1; other < kStreamWarps; ++other) sum += shared.sums[other][warp][j][lane];
    partial[j] = sum;
  }
}

}  // namespace deltron::kernels::cuda
