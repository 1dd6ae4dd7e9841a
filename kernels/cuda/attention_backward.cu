// Softmax attention backward on cuda, the plain portable kernels: probabilities are formed again from log_sum_exp. One kernel owns
// tiles of queries (dq), one owns tiles of keys and walks the query heads of their group in order (dk, dv): nothing is summed by
// two blocks.
#include "kernels/cuda/attention_tiles.cuh"

namespace deltron::kernels::cuda {
namespace {

// delta [tokens, Hq] = sum over dim of o * d_o.
template <class S>
__global__ void delta_kernel(AttentionBackwardArgs a) {
  using C = Compute<S>;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (index >= a.tokens * a.query_heads) return;  // whole warps
  const std::int64_t t = index / a.query_heads, head = index % a.query_heads;
  const auto place = [&](const HeadView& view) {
    if (view.sequence_stride == 0) return t * view.token_stride + head * view.head_stride;
    const std::int64_t n = document_of(a.documents, t);
    return n * view.sequence_stride + (t - a.documents.cu_seqlens[n]) * view.token_stride + head * view.head_stride;
  };
  const S* o = static_cast<const S*>(a.o.data) + place(a.o);
  const S* d_o = static_cast<const S*>(a.d_o.data) + place(a.d_o);
  C sum = C(0);
  for (std::int64_t i = threadIdx.x % 32; i < a.dim; i += 32) sum += static_cast<C>(widen(o[i])) * static_cast<C>(widen(d_o[i]));
  sum = group_sum<32, C>(sum, nullptr);
  if (threadIdx.x % 32 == 0) static_cast<C*>(a.workspace.data)[index] = sum;
}

// p = exp(score - lse) and ds = p (dp keep - delta) of a tile; p becomes p keep. Hidden pairs give zero.
template <class C, int kTile>
__device__ __forceinline__ void gradient_tile(const AttentionBackwardArgs& a, const DropoutForm<C>& dropout,
                                              const TileTokens<kTile>& queries, std::int64_t first_query, std::int64_t first_key,
                                              std::int64_t head, C* p, C* ds) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kAttentionThreads) {
    const int row = i / kTile, col = i % kTile, at = row * (kTile + 1) + col;
    const std::int64_t query = first_query + row, key = first_key + col;
    C weight = C(0), slope = C(0);
    if (query < a.tokens && key >= queries.start[row] && key <= query) {
      const std::int64_t line = query * a.query_heads + head;
      const C raw = exponential(p[at] - static_cast<const C*>(a.log_sum_exp)[line]);
      const C keep =
          dropout.on ? keep_factor(a.rng, dropout.threshold, dropout.factor, query, head, key - queries.start[row]) : C(1);
      slope = raw * (ds[at] * keep - static_cast<const C*>(a.workspace.data)[line]);
      weight = raw * keep;
    }
    p[at] = weight;
    ds[at] = slope;
  }
}

template <class C>
std::size_t dq_shared(std::int64_t dim) {
  constexpr int kTile = kAttentionTile<C> / 2;
  return sizeof(C) * (4 * kTile * static_cast<std::size_t>(dim + 1) + 2 * kTile * (kTile + 1));
}

template <class S>
__global__ void __launch_bounds__(kAttentionThreads) dq_kernel(AttentionBackwardArgs a, DropoutForm<Compute<S>> dropout) {
  using C = Compute<S>;
  constexpr int kTile = kAttentionTile<C> / 2;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ TileTokens<kTile> queries, keys;
  const int dim = static_cast<int>(a.dim), wide = kTile * (dim + 1);
  C* q = reinterpret_cast<C*>(memory);
  C* d_o = q + wide;
  C* kv = d_o + wide;
  C* dq = kv + wide;
  C* p = dq + wide;
  C* ds = p + kTile * (kTile + 1);
  const std::int64_t first = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kTile, head = blockIdx.y;
  const std::int64_t kv_head = head / (a.query_heads / a.kv_heads);
  find_tokens(a.documents, first, a.tokens, queries);
  __syncthreads();
  load_tile<S>(a.q, queries, first, a.tokens, head, dim, static_cast<C>(a.scale), q);
  load_tile<S>(a.d_o, queries, first, a.tokens, head, dim, C(1), d_o);
  for (int i = static_cast<int>(threadIdx.x); i < wide; i += kAttentionThreads) dq[i] = C(0);
  for (std::int64_t first_key = queries.start[0] / kTile * kTile; first_key <= first; first_key += kTile) {
    __syncthreads();
    find_tokens(a.documents, first_key, a.tokens, keys);
    __syncthreads();
    load_tile<S>(a.v, keys, first_key, a.tokens, kv_head, dim, C(1), kv);
    __syncthreads();
    multiply_transposed<C, kTile>(d_o, kv, dim, ds);
    __syncthreads();
    load_tile<S>(a.k, keys, first_key, a.tokens, kv_head, dim, C(1), kv);
    __syncthreads();
    multiply_transposed<C, kTile>(q, kv, dim, p);
    __syncthreads();
    gradient_tile<C, kTile>(a, dropout, queries, first, first_key, head, p, ds);
    __syncthreads();
    multiply_add<false, C, kTile>(ds, kv, dim, dq);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * dim; i += kAttentionThreads) {
    const int row = i / dim, col = i % dim;
    if (first + row >= a.tokens) continue;
    static_cast<S*>(a.dq.data)[token_place(a.dq, queries, first, row) + head * a.dq.head_stride + col] =
        narrow<S>(dq[row * (dim + 1) + col] * static_cast<C>(a.scale));
  }
}

