// Tensor-core path of gated delta rule 2, first step, parallel over (chunk, gate head): decays along the chunk, the pair matrices M
// and P (docs/gdn.md 12.10, 12.11), T = (I + M)^-1 by substitution in fp32, and the tiles that the scans multiply with. Decay is
// never an exponent that could be positive: everything is a product of e^g <= 1 of single tokens. Sub-blocks of 16 rows: pairs in
// different ones by tensor cores around the border before the later one, pairs inside one on CUDA cores in fp32.
#include "kernels/cuda/delta_rule_records.cuh"
#include "kernels/cuda/delta_rule_solve.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kThreads = 512, kBlock = 16, kBlocks = kChunk / kBlock;

template <class T, int K>
struct Shared {
  static constexpr int kStride = K + kTilePad, kFloatStride = K + 4;
  T *k, *q;           // [64, K] as given
  T *erased, *query;  // [64, K] c and q, decayed from the start of their sub-block
  T* ladder;          // [16 + 32 + 48, K] keys of earlier sub-blocks, decayed to the border before sub-block 1, 2, 3
  float *decay, *c;   // [64, K] e^g, b k
  float* m;           // [64, kMStride]
  float *q_rstd, *k_rstd;
  float* over;  // [4, K] e^G over a whole sub-block

  static constexpr std::size_t bytes() {
    return 2 * (4 * kChunk + 6 * kBlock) * kStride + 4 * (2 * kChunk * kFloatStride + kChunk * kMStride + 2 * kChunk + kBlocks * K);
  }
  __device__ explicit Shared(char* memory) {
    T* next = reinterpret_cast<T*>(memory);
    k = next, q = k + kChunk * kStride, erased = q + kChunk * kStride, query = erased + kChunk * kStride;
    ladder = query + kChunk * kStride;
    decay = reinterpret_cast<float*>(ladder + 6 * kBlock * kStride), c = decay + kChunk * kFloatStride;
    m = c + kChunk * kFloatStride, q_rstd = m + kChunk * kMStride, k_rstd = q_rstd + kChunk;
    over = k_rstd + kChunk;
  }
  // Rows of the ladder at the border before sub-block `block`.
  __device__ T* rungs(int block) const { return ladder + block * (block - 1) / 2 * kBlock * kStride; }
};

// Activated gates of all tokens as tiles of chunks: a block takes 16 rows of one piece, a thread two channels of some.
template <class T, int K>
__global__ void __launch_bounds__(256) activate(RuleProblem p, ChunkTable table, TensorPieces pieces) {
  const unsigned piece = blockIdx.x / kBlocks, head = piece % static_cast<unsigned>(p.gate_heads);
  const int d = static_cast<int>(threadIdx.x) % (K / 2) * 2, first = static_cast<int>(blockIdx.x % kBlocks) * kBlock;
  const Chunk chunk = table.chunks[piece / static_cast<unsigned>(p.gate_heads)];
  const std::int64_t decay_at = view_offset(p.decay, p.documents, chunk.document, chunk.begin, head) + d;
  const std::int64_t erase_at = view_offset(p.erase, p.documents, chunk.document, chunk.begin, head) + d;
  const float rate = p.raw ? expf(p.A_log[head]) : 0,
              bias[2] = {p.raw ? p.dt_bias[head * K + d] : 0, p.raw ? p.dt_bias[head * K + d + 1] : 0};
#pragma unroll 4
  for (int t = first + static_cast<int>(threadIdx.x) / (K / 2); t < first + kBlock; t += 512 / K) {
    float decay[2] = {1, 1}, erase[2] = {0, 0};
    if (t < chunk.tokens) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float g = load_element(p.decay.data, p.decay_dtype, decay_at + t * p.decay.token_stride + e);
        if (p.raw) g = -rate * softplus(g + bias[e]);
        decay[e] = __expf(fmaxf(g, kLogDecayFloor));
        erase[e] = activated_erase(p, load_element(p.erase.data, p.erase_dtype, erase_at + t * p.erase.token_stride + e));
      }
    }
    const std::int64_t at = (static_cast<std::int64_t>(piece) * kChunk + t) * K + d;
    *reinterpret_cast<float2*>(pieces.decay + at) = make_float2(decay[0], decay[1]);
    store_pair(static_cast<T*>(pieces.erase) + at, erase[0], erase[1]);
  }
}

