// Tensor-core path of gated delta rule 2, last step of backward, parallel over (chunk, key head): from S, D', U and Z of the scans
// all gradients of the chunk, docs/gdn.md (12.16)-(12.21) and (12.23). Products with states and pair matrices are summed over the
// value heads of a gate head on tensor cores, then decay is applied once: pairs of different sub-blocks of 16 rows on tensor cores
// around the border before the later one, pairs inside one by a thread per (sub-block, channel) in fp32. dg is gathered from terms
// of which none has to cancel another. A warp has the rows of one sub-block and a quarter of the channels.
#include "kernels/cuda/delta_rule_records.cuh"
#include "kernels/cuda/delta_rule_solve.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kThreads = 512, kParts = 4, kBlock = 16, kBlocks = kChunk / kBlock, kSquareStride = kChunk + kTilePad;

template <class T, int K, int V>
struct Shared {
  static constexpr int kKeyStride = K + kTilePad, kValueStride = V + kTilePad, kFloatStride = K + 4;
  T *q, *k;                          // [64, K]
  T *x, *n;                          // [64, 64]
  float *q_rstd, *k_rstd;            // [64]
  float *start, *end, *over;         // [4, K] e^G up to a sub-block, after it, over it
  float *reads, *writes, *crossing;  // [4, K], [4, K], [6, K]: parts of dg of whole sub-blocks
  float* carried;                    // [K] rowsum of S o D'
  // One after the other in the same place: operands of a value head; tables of decays; gradients.
  T *u, *d_o, *z;              // [64, V]
  T *s, *d_s;                  // [K, V]
  float *inside, *after;       // [64, K] e^G from the start of the sub-block to a row, from the row to its end
  T *erased, *query, *ladder;  // as in the prepare kernel
  float *d_q, *d_c, *d_k;      // [64, K]

  static constexpr std::size_t kHeadBytes = 2 * (3 * kChunk + 2 * K) * kValueStride;
  static constexpr std::size_t kTableBytes = 4 * 2 * kChunk * kFloatStride + 2 * (2 * kChunk + 6 * kBlock) * kKeyStride;
  static constexpr std::size_t kGradientBytes = 4 * 3 * kChunk * kFloatStride;
  static constexpr std::size_t largest(std::size_t a, std::size_t b) { return a > b ? a : b; }
  static constexpr std::size_t kFixedBytes =
      2 * (2 * kChunk * kKeyStride + 2 * kChunk * kSquareStride) + 4 * (2 * kChunk + (5 * kBlocks + 6 + 1) * K);
  static constexpr std::size_t bytes() { return kFixedBytes + largest(kHeadBytes, largest(kTableBytes, kGradientBytes)); }
  __device__ explicit Shared(char* memory) {
    T* next = reinterpret_cast<T*>(memory);
    q = next, k = q + kChunk * kKeyStride, x = k + kChunk * kKeyStride, n = x + kChunk * kSquareStride;
    q_rstd = reinterpret_cast<float*>(n + kChunk * kSquareStride), k_rstd = q_rstd + kChunk;
    start = k_rstd + kChunk, end = start + kBlocks * K, over = end + kBlocks * K;
    reads = over + kBlocks * K, writes = reads + kBlocks * K, crossing = writes + kBlocks * K, carried = crossing + 6 * K;
    char* shared = memory + kFixedBytes;
    u = reinterpret_cast<T*>(shared), d_o = u + kChunk * kValueStride, z = d_o + kChunk * kValueStride;
    s = z + kChunk * kValueStride, d_s = s + K * kValueStride;
    inside = reinterpret_cast<float*>(shared), after = inside + kChunk * kFloatStride;
    erased = reinterpret_cast<T*>(after + kChunk * kFloatStride), query = erased + kChunk * kKeyStride,
    ladder = query + kChunk * kKeyStride;
    d_q = reinterpret_cast<float*>(shared), d_c = d_q + kChunk * kFloatStride, d_k = d_c + kChunk * kFloatStride;
  }
  __device__ T* rungs(int block) const { return ladder + block * (block - 1) / 2 * kBlock * kKeyStride; }
};
// Crossing sums of (later, earlier) sub-blocks: 0 (1,0), 1 (2,0), 2 (2,1), 3 (3,0), 4 (3,1), 5 (3,2).
__device__ __forceinline__ int pair_index(int later, int earlier) { return later * (later - 1) / 2 + earlier; }

