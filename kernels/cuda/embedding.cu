// Token embedding on cuda. The backward sorts tokens by id with an own stable radix sort (integers only), then one block a table
// row adds its tokens in ascending order: the same sums in the same order as on the CPU.
#include "kernels/embedding.h"

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kDigits = 256;          // values of a digit of 8 bits
constexpr std::int64_t kTile = 1024;  // tokens a warp sorts

// A token id beyond the whole table gives a row of NaN, which ends the run at the non-finite check.
template <class S, int N>
__global__ void gather_kernel(EmbeddingForwardArgs a) {
  using C = Compute<S>;
  const std::int64_t token = blockIdx.x;
  const std::int64_t id = a.ids[token], row = id - a.first;
  const bool here = row >= 0 && row < a.vocab, known = id >= 0 && id < (a.whole > 0 ? a.whole : a.vocab);
  for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * N; i < a.hidden; i += static_cast<std::int64_t>(blockDim.x) * N) {
    C value[N] = {};
    if (here && known) load_parameter(a.table, a.table_dtype, row * a.hidden + i, value);
#pragma unroll
    for (int j = 0; j < N; ++j) value[j] = known ? value[j] : static_cast<C>(NAN);
    store(value, static_cast<S*>(a.y) + token * a.hidden + i);
  }
}

struct Keys {  // ids and the tokens that they stand at; tokens null: token i stands at place i
  const std::int32_t* ids;
  const std::int32_t* tokens;
};

__device__ __forceinline__ int digit_of(std::int32_t id, int shift) {
  return (static_cast<std::uint32_t>(id) >> shift) & (kDigits - 1);
}

// counts[digit][tile]
__global__ void count_kernel(Keys keys, std::int64_t count, int shift, std::int32_t* counts) {
  __shared__ std::int32_t mine[kDigits];
  for (int d = static_cast<int>(threadIdx.x); d < kDigits; d += 32) mine[d] = 0;
  __syncwarp();
  const std::int64_t begin = blockIdx.x * kTile, end = begin + kTile < count ? begin + kTile : count;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += 32) atomicAdd(&mine[digit_of(keys.ids[i], shift)], 1);
  __syncwarp();
  for (int d = static_cast<int>(threadIdx.x); d < kDigits; d += 32)
    counts[static_cast<std::int64_t>(d) * gridDim.x + blockIdx.x] = mine[d];
}

// Exclusive sums in place, one block of threads.
__global__ void scan_kernel(std::int32_t* counts, std::int64_t count) {
  __shared__ std::int32_t shared[1024];
  const std::int64_t share = (count + blockDim.x - 1) / blockDim.x;
  const std::int64_t begin = share * threadIdx.x < count ? share * threadIdx.x : count;
  const std::int64_t end = begin + share < count ? begin + share : count;
  std::int32_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += counts[i];
  shared[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned step = 1; step < blockDim.x; step *= 2) {
    const std::int32_t before = threadIdx.x >= step ? shared[threadIdx.x - step] : 0;
    __syncthreads();
    shared[threadIdx.x] += before;
    __syncthreads();
  }
  std::int32_t running = shared[threadIdx.x] - sum;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int32_t here = counts[i];
    counts[i] = running;
    running += here;
  }
}

// One warp walks its tile in order, 32 tokens at a time; equal digits keep their order.
__global__ void place_kernel(Keys keys, std::int64_t count, int shift, const std::int32_t* starts, std::int32_t* ids,
                             std::int32_t* tokens) {
  __shared__ std::int32_t next[kDigits];
  for (int d = static_cast<int>(threadIdx.x); d < kDigits; d += 32)
    next[d] = starts[static_cast<std::int64_t>(d) * gridDim.x + blockIdx.x];
  __syncwarp();
  const std::int64_t begin = blockIdx.x * kTile, end = begin + kTile < count ? begin + kTile : count;
  for (std::int64_t base = begin; base < end; base += 32) {
    const std::int64_t i = base + threadIdx.x;
    const bool mine = i < end;
    const unsigned active = __ballot_sync(0xffffffffu, mine);
    if (mine) {
      const std::int32_t id = keys.ids[i];
      const int digit = digit_of(id, shift);
      const unsigned peers = __match_any_sync(active, digit);
      const int rank = __popc(peers & ((1u << threadIdx.x) - 1));
      const std::int32_t place = next[digit] + rank;
      ids[place] = id;
      tokens[place] = keys.tokens == nullptr ? static_cast<std::int32_t>(i) : keys.tokens[i];
      __syncwarp(active);
      if (rank == 0) next[digit] += __popc(peers);
    }
    __syncwarp();
  }
}

