// Pieces of the plain attention kernels: where tokens lie, tiles in shared memory, products of tiles, dropout decisions. Tiles are
// cut over all tokens, not by document: a query sees the keys of its own document up to itself, found by the documents' offsets.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {

inline constexpr int kAttentionThreads = 256;
inline constexpr int kMostAttentionDim = 256;

// Tokens of a tile: as many as fit in shared memory with three tiles of `dim` columns.
template <class C>
inline constexpr int kAttentionTile = sizeof(C) == 8 ? 32 : 64;

// Start and place of every token of a tile, worked out once a tile by its first threads.
template <int kTile>
struct TileTokens {
  std::int64_t start[kTile];  // first token of the document
  std::int64_t document[kTile];
};
template <int kTile>
__device__ __forceinline__ void find_tokens(const Documents& documents, std::int64_t first, std::int64_t tokens,
                                            TileTokens<kTile>& tile) {
  if (static_cast<int>(threadIdx.x) < kTile) {
    const std::int64_t t = first + threadIdx.x < tokens ? first + threadIdx.x : tokens - 1;
    tile.document[threadIdx.x] = document_of(documents, t);
    tile.start[threadIdx.x] = documents.cu_seqlens[tile.document[threadIdx.x]];
  }
}

template <class View, int kTile>
__device__ __forceinline__ std::int64_t token_place(const View& view, const TileTokens<kTile>& tile, std::int64_t first, int row) {
  if (view.sequence_stride == 0) return (first + row) * view.token_stride;
  return tile.document[row] * view.sequence_stride + (first + row - tile.start[row]) * view.token_stride;
}

// tile [kTile, dim] with rows of dim + 1, times scale; rows past the last token are zero.
template <class S, class C, int kTile>
__device__ __forceinline__ void load_tile(const HeadView& view, const TileTokens<kTile>& where, std::int64_t first,
                                          std::int64_t tokens, std::int64_t head, int dim, C scale, C* tile) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * dim; i += kAttentionThreads) {
    const int row = i / dim, col = i % dim;
    C value = C(0);
    if (first + row < tokens) {
      value = static_cast<C>(
                  widen(static_cast<const S*>(view.data)[token_place(view, where, first, row) + head * view.head_stride + col])) *
              scale;
    }
    tile[row * (dim + 1) + col] = value;
  }
}

// score [kTile, kTile + 1] = a [kTile, dim] b^T; each thread makes a square of results.
template <class C, int kTile>
__device__ __forceinline__ void multiply_transposed(const C* a, const C* b, int dim, C* score) {
  constexpr int kSide = 16, kOwn = kTile / kSide;
  const int row = static_cast<int>(threadIdx.x) / kSide, col = static_cast<int>(threadIdx.x) % kSide;
  C sum[kOwn][kOwn] = {};
  for (int d = 0; d < dim; ++d) {
    C left[kOwn], right[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      left[i] = a[(row + i * kSide) * (dim + 1) + d];
      right[i] = b[(col + i * kSide) * (dim + 1) + d];
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) sum[i][j] = fma(left[i], right[j], sum[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) score[(row + i * kSide) * (kTile + 1) + col + j * kSide] = sum[i][j];
  }
}

// out [kTile, dim] += w b, or w^T b, with w [kTile, kTile + 1] and b [kTile, dim]. A thread owns the elements threadIdx.x +
// k*threads.
template <bool kTransposed, class C, int kTile>
__device__ __forceinline__ void multiply_add(const C* w, const C* b, int dim, C* out) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * dim; i += kAttentionThreads) {
    const int row = i / dim, col = i % dim;
    C sum = C(0);
#pragma unroll 8
    for (int k = 0; k < kTile; ++k)
      sum = fma(kTransposed ? w[k * (kTile + 1) + row] : w[row * (kTile + 1) + k], b[k * (dim + 1) + col], sum);
    out[row * (dim + 1) + col] += sum;
  }
}

// Factor of the probability of (query token, head, key position in the document): 0 or 1/(1-p).
template <class C>
__device__ __forceinline__ C keep_factor(const TokenRng& rng, std::uint32_t threshold, C factor, std::int64_t query,
                                         std::int64_t head, std::int64_t key) {
  const Philox4 words =
      rng_words(rng.key, static_cast<std::uint64_t>(rng.token_sample[query]), static_cast<std::uint32_t>(rng.token_offset[query]),
                static_cast<std::uint32_t>((rng.first_head + head) * (std::int64_t{1} << 20) + key / 4));
  const std::int64_t which = key % 4;
  const std::uint32_t word = which == 0 ? words.word[0] : which == 1 ? words.word[1] : which == 2 ? words.word[2] : words.word[3];
  return word < threshold ? C(0) : factor;
}

template <class C>
struct DropoutForm {
  bool on;
  std::uint32_t threshold;
  C factor;
  explicit DropoutForm(const TokenRng& rng)
      : on(rng.drop_probability > 0),
        threshold(on ? dropout_threshold(rng.drop_probability) : 0),
        factor(static_cast<C>(1.0 / (1.0 - rng.drop_probability))) {}
};

template <class Kernel>
void raise_shared(Kernel kernel, std::size_t bytes, const char* what) {
  check_status(static_cast<int>(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes))),
               what);
}

template <class Args>
void check_attention(const Args& args) {
  DELTRON_CHECK(args.dim > 0 && args.kv_heads > 0 && args.query_heads % args.kv_heads == 0, "attention: ", args.query_heads,
                " query heads over ", args.kv_heads, " kv heads of dim ", args.dim);
  DELTRON_CHECK_LE(args.dim, std::int64_t{kMostAttentionDim}, "attention on cuda: head dim");
  DELTRON_CHECK(args.query_heads <= 65535, "attention on cuda: ", args.query_heads, " heads");
}

}  // namespace deltron::kernels::cuda
