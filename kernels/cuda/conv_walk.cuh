// What causal convolutions over packed documents share on cuda: strips of tokens, how far taps reach, windows of values in
// registers.
#pragma once

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {

inline constexpr std::int64_t kMostConvStrips = 512;

// Tokens that a thread walks: a function of their number alone, so that sums by strips repeat.
inline std::int64_t strip_tokens(std::int64_t tokens) {
  return tokens <= kMostConvStrips * 64 ? 64 : ceil_div(tokens, kMostConvStrips);
}

// First offset beyond token t.
__device__ __forceinline__ std::int64_t next_offset(const Documents& documents, std::int64_t t) { return document_of(documents, t) + 1; }

// Walks the documents beside the tokens: how many tokens before the current one belong to its document.
struct Reach {
  const std::int64_t* offsets;
  std::int64_t next, start, end;
  __device__ Reach(const Documents& documents, std::int64_t t)
      : offsets(documents.cu_seqlens), next(next_offset(documents, t)), start(offsets[next - 1]), end(offsets[next]) {}
  __device__ std::int64_t before(std::int64_t t) {
    while (t >= end) {
      start = end;
      end = offsets[++next];
    }
    return t - start;
  }
};

// Tokens before the current one that its taps reach.
__device__ __forceinline__ std::int64_t capped(std::int64_t before, std::int64_t kernel) {
  return before < kernel - 1 ? before : kernel - 1;
}

template <class C, int kTaps, int N>
__device__ __forceinline__ void shift(C (&window)[kTaps][N]) {
#pragma unroll
  for (int back = kTaps - 1; back > 0; --back) {
#pragma unroll
    for (int j = 0; j < N; ++j) window[back][j] = window[back - 1][j];
  }
}

// Sum over the taps inside the document, oldest first.
template <class C, int kTaps, int N>
__device__ __forceinline__ void convolve(const C (&w)[kTaps][N], const C (&window)[kTaps][N], std::int64_t before, C (&z)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) z[j] = C(0);
#pragma unroll
  for (int back = kTaps - 1; back >= 0; --back) {
    if (back > before) continue;
#pragma unroll
    for (int j = 0; j < N; ++j) z[j] = fma(w[back][j], window[back][j], z[j]);
  }
}

}  // namespace deltron::kernels::cuda