template <class C>
std::size_t dkv_shared(std::int64_t dim) {
  constexpr int kTile = kAttentionTile<C> / 2;
  return sizeof(C) * (5 * kTile * static_cast<std::size_t>(dim + 1) + 2 * kTile * (kTile + 1));
}

template <class S>
__global__ void __launch_bounds__(kAttentionThreads) dkv_kernel(AttentionBackwardArgs a, DropoutForm<Compute<S>> dropout) {
  using C = Compute<S>;
  constexpr int kTile = kAttentionTile<C> / 2;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ TileTokens<kTile> queries, keys;
  const int dim = static_cast<int>(a.dim), wide = kTile * (dim + 1);
  C* k = reinterpret_cast<C*>(memory);
  C* v = k + wide;
  C* side = v + wide;  // q, d_o
  C* dk = side + wide;
  C* dv = dk + wide;
  C* p = dv + wide;
  C* ds = p + kTile * (kTile + 1);
  const std::int64_t first_key = static_cast<std::int64_t>(blockIdx.x) * kTile, kv_head = blockIdx.y,
                     group = a.query_heads / a.kv_heads;
  const std::int64_t last_key = first_key + kTile <= a.tokens ? first_key + kTile - 1 : a.tokens - 1;
  find_tokens(a.documents, first_key, a.tokens, keys);
  __syncthreads();
  const std::int64_t end = a.documents.cu_seqlens[keys.document[last_key - first_key] + 1];  // of the last key's document
  load_tile<S>(a.k, keys, first_key, a.tokens, kv_head, dim, C(1), k);
  load_tile<S>(a.v, keys, first_key, a.tokens, kv_head, dim, C(1), v);
  for (int i = static_cast<int>(threadIdx.x); i < wide; i += kAttentionThreads) dk[i] = dv[i] = C(0);
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (std::int64_t first = first_key; first < end; first += kTile) {
      __syncthreads();
      find_tokens(a.documents, first, a.tokens, queries);
      __syncthreads();
      load_tile<S>(a.q, queries, first, a.tokens, head, dim, static_cast<C>(a.scale), side);
      __syncthreads();
      multiply_transposed<C, kTile>(side, k, dim, p);
      __syncthreads();
      load_tile<S>(a.d_o, queries, first, a.tokens, head, dim, C(1), side);
      __syncthreads();
      multiply_transposed<C, kTile>(side, v, dim, ds);
      __syncthreads();
      gradient_tile<C, kTile>(a, dropout, queries, first, first_key, head, p, ds);
      __syncthreads();
      multiply_add<true, C, kTile>(p, side, dim, dv);
      __syncthreads();
      load_tile<S>(a.q, queries, first, a.tokens, head, dim, static_cast<C>(a.scale), side);
      __syncthreads();
      multiply_add<true, C, kTile>(ds, side, dim, dk);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile * dim; i += kAttentionThreads) {
    const int row = i / dim, col = i % dim;
    if (first_key + row >= a.tokens) continue;
    static_cast<S*>(a.dk.data)[token_place(a.dk, keys, first_key, row) + kv_head * a.dk.head_stride + col] =
        narrow<S>(dk[row * (dim + 1) + col]);
    static_cast<S*>(a.dv.data)[token_place(a.dv, keys, first_key, row) + kv_head * a.dv.head_stride + col] =
        narrow<S>(dv[row * (dim + 1) + col]);
  }
}

}  // namespace

std::int64_t attention_backward_workspace_bytes(const AttentionBackwardArgs& args, const StreamHandle&) {
  check_attention(args);
  return args.tokens * args.query_heads * static_cast<std::int64_t>(dtype_size(compute_dtype(args.dtype)));
}

void attention_backward(const AttentionBackwardArgs& args, const StreamHandle& stream) {
  check_attention(args);
  if (args.tokens <= 0) return;
  DELTRON_CHECK_GE(args.workspace.bytes, attention_backward_workspace_bytes(args, stream), "attention backward: workspace");
  with_storage(args.dtype, "attention", [&](auto s) {
    using S = decltype(s);
    using C = Compute<S>;
    const DropoutForm<C> dropout(args.rng);
    delta_kernel<S><<<static_cast<unsigned>(ceil_div(args.tokens * args.query_heads, 8)), 256, 0, native(stream)>>>(args);
    check_launch("attention_backward");
    const unsigned tiles = static_cast<unsigned>(ceil_div(args.tokens, kAttentionTile<C> / 2));
    raise_shared(dq_kernel<S>, dq_shared<C>(args.dim), "attention_backward");
    dq_kernel<S>
        <<<dim3(tiles, static_cast<unsigned>(args.query_heads)), kAttentionThreads, dq_shared<C>(args.dim), native(stream)>>>(
            args, dropout);
    check_launch("attention_backward dq");
    raise_shared(dkv_kernel<S>, dkv_shared<C>(args.dim), "attention_backward");
    dkv_kernel<S>
        <<<dim3(tiles, static_cast<unsigned>(args.kv_heads)), kAttentionThreads, dkv_shared<C>(args.dim), native(stream)>>>(
            args, dropout);
    check_launch("attention_backward dk dv");
  });
}

}  // namespace deltron::kernels::cuda