__device__ __forceinline__ float rows_sum(float x) {  // over the eight row lanes of an accumulator column
  x += __shfl_xor_sync(0xffffffffu, x, 4);
  x += __shfl_xor_sync(0xffffffffu, x, 8);
  return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

// dv = w o Z, dw = v o Z (12.16): two channels a thread and turn.
template <class T, int V>
__device__ void value_gradients(const RuleProblem& p, const RuleGradients& out, const Chunk& chunk, int head, const T* z,
                                int thread) {
  const std::int64_t v_at = view_offset(p.v, p.documents, chunk.document, chunk.begin, head);
  const std::int64_t w_at = view_offset(p.write, p.documents, chunk.document, chunk.begin, head);
  const std::int64_t d_v_at = view_offset(out.dv, p.documents, chunk.document, chunk.begin, head);
  const std::int64_t d_w_at = view_offset(out.d_write, p.documents, chunk.document, chunk.begin, head);
  const bool wide = p.write_dtype == DType::F32;
  constexpr int kTurns = kChunk * V / 2 / kThreads, kBatch = 4;
#pragma unroll 1
  for (int first = 0; first < kTurns; first += kBatch) {
    RawPair v[kBatch], write[kBatch];
#pragma unroll
    for (int turn = 0; turn < kBatch; ++turn) {
      const int i = thread + (first + turn) * kThreads, t = i / (V / 2), j = i % (V / 2) * 2;
      if (t >= chunk.tokens) continue;
      v[turn].load(p.v.data, false, v_at + t * p.v.token_stride + j),
          write[turn].load(p.write.data, wide, w_at + t * p.write.token_stride + j);
    }
#pragma unroll
    for (int turn = 0; turn < kBatch; ++turn) {
      const int i = thread + (first + turn) * kThreads, t = i / (V / 2), j = i % (V / 2) * 2;
      if (t >= chunk.tokens) continue;
      const float2 value = v[turn].value(p.dtype), raw = write[turn].value(p.write_dtype),
                   dz = load_pair(z + t * (V + kTilePad) + j);
      const float w[2] = {activated_write(p, raw.x), activated_write(p, raw.y)};
      float d_w[2] = {value.x * dz.x, value.y * dz.y};
      if (p.raw) d_w[0] *= w[0] * (1 - w[0]), d_w[1] *= w[1] * (1 - w[1]);
      store_raw_pair(out.d_write.data, out.d_gate_dtype, d_w_at + t * out.d_write.token_stride + j, d_w[0], d_w[1]);
      store_pair(static_cast<T*>(out.dv.data) + d_v_at + t * out.dv.token_stride + j, w[0] * dz.x, w[1] * dz.y);
    }
  }
}

// Tables of decays along the chunk; `inside` comes holding e^g, `erased` b. A thread has one channel of one sub-block.
template <class T, int K, int V>
__device__ void make_tables(const Shared<T, K, V>& m, int thread) {
  constexpr int kKeyStride = Shared<T, K, V>::kKeyStride, kFloatStride = Shared<T, K, V>::kFloatStride;
  const int block = thread / K, d = thread % K, first = block * kBlock;
  const bool works = thread < kBlocks * K;
  float decay[kBlock];
  if (works) {
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      decay[i] = m.inside[(first + i) * kFloatStride + d];
    }
    float over = 1;
#pragma unroll
    for (int i = 0; i < kBlock; ++i) over *= decay[i];
    m.over[block * K + d] = over;
  }
  __syncthreads();
  if (!works) return;
  float start = 1, end = 1, inside = 1, after = 1;
  for (int other = 0; other < block; ++other) start *= m.over[other * K + d];
  for (int other = kBlocks - 1; other > block; --other) end *= m.over[other * K + d];
  m.start[block * K + d] = start, m.end[block * K + d] = end;
  constexpr int kBatch = 4;  // rows whose loads are in flight together
#pragma unroll
  for (int i0 = 0; i0 < kBlock; i0 += kBatch) {
    T erase[kBatch], key[kBatch], query[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = (first + i0 + i) * kKeyStride + d;
      erase[i] = m.erased[at], key[i] = m.k[at], query[i] = m.q[at];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int t = first + i0 + i;
      inside *= decay[i0 + i];
      m.inside[t * kFloatStride + d] = inside;
      m.erased[t * kKeyStride + d] = narrow<T>(inside * widen(erase[i]) * widen(key[i]) * m.k_rstd[t]);
      m.query[t * kKeyStride + d] = narrow<T>(inside * widen(query[i]) * m.q_rstd[t]);
    }
  }
#pragma unroll
  for (int i0 = kBlock - kBatch; i0 >= 0; i0 -= kBatch) {
    T key[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) key[i] = m.k[(first + i0 + i) * kKeyStride + d];
#pragma unroll
    for (int i = kBatch - 1; i >= 0; --i) {
      const int t = first + i0 + i;
      m.after[t * kFloatStride + d] = after;
      float rung = after * widen(key[i]) * m.k_rstd[t];
      for (int border = block + 1; border < kBlocks; ++border) {
        m.rungs(border)[t * kKeyStride + d] = narrow<T>(rung);
        rung *= m.over[border * K + d];
      }
      after *= decay[i0 + i];
    }
  }
}