template <class T, int K>
__global__ void __launch_bounds__(kThreads, 1) prepare(RuleProblem p, ChunkTable table, TensorPieces pieces) {
  DELTRON_DYNAMIC_SHARED(memory);
  using Tiles = Shared<T, K>;
  constexpr int kStride = Tiles::kStride, kFloatStride = Tiles::kFloatStride;
  const Tiles s(memory);
  const std::int64_t c = blockIdx.x / p.gate_heads, piece = blockIdx.x;
  const int gate_head = static_cast<int>(blockIdx.x % p.gate_heads), key_head = gate_head * p.gate_group() / p.key_group();
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const Chunk chunk = table.chunks[c];
  const std::int64_t k_at = view_offset(p.k, p.documents, chunk.document, chunk.begin, key_head);
  const std::int64_t q_at = view_offset(p.q, p.documents, chunk.document, chunk.begin, key_head);
  copy_rows<K, kThreads>(s.k, static_cast<const T*>(p.k.data) + k_at, p.k.token_stride, kChunk, chunk.tokens, thread);
  copy_rows<K, kThreads>(s.q, static_cast<const T*>(p.q.data) + q_at, p.q.token_stride, kChunk, chunk.tokens, thread);
  copy_rows<K, kThreads>(s.erased, static_cast<const T*>(pieces.erase) + piece * kChunk * K, K, kChunk, kChunk,
                         thread);  // b, replaced in place
  copy_float_rows<K, kThreads>(s.decay, kFloatStride, pieces.decay + piece * kChunk * K, thread);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  for (int r = warp; r < 2 * kChunk; r += kThreads / 32)
    row_rstd<K>(p, (r < kChunk ? s.k : s.q) + r % kChunk * kStride, (r < kChunk ? s.k_rstd : s.q_rstd) + r % kChunk, lane);
  __syncthreads();

  T* const key_end = static_cast<T*>(pieces.key_end) + piece * kChunk * K;
  T* const erased_start = static_cast<T*>(pieces.erased_start) + piece * kChunk * K;
  T* const query_start = static_cast<T*>(pieces.query_start) + piece * kChunk * K;
  {  // a thread has one channel of one sub-block
    const int block = thread / K, d = thread % K, first = block * kBlock;
    const bool works = thread < kBlocks * K;
    float decay[kBlock], e[kBlock], key[kBlock], query[kBlock];
    if (works) {
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
        decay[i] = s.decay[(first + i) * kFloatStride + d], e[i] = widen(s.erased[(first + i) * kStride + d]);
        key[i] = widen(s.k[(first + i) * kStride + d]) * s.k_rstd[first + i],
        query[i] = widen(s.q[(first + i) * kStride + d]) * s.q_rstd[first + i];
      }
      float over = 1;
#pragma unroll
      for (int i = 0; i < kBlock; ++i) over *= decay[i];
      s.over[block * K + d] = over;
    }
    __syncthreads();
    if (works) {
      float start = 1, end = 1, inside = 1, after = 1;
      for (int other = 0; other < block; ++other) start *= s.over[other * K + d];
      for (int other = kBlocks - 1; other > block; --other) end *= s.over[other * K + d];
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
        const int t = first + i;
        inside *= decay[i];
        const float from = start * inside, erased = e[i] * key[i];
        s.c[t * kFloatStride + d] = erased;
        s.erased[t * kStride + d] = narrow<T>(erased * inside), s.query[t * kStride + d] = narrow<T>(query[i] * inside);
        erased_start[t * K + d] = narrow<T>(erased * from), query_start[t * K + d] = narrow<T>(p.scale * query[i] * from);
      }
      if (block == kBlocks - 1) pieces.whole[piece * K + d] = start * inside;
#pragma unroll
      for (int i = kBlock - 1; i >= 0; --i) {
        const int t = first + i;
        float rung = key[i] * after;
        key_end[t * K + d] = narrow<T>(rung * end);
        for (int border = block + 1; border < kBlocks; ++border) {
          s.rungs(border)[t * kStride + d] = narrow<T>(rung);
          rung *= s.over[border * K + d];
        }
        after *= decay[i];
      }
    }
  }
  __syncthreads();

  T* const p_out = static_cast<T*>(pieces.p) + piece * kChunk * kChunk;
  if (warp < 6) {  // pairs of different sub-blocks
    const int later = warp == 0 ? 1 : warp < 3 ? 2 : 3, earlier = warp - later * (later - 1) / 2;
    float m[2][4] = {}, pairs[2][4] = {};
#pragma unroll 4
    for (int k = 0; k < K; k += 16) {
      std::uint32_t a[4], b[4];
      load_b<true>(b, s.rungs(later), kStride, k, earlier * kBlock, lane);
      load_a<false>(a, s.erased, kStride, later * kBlock, k, lane);
      multiply_add<T>(m[0], a, b[0], b[1]), multiply_add<T>(m[1], a, b[2], b[3]);
      load_a<false>(a, s.query, kStride, later * kBlock, k, lane);
      multiply_add<T>(pairs[0], a, b[0], b[1]), multiply_add<T>(pairs[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = later * kBlock + lane / 4 + 8 * half, j = earlier * kBlock + 8 * n + lane % 4 * 2;
        *reinterpret_cast<float2*>(s.m + i * kMStride + j) = make_float2(m[n][2 * half], m[n][2 * half + 1]);
        store_pair(p_out + i * kChunk + j, p.scale * pairs[n][2 * half], p.scale * pairs[n][2 * half + 1]);
        store_pair(p_out + (i - later * kBlock + earlier * kBlock) * kChunk + j - earlier * kBlock + later * kBlock, 0, 0);
      }
    }
  }
  {  // pairs inside a sub-block: a lane has one column and an eighth of the channels, and carries k_j e^(G_i - G_j) from row to row
    const int first = warp / 4 * kBlock, column = warp % 4 * 4 + lane % 4, part = lane / 4;
    float m[kBlock] = {}, pairs[kBlock] = {};
    for (int d = 4 * part; d < K; d += 32) {
      float4 key = load_quad(s.k + (first + column) * kStride + d), x = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
        const float4 decay = *reinterpret_cast<const float4*>(s.decay + (first + i) * kFloatStride + d);
        const float4 e = *reinterpret_cast<const float4*>(s.c + (first + i) * kFloatStride + d);
        const float4 q = load_quad(s.q + (first + i) * kStride + d);
        x.x *= decay.x, x.y *= decay.y, x.z *= decay.z, x.w *= decay.w;
        m[i] += x.x * e.x + x.y * e.y + x.z * e.z + x.w * e.w;
        if (i == column) x = key;
        pairs[i] += x.x * q.x + x.y * q.y + x.z * q.z + x.w * q.w;
      }
    }
    const float of_key = s.k_rstd[first + column];
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      m[i] += __shfl_xor_sync(0xffffffffu, m[i], 4), pairs[i] += __shfl_xor_sync(0xffffffffu, pairs[i], 4);
      m[i] += __shfl_xor_sync(0xffffffffu, m[i], 8), pairs[i] += __shfl_xor_sync(0xffffffffu, pairs[i], 8);
      m[i] += __shfl_xor_sync(0xffffffffu, m[i], 16), pairs[i] += __shfl_xor_sync(0xffffffffu, pairs[i], 16);
      if (part != 0) continue;
      s.m[(first + i) * kMStride + first + column] = of_key * m[i];
      p_out[(first + i) * kChunk + first + column] = narrow<T>(p.scale * s.q_rstd[first + i] * of_key * pairs[i]);
    }
  }
  __syncthreads();
  invert_unit_lower<1, kThreads>(s.m, s.c, thread);  // c is used up
  for (int i = thread; i < kChunk * kChunk / 2; i += kThreads) {
    const int r = i / (kChunk / 2), j = i % (kChunk / 2) * 2;
    float2 x = *reinterpret_cast<const float2*>(s.m + r * kMStride + j);
    if (j > r) x.x = 0;
    if (j + 1 > r) x.y = 0;
    const std::int64_t at = piece * kChunk * kChunk + r * kChunk + j;
    const std::uint32_t bits = pack_pair<T>(x.x, x.y);
    *reinterpret_cast<std::uint32_t*>(static_cast<T*>(pieces.t) + at) = bits;
    if (pieces.t_rest == nullptr) continue;
    const float2 rounded = unpack_pair<T>(bits);
    store_pair(static_cast<T*>(pieces.t_rest) + at, x.x - rounded.x, x.y - rounded.y);
  }
}

}  // namespace

void prepare_channel(const RuleProblem& p, const ChunkTable& table, const TensorPieces& pieces, cudaStream_t stream) {
  with_tensor_types(p, [&](auto type, auto key, auto) {
    using T = decltype(type);
    constexpr int K = key.value;
    launch("gated_delta_rule_2_activate", &activate<T, K>, table.count * p.gate_heads * kBlocks, 256, 0, stream, p, table, pieces);
    launch("gated_delta_rule_2_prepare", &prepare<T, K>, table.count * p.gate_heads, kThreads, Shared<T, K>::bytes(), stream, p,
           table, pieces);
  });
}

}  // namespace deltron::kernels::cuda