// The block at the first place of a run of equal ids adds the run.
template <class S, int N>
__global__ void add_rows_kernel(EmbeddingBackwardArgs a, const std::int32_t* ids, const std::int32_t* tokens) {
  using C = Compute<S>;
  const std::int64_t first = blockIdx.x;
  const std::int32_t id = ids[first];
  const std::int64_t here = id - a.first;
  if ((first > 0 && ids[first - 1] == id) || here < 0 || here >= a.vocab) return;
  const std::int64_t col = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (col >= a.hidden) return;
  C* row = static_cast<C*>(a.dtable) + here * a.hidden + col;
  C sum[N], value[N];
  load(row, sum);
  for (std::int64_t i = first; i < a.tokens && ids[i] == id; ++i) {
    load(static_cast<const S*>(a.dy) + tokens[i] * a.hidden + col, value);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += value[j];
  }
  store(sum, row);
}

struct SortSpace {
  std::int64_t tiles, counts, keys;  // numbers of int32
  std::int64_t bytes() const { return (counts + 4 * keys) * 4; }
};
SortSpace sort_space(std::int64_t tokens) {
  const std::int64_t tiles = ceil_div(tokens, kTile);
  return {tiles, tiles * kDigits, ceil_div(tokens, 4) * 4};
}

}  // namespace

void embedding_forward(const EmbeddingForwardArgs& args, const StreamHandle& stream) {
  if (args.tokens <= 0) return;
  check_parameter(args.dtype, args.table_dtype, "embedding");
  with_storage(args.dtype, "embedding", [&](auto s) {
    using S = decltype(s);
    const unsigned tokens = static_cast<unsigned>(args.tokens);
    if constexpr (kVector < S >> 1) {
      if (args.hidden % 8 == 0 && aligned16(args.y) && aligned16(args.table))
        return gather_kernel<S, kVector<S>><<<tokens, 128, 0, native(stream)>>>(args);
    }
    gather_kernel<S, 1><<<tokens, 128, 0, native(stream)>>>(args);
  });
  check_launch("embedding_forward");
}

std::int64_t embedding_backward_workspace_bytes(const EmbeddingBackwardArgs& args, const StreamHandle&) {
  return sort_space(args.tokens).bytes();
}

void embedding_backward(const EmbeddingBackwardArgs& args, const StreamHandle& stream) {
  if (args.tokens <= 0) return;
  DELTRON_CHECK_LE(args.tokens, std::int64_t{0x7fffffff}, "embedding: tokens of one call");
  DELTRON_CHECK_GE(args.workspace.bytes, embedding_backward_workspace_bytes(args, stream),
                   "embedding's workspace is smaller than queried");
  const SortSpace space = sort_space(args.tokens);
  auto* counts = static_cast<std::int32_t*>(args.workspace.data);
  std::int32_t* buffers[2][2];
  for (int i = 0; i < 4; ++i) buffers[i / 2][i % 2] = counts + space.counts + i * space.keys;
  Keys keys{args.ids, nullptr};
  int side = 0;
  const auto tiles = static_cast<unsigned>(space.tiles);
  const std::int64_t all = args.whole > 0 ? args.whole : args.vocab;
  for (int shift = 0; shift < 32 && (shift == 0 || all > (std::int64_t{1} << shift)); shift += 8) {
    count_kernel<<<tiles, 32, 0, native(stream)>>>(keys, args.tokens, shift, counts);
    scan_kernel<<<1, 1024, 0, native(stream)>>>(counts, space.counts);
    place_kernel<<<tiles, 32, 0, native(stream)>>>(keys, args.tokens, shift, counts, buffers[side][0], buffers[side][1]);
    keys = {buffers[side][0], buffers[side][1]};
    side = 1 - side;
  }
  check_launch("embedding_backward");
  with_storage(args.dtype, "embedding", [&](auto s) {
    using S = decltype(s);
    const auto grid = [&](int n) {
      return dim3(static_cast<unsigned>(args.tokens), static_cast<unsigned>(ceil_div(args.hidden, std::int64_t{128} * n)));
    };
    if constexpr (kVector < S >> 1) {
      if (args.hidden % 8 == 0 && aligned16(args.dy) && aligned16(args.dtable)) {
        return add_rows_kernel<S, kVector<S>><<<grid(kVector<S>), 128, 0, native(stream)>>>(args, keys.ids, keys.tokens);
      }
    }
    add_rows_kernel<S, 1><<<grid(1), 128, 0, native(stream)>>>(args, keys.ids, keys.tokens);
  });
  check_launch("embedding_backward");
}

}  // namespace deltron::kernels::cuda