template <class T, int K, int V>
__global__ void __launch_bounds__(kThreads, 1)
    gradients(RuleProblem p, RuleGradients out, ChunkTable table, TensorPieces pieces, GatePieces gates) {
  DELTRON_DYNAMIC_SHARED(memory);
  using Tiles = Shared<T, K, V>;
  const Tiles m(memory);
  constexpr int kKeyStride = Tiles::kKeyStride, kValueStride = Tiles::kValueStride, kFloatStride = Tiles::kFloatStride,
                kPieces = K / 8 / kParts;
  const std::int64_t c = blockIdx.x / p.key_heads;
  const int key_head = static_cast<int>(blockIdx.x % p.key_heads), thread = static_cast<int>(threadIdx.x), warp = thread / 32,
            lane = thread % 32;
  const int block = warp % 4, row = block * kBlock, column = warp / 4 * (K / kParts), pair_column = warp / 4 * kBlock;
  const Chunk chunk = table.chunks[c];
  const std::int64_t first_token = p.documents.cu_seqlens[chunk.document] + chunk.begin;
  const std::int64_t k_at = view_offset(p.k, p.documents, chunk.document, chunk.begin, key_head);
  const std::int64_t q_at = view_offset(p.q, p.documents, chunk.document, chunk.begin, key_head);
  copy_rows<K, kThreads>(m.k, static_cast<const T*>(p.k.data) + k_at, p.k.token_stride, kChunk, chunk.tokens, thread);
  copy_rows<K, kThreads>(m.q, static_cast<const T*>(p.q.data) + q_at, p.q.token_stride, kChunk, chunk.tokens, thread);
  const int gates_of_key = p.gate_heads / p.key_heads, group = p.gate_group();

  for (int gate_head = key_head * gates_of_key; gate_head < (key_head + 1) * gates_of_key; ++gate_head) {
    const std::int64_t gate_piece = c * p.gate_heads + gate_head;
    const float* decays = pieces.decay + gate_piece * kChunk * K;                     // [64, K]
    const T* erases = static_cast<const T*>(pieces.erase) + gate_piece * kChunk * K;  // [64, K]
    float of_q[kPieces][4] = {}, of_c[kPieces][4] = {}, of_k[kPieces][4] = {}, x[2][4] = {}, n[2][4] = {};
    for (int head = gate_head * group; head < (gate_head + 1) * group; ++head) {
      const std::int64_t piece = c * p.value_heads + head;
      const std::int64_t d_o_at = view_offset(out.d_o, p.documents, chunk.document, chunk.begin, head);
      copy_rows<V, kThreads>(m.u, static_cast<const T*>(pieces.u) + piece * kChunk * V, V, kChunk, kChunk, thread);
      copy_rows<V, kThreads>(m.d_o, static_cast<const T*>(out.d_o.data) + d_o_at, out.d_o.token_stride, kChunk, chunk.tokens,
                             thread);
      copy_rows<V, kThreads>(m.z, static_cast<const T*>(pieces.z) + piece * kChunk * V, V, kChunk, kChunk, thread);
      commit_copies();
      copy_rows<V, kThreads>(m.s, static_cast<const T*>(pieces.states) + piece * K * V, V, K, K, thread);
      copy_rows<V, kThreads>(m.d_s, static_cast<const T*>(pieces.d_states) + piece * K * V, V, K, K, thread);
      commit_copies();
      wait_copies<1>();
      __syncthreads();
      if (pair_column <= row) {
        warp_product<false, true, 1>(x, m.d_o, kValueStride, row, m.u, kValueStride, pair_column, 0, V, lane);
        warp_product<false, true, 1>(n, m.z, kValueStride, row, m.u, kValueStride, pair_column, 0, V, lane);
      }
      value_gradients<T, V>(p, out, chunk, head, m.z, thread);
      wait_copies<0>();
      __syncthreads();
      warp_product<false, true, kPieces / 2>(of_q, m.d_o, kValueStride, row, m.s, kValueStride, column, 0, V, lane);
      warp_product<false, true, kPieces / 2>(of_c, m.z, kValueStride, row, m.s, kValueStride, column, 0, V, lane);
      warp_product<false, true, kPieces / 2>(of_k, m.u, kValueStride, row, m.d_s, kValueStride, column, 0, V, lane);
      for (int i = warp; i < K; i += kThreads / 32) {
        float sum = 0;
        for (int j = 2 * lane; j < V; j += 64) {
          const float2 a = load_pair(m.s + i * kValueStride + j), b = load_pair(m.d_s + i * kValueStride + j);
          sum += a.x * b.x + a.y * b.y;
        }
        sum = warp_sum(sum);
        if (lane == 0) m.carried[i] = head == gate_head * group ? sum : m.carried[i] + sum;
      }
      __syncthreads();
    }
    // X and N (12.17) as operands; norms; e^g and b.
    copy_float_rows<K, kThreads>(m.inside, kFloatStride, decays, thread);
    copy_rows<K, kThreads>(m.erased, erases, K, kChunk, kChunk, thread);
    commit_copies();
#pragma unroll
    for (int piece8 = 0; piece8 < 2; ++piece8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + lane / 4 + 8 * half, j = pair_column + 8 * piece8 + lane % 4 * 2;
        const float* xs = x[piece8] + 2 * half;
        const float* ns = n[piece8] + 2 * half;
        store_pair(m.x + i * kSquareStride + j, j <= i ? p.scale * xs[0] : 0.0f, j + 1 <= i ? p.scale * xs[1] : 0.0f);
        store_pair(m.n + i * kSquareStride + j, j < i ? -ns[0] : 0.0f, j + 1 < i ? -ns[1] : 0.0f);
      }
    }
    for (int r = warp; r < 2 * kChunk; r += kThreads / 32) {
      row_rstd<K>(p, (r < kChunk ? m.k : m.q) + r % kChunk * kKeyStride, (r < kChunk ? m.k_rstd : m.q_rstd) + r % kChunk, lane);
    }
    wait_copies<0>();
    __syncthreads();
    make_tables<T, K, V>(m, thread);
    __syncthreads();

    // Through the states, then pairs of different sub-blocks: of_q and of_c lack the factor `inside`, of_k lacks `after`.
#pragma unroll
    for (int piece8 = 0; piece8 < kPieces; ++piece8) {
      const int d = column + 8 * piece8 + lane % 4 * 2;
      float reads[2] = {0, 0}, writes[2] = {0, 0};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = row + lane / 4 + e / 2 * 8, at = d + e % 2;
        const float start = m.start[block * K + at];
        of_q[piece8][e] *= p.scale * start, of_c[piece8][e] *= -start, of_k[piece8][e] *= m.end[block * K + at];
        const float key = m.k_rstd[i] * widen(m.k[i * kKeyStride + at]);
        reads[e % 2] +=
            widen(m.query[i * kKeyStride + at]) * of_q[piece8][e] + widen(m.erased[i * kKeyStride + at]) * of_c[piece8][e];
        writes[e % 2] += m.after[i * kFloatStride + at] * key * of_k[piece8][e];
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        reads[e] = rows_sum(reads[e]), writes[e] = rows_sum(writes[e]);
        if (lane / 4 == 0) m.reads[block * K + d + e] = reads[e], m.writes[block * K + d + e] = writes[e];
      }
    }
    if (block > 0) {
      warp_product<false, false, kPieces / 2>(of_q, m.x, kSquareStride, row, m.rungs(block), kKeyStride, column, 0, row, lane);
      warp_product<false, false, kPieces / 2>(of_c, m.n, kSquareStride, row, m.rungs(block), kKeyStride, column, 0, row, lane);
    }
    for (int later = block + 1; later < kBlocks; ++later) {
      float temp[kPieces][4] = {};
      warp_product<true, false, kPieces / 2>(temp, m.x, kSquareStride, row, m.query, kKeyStride, column, later * kBlock,
                                             (later + 1) * kBlock, lane);
      warp_product<true, false, kPieces / 2>(temp, m.n, kSquareStride, row, m.erased, kKeyStride, column, later * kBlock,
                                             (later + 1) * kBlock, lane);
#pragma unroll
      for (int piece8 = 0; piece8 < kPieces; ++piece8) {
        const int d = column + 8 * piece8 + lane % 4 * 2;
        float between[2] = {1, 1}, sum[2] = {0, 0};
        for (int over = block + 1; over < later; ++over) between[0] *= m.over[over * K + d], between[1] *= m.over[over * K + d + 1];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = row + lane / 4 + e / 2 * 8, at = d + e % 2;
          const float value = between[e % 2] * temp[piece8][e];
          of_k[piece8][e] += value;
          sum[e % 2] += value * m.after[i * kFloatStride + at] * m.k_rstd[i] * widen(m.k[i * kKeyStride + at]);
        }
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          sum[e] = rows_sum(sum[e]);
          if (lane / 4 == 0) m.crossing[pair_index(later, block) * K + d + e] = sum[e];
        }
      }
    }
