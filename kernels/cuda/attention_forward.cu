// Softmax attention forward on cuda, the plain portable kernel: a block is a tile of queries of one head; it walks the tiles of
// keys in ascending order with a running maximum and sum. All arithmetic in the compute type.
#include "kernels/cuda/attention_tiles.cuh"

namespace deltron::kernels::cuda {
namespace {

template <class C>
std::size_t shared_bytes(std::int64_t dim) {
  constexpr int kTile = kAttentionTile<C>;
  return sizeof(C) * (3 * kTile * static_cast<std::size_t>(dim + 1) + kTile * (kTile + 1) + 3 * kTile);
}

template <class S>
__global__ void __launch_bounds__(kAttentionThreads) forward_kernel(AttentionForwardArgs a, DropoutForm<Compute<S>> dropout) {
  using C = Compute<S>;
  constexpr int kTile = kAttentionTile<C>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ TileTokens<kTile> queries, keys;
  const int dim = static_cast<int>(a.dim);
  C* q = reinterpret_cast<C*>(memory);  // [kTile, dim], times scale
  C* kv = q + kTile * (dim + 1);        // keys, then values
  C* out = kv + kTile * (dim + 1);
  C* score = out + kTile * (dim + 1);  // [queries, keys]
  C* highest = score + kTile * (kTile + 1);
  C* sum = highest + kTile;
  C* shrink = sum + kTile;
  const std::int64_t tile = gridDim.x - 1 - blockIdx.x;  // late tiles see the most keys: they go first
  const std::int64_t first = tile * kTile, head = blockIdx.y, kv_head = head / (a.query_heads / a.kv_heads);
  find_tokens(a.documents, first, a.tokens, queries);
  __syncthreads();
  load_tile<S>(a.q, queries, first, a.tokens, head, dim, static_cast<C>(a.scale), q);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * (dim + 1); i += kAttentionThreads) out[i] = C(0);
  if (static_cast<int>(threadIdx.x) < kTile) {
    highest[threadIdx.x] = -INFINITY;
    sum[threadIdx.x] = C(0);
  }
  const std::int64_t begin = queries.start[0] / kTile * kTile;
  for (std::int64_t first_key = begin; first_key <= first; first_key += kTile) {
    __syncthreads();
    find_tokens(a.documents, first_key, a.tokens, keys);
    __syncthreads();
    load_tile<S>(a.k, keys, first_key, a.tokens, kv_head, dim, C(1), kv);
    __syncthreads();
    multiply_transposed<C, kTile>(q, kv, dim, score);
    __syncthreads();
    // Four neighbouring threads own a query (eight where a tile has 32 of them).
    constexpr int kShare = kAttentionThreads / kTile;
    const int row = static_cast<int>(threadIdx.x) / kShare, lane = static_cast<int>(threadIdx.x) % kShare;
    const std::int64_t query = first + row, start = queries.start[row];
    C* line = score + row * (kTile + 1);
    C top = highest[row];
    for (int j = lane; j < kTile; j += kShare) {
      const std::int64_t key = first_key + j;
      if (key < start || key > query) line[j] = -INFINITY;
      top = line[j] > top ? line[j] : top;
    }
#pragma unroll
    for (int offset = kShare / 2; offset > 0; offset /= 2) {
      const C other = __shfl_xor_sync(0xffffffffu, top, offset);
      top = other > top ? other : top;
    }
    C total = C(0);
    for (int j = lane; j < kTile; j += kShare) {
      const C weight = line[j] == static_cast<C>(-INFINITY) ? C(0) : exponential(line[j] - top);
      line[j] = weight;
      total += weight;
    }
    total = group_sum<kShare, C>(total, nullptr);
    if (dropout.on && query < a.tokens) {
      for (int j = lane; j < kTile; j += kShare) {
        if (line[j] != C(0)) line[j] *= keep_factor(a.rng, dropout.threshold, dropout.factor, query, head, first_key + j - start);
      }
    }
    __syncwarp();  // the other lanes have read `highest`
    if (lane == 0) {
      shrink[row] = top == static_cast<C>(-INFINITY) ? C(1) : exponential(highest[row] - top);
      sum[row] = sum[row] * shrink[row] + total;
      highest[row] = top;
    }
    __syncthreads();
    load_tile<S>(a.v, keys, first_key, a.tokens, kv_head, dim, C(1), kv);
    for (int i = static_cast<int>(threadIdx.x); i < kTile * dim; i += kAttentionThreads)
      out[i / dim * (dim + 1) + i % dim] *= shrink[i / dim];
    __syncthreads();
    multiply_add<false, C, kTile>(score, kv, dim, out);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * dim; i += kAttentionThreads) {
    const int row = i / dim, col = i % dim;
    if (first + row >= a.tokens) continue;
    static_cast<S*>(a.o.data)[token_place(a.o, queries, first, row) + head * a.o.head_stride + col] =
        narrow<S>(out[row * (dim + 1) + col] / sum[row]);
  }
  if (a.log_sum_exp != nullptr && static_cast<int>(threadIdx.x) < kTile && first + threadIdx.x < a.tokens) {
    static_cast<C*>(a.log_sum_exp)[(first + threadIdx.x) * a.query_heads + head] =
        highest[threadIdx.x] + logarithm(sum[threadIdx.x]);
  }
}

}  // namespace

std::int64_t attention_forward_workspace_bytes(const AttentionForwardArgs& args, const StreamHandle&) {
  check_attention(args);
  return 0;
}

void attention_forward(const AttentionForwardArgs& args, const StreamHandle& stream) {
  check_attention(args);
  if (args.tokens <= 0) return;
  with_storage(args.dtype, "attention", [&](auto s) {
    using S = decltype(s);
    using C = Compute<S>;
    const std::size_t shared = shared_bytes<C>(args.dim);
    raise_shared(forward_kernel<S>, shared, "attention_forward");
    const dim3 grid(static_cast<unsigned>(ceil_div(args.tokens, kAttentionTile<C>)), static_cast<unsigned>(args.query_heads));
    forward_kernel<S><<<grid, kAttentionThreads, shared, native(stream)>>>(args, DropoutForm<C>(args.rng));
  });
  check_launch("attention_forward");
}

}  // namespace deltron::kernels::cuda