#pragma unroll
    for (int piece8 = 0; piece8 < kPieces; ++piece8) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = (row + lane / 4 + e / 2 * 8) * kFloatStride + column + 8 * piece8 + lane % 4 * 2 + e % 2;
        of_q[piece8][e] *= m.inside[at], of_c[piece8][e] *= m.inside[at], of_k[piece8][e] *= m.after[at];
      }
    }
    __syncthreads();  // the tables are used up
#pragma unroll
    for (int piece8 = 0; piece8 < kPieces; ++piece8) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = (row + lane / 4 + 8 * half) * kFloatStride + column + 8 * piece8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(m.d_q + at) = make_float2(of_q[piece8][2 * half], of_q[piece8][2 * half + 1]);
        *reinterpret_cast<float2*>(m.d_c + at) = make_float2(of_c[piece8][2 * half], of_c[piece8][2 * half + 1]);
        *reinterpret_cast<float2*>(m.d_k + at) = make_float2(of_k[piece8][2 * half], of_k[piece8][2 * half + 1]);
      }
    }
    __syncthreads();

    // Pairs inside a sub-block, and all sums of (12.23): a thread has one channel of one sub-block.
    const bool first_gate = gate_head == key_head * gates_of_key, last_gate = gate_head == (key_head + 1) * gates_of_key - 1;
    if (thread < kBlocks * K) {
      const int b = thread / K, d = thread % K, first = b * kBlock;
      float key[kBlock], decay[kBlock], of_key[kBlock], d_g[kBlock];
      T erase[kBlock];
#pragma unroll
      for (int i = 0; i < kBlock; ++i) decay[i] = decays[(first + i) * K + d], erase[i] = erases[(first + i) * K + d];
#pragma unroll
      for (int i = 0; i < kBlock; ++i) key[i] = m.k_rstd[first + i] * widen(m.k[(first + i) * kKeyStride + d]), of_key[i] = 0;
      float suffix = m.start[(kBlocks - 1) * K + d] * m.over[(kBlocks - 1) * K + d] * m.carried[d];
      for (int later = b + 1; later < kBlocks; ++later) {
        suffix += m.reads[later * K + d];
        for (int earlier = 0; earlier < b; ++earlier) suffix += m.crossing[pair_index(later, earlier) * K + d];
      }
      float prefix = 0;
      for (int earlier = 0; earlier < b; ++earlier) prefix += m.writes[earlier * K + d];
#pragma unroll
      for (int i = kBlock - 1; i >= 0; --i) {
        const int t = first + i;
        const T* xs = m.x + t * kSquareStride + first;
        const T* ns = m.n + t * kSquareStride + first;
        const float query = m.q_rstd[t] * widen(m.q[t * kKeyStride + d]), erased = widen(erase[i]) * key[i];
        float row_q = m.d_q[t * kFloatStride + d], row_c = m.d_c[t * kFloatStride + d];
        suffix += query * row_q + erased * row_c;
        float between = decay[i], straddling = 0;
#pragma unroll
        for (int j = i - 1; j >= 0; --j) {
          const float x_ij = widen(xs[j]), n_ij = widen(ns[j]), decayed = key[j] * between;
          row_q += x_ij * decayed, row_c += n_ij * decayed;
          of_key[j] += (x_ij * query + n_ij * erased) * between;
          straddling += key[j] * of_key[j];
          between *= decay[j];
        }
        const float own = widen(xs[i]);
        row_q += own * key[i], of_key[i] += own * query;
        m.d_q[t * kFloatStride + d] = row_q, m.d_c[t * kFloatStride + d] = row_c;
        d_g[i] = suffix + straddling;
      }
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
        const int t = first + i;
        const float later = m.d_k[t * kFloatStride + d], row_c = m.d_c[t * kFloatStride + d];
        const float total_g = prefix + d_g[i];
        prefix += key[i] * later;
        float total_q = m.d_q[t * kFloatStride + d], total_k = later + of_key[i];
        if (t < chunk.tokens) {
          const std::int64_t at = ((first_token + t) * p.gate_heads + gate_head) * K + d;
          gates.d_decay[at] = total_g, gates.d_erase[at] = key[i] * row_c;
        }
        total_k += widen(erase[i]) * row_c;
        if (gates_of_key > 1 && t < chunk.tokens) {
          const std::int64_t at = ((first_token + t) * p.key_heads + key_head) * K + d;
          if (!first_gate) total_q += pieces.d_q[at], total_k += pieces.d_k[at];
          if (!last_gate) pieces.d_q[at] = total_q, pieces.d_k[at] = total_k;
        }
        if (last_gate) m.d_q[t * kFloatStride + d] = total_q, m.d_k[t * kFloatStride + d] = total_k;
      }
    }
    __syncthreads();
  }

  // Through the norms (4.4), a row a warp and turn.
  for (int r = warp; r < 2 * kChunk; r += kThreads / 32) {
    const bool of_query = r >= kChunk;
    const int t = r % kChunk;
    if (t >= chunk.tokens) continue;
    const T* x = (of_query ? m.q : m.k) + t * kKeyStride;
    const float* d = (of_query ? m.d_q : m.d_k) + t * kFloatStride;
    const float rstd = (of_query ? m.q_rstd : m.k_rstd)[t];
    const MutableHeadView& view = of_query ? out.dq : out.dk;
    const std::int64_t at = view_offset(view, p.documents, chunk.document, chunk.begin + t, key_head);
    float along = 0;
    if (p.use_qk_l2norm) {
      for (int i = lane; i < K; i += 32) along += d[i] * rstd * widen(x[i]);
      along = warp_sum(along);
    }
    for (int i = 2 * lane; i < K; i += 64) {
      const float2 y = load_pair(x + i);
      store_pair(static_cast<T*>(view.data) + at + i, rstd * (d[i] - along * rstd * y.x), rstd * (d[i + 1] - along * rstd * y.y));
    }
  }
}

}  // namespace

void gradients_channel(const RuleProblem& p, const RuleGradients& out, const ChunkTable& table, const TensorPieces& pieces,
                       const GatePieces& gates, cudaStream_t stream) {
  with_tensor_types(p, [&](auto type, auto key, auto value) {
    using T = decltype(type);
    constexpr int K = key.value, V = value.value;
    launch("gated_delta_rule_2_gradients", &gradients<T, K, V>, table.count * p.key_heads, kThreads, Shared<T, K, V>::bytes(),
           stream, p, out, table, pieces, gates);
  });
}

}  // namespace deltron::kernels::cuda
