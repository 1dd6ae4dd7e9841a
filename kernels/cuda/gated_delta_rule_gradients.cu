// Tensor-core path of the gated delta rule, last step of backward, parallel over (chunk, key head): from S, D', U and Z of the
// scans all gradients of the chunk, docs/gdn.md (7.3)-(7.8) and (7.10), summed over the value heads of the group in rising order.
// Rows of q and k are used as given; norms enter as factors of rows: with x' = r x, r_q dq' and r_k dk' are summed.
// At T 8192, Hk 16, Hv 32, D 128: about 620 MB, 0.15 ms by bytes; 70 GFLOP.
#include "kernels/cuda/delta_rule_records.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kThreads = 512, kParts = 4, kSquareStride = kChunk + kTilePad, kPairStride = kChunk + 1;
constexpr float kSmallBeta = 1.0f / 64;

enum Sum : int { kReads, kWrites, kBetaSum, kBetaPairs, kAlong, kSums };

template <class T, int K, int V>
struct Shared {
  static constexpr int kKeyStride = K + kTilePad, kValueStride = V + kTilePad;
  T *q, *k;        // [64, K]
  T *u, *d_o, *z;  // [64, V]
  T *s, *d_s;      // [K, V]
  T *x, *n;        // [64, 64]
  float* pairs;    // [64, 65]
  float* factors;  // [kFactors, 64]
  float* sums;     // [kParts, kSums, 64]: by part of the columns
  float* carried;  // [warps]

  static constexpr std::size_t bytes() {
    return 2 * (2 * kChunk * kKeyStride + 3 * kChunk * kValueStride + 2 * K * kValueStride + 2 * kChunk * kSquareStride) +
           4 * (kChunk * kPairStride + kFactors * kChunk + kParts * kSums * kChunk + kThreads / 32);
  }
  __device__ explicit Shared(char* memory) {
    T* next = reinterpret_cast<T*>(memory);
    q = next, next += kChunk * kKeyStride;
    k = next, next += kChunk * kKeyStride;
    u = next, next += kChunk * kValueStride;
    d_o = next, next += kChunk * kValueStride;
    z = next, next += kChunk * kValueStride;
    s = next, next += K * kValueStride;
    d_s = next, next += K * kValueStride;
    x = next, next += kChunk * kSquareStride;
    n = next, next += kChunk * kSquareStride;
    factors = reinterpret_cast<float*>(next);
    sums = factors + kFactors * kChunk;
    carried = sums + kParts * kSums * kChunk;
    pairs = carried + kThreads / 32;
  }
};

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// temp = factor_row * temp; per row the dot with the tile's row (columns of this warp), given to lanes 0 of quads by `out(row,
// dot)`.
template <int kPieces, class T, class Scale, class Out>
__device__ __forceinline__ void scale_and_dot(float (&temp)[kPieces][4], const T* tile, int stride, int row, int column, int lane,
                                              const Scale& scale, const Out& out) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = row + lane / 4 + 8 * half;
    const float f = scale(i);
    float dot = 0;
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      const float2 y = load_pair(tile + i * stride + column + 8 * n + lane % 4 * 2);
      temp[n][2 * half] *= f, temp[n][2 * half + 1] *= f;
      dot += temp[n][2 * half] * y.x + temp[n][2 * half + 1] * y.y;
    }
    dot = quad_sum(dot);
    if (lane % 4 == 0) out(i, dot);
  }
}

template <class T, int K, int V>
__global__ void __launch_bounds__(kThreads, 1)
    gradients(RuleProblem p, RuleGradients out, ChunkTable table, TensorPieces pieces, GatePieces gates) {
  DELTRON_DYNAMIC_SHARED(memory);
  using Tiles = Shared<T, K, V>;
  const Tiles m(memory);
  constexpr int kKeyStride = Tiles::kKeyStride, kValueStride = Tiles::kValueStride, kPieces = K / 8 / kParts;
  const std::int64_t c = blockIdx.x / p.key_heads;
  const int key_head = static_cast<int>(blockIdx.x % p.key_heads), thread = static_cast<int>(threadIdx.x), warp = thread / 32,
            lane = thread % 32;
  const int row = warp % 4 * 16, columns_part = warp / 4, column = columns_part * (K / kParts),
            pair_column = columns_part * (kChunk / kParts);
  const Chunk chunk = table.chunks[c];
  const std::int64_t first_token = p.documents.cu_seqlens[chunk.document] + chunk.begin;
  const std::int64_t k_at = view_offset(p.k, p.documents, chunk.document, chunk.begin, key_head);
  const std::int64_t q_at = view_offset(p.q, p.documents, chunk.document, chunk.begin, key_head);
  copy_rows<K, kThreads>(m.k, static_cast<const T*>(p.k.data) + k_at, p.k.token_stride, kChunk, chunk.tokens, thread);
  copy_rows<K, kThreads>(m.q, static_cast<const T*>(p.q.data) + q_at, p.q.token_stride, kChunk, chunk.tokens, thread);
  float d_q[kPieces][4] = {}, d_k[kPieces][4] = {}, kk[2][4] = {}, qk[2][4] = {};
  const auto sum_of = [&](int which, int part) { return m.sums + (part * kSums + which) * kChunk; };
  const auto over_parts = [&](int which, int i) {
    float sum = 0;
    for (int part = 0; part < kParts; ++part) sum += sum_of(which, part)[i];
    return sum;
  };

  for (int head = key_head * p.key_group(); head < (key_head + 1) * p.key_group(); ++head) {
    const bool first = head == key_head * p.key_group();
    const std::int64_t piece = c * p.value_heads + head;
    const std::int64_t d_o_at = view_offset(out.d_o, p.documents, chunk.document, chunk.begin, head);
    copy_flat<kThreads>(m.factors, pieces.factors + piece * kFactors * kChunk, kFactors * kChunk * 4, thread);
    copy_rows<V, kThreads>(m.u, static_cast<const T*>(pieces.u) + piece * kChunk * V, V, kChunk, kChunk, thread);
    copy_rows<V, kThreads>(m.d_o, static_cast<const T*>(out.d_o.data) + d_o_at, out.d_o.token_stride, kChunk, chunk.tokens, thread);
    copy_rows<V, kThreads>(m.z, static_cast<const T*>(pieces.z) + piece * kChunk * V, V, kChunk, kChunk, thread);
    commit_copies();
    copy_rows<V, kThreads>(m.s, static_cast<const T*>(pieces.states) + piece * K * V, V, K, K, thread);
    commit_copies();
    copy_rows<V, kThreads>(m.d_s, static_cast<const T*>(pieces.d_states) + piece * K * V, V, K, K, thread);
    commit_copies();
    wait_copies<2>();
    __syncthreads();
    const auto factor = [&](int which, int i) { return m.factors[which * kChunk + i]; };

    // Pairs: X = s Gamma (dO U^T), N = -beta Gamma (Z U^T), times the norms of both rows; their products with Q K^T and K K^T.
    const bool lower = pair_column <= row + 15;
    if (first && lower) {
      warp_product<false, true, 1>(kk, m.k, kKeyStride, row, m.k, kKeyStride, pair_column, 0, K, lane);
      warp_product<false, true, 1>(qk, m.q, kKeyStride, row, m.k, kKeyStride, pair_column, 0, K, lane);
    }
    {
      float x[2][4] = {}, n[2][4] = {};
      if (lower) {
        warp_product<false, true, 1>(x, m.d_o, kValueStride, row, m.u, kValueStride, pair_column, 0, V, lane);
        warp_product<false, true, 1>(n, m.z, kValueStride, row, m.u, kValueStride, pair_column, 0, V, lane);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + lane / 4 + 8 * half;
        const float high = factor(kGammaHigh, i), low = factor(kGammaLow, i), beta = factor(kBeta, i);
        const float of_query = p.scale * factor(kQueryRstd, i), of_key = factor(kKeyRstd, i);
        float beta_sum = 0;
#pragma unroll
        for (int piece8 = 0; piece8 < 2; ++piece8) {
          const int j0 = pair_column + 8 * piece8 + lane % 4 * 2;
          float xs[2], ns[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int j = j0 + e, at = 2 * half + e;
            const float exponent = j > i ? 0.0f : (high - factor(kGammaHigh, j)) + (low - factor(kGammaLow, j));
            const float decay = j > i ? 0.0f : __expf(exponent) * factor(kKeyRstd, j);
            xs[e] = of_query * decay * x[piece8][at];
            const float zu = j < i ? of_key * decay * n[piece8][at] : 0.0f;
            ns[e] = -beta * zu;
            const float zu_kk = zu * kk[piece8][at];
            beta_sum += zu_kk;
            m.pairs[i * kPairStride + j] = j < i ? xs[e] * qk[piece8][at] - beta * zu_kk : 0.0f;
          }
          store_pair(m.x + i * kSquareStride + j0, xs[0], xs[1]);
          store_pair(m.n + i * kSquareStride + j0, ns[0], ns[1]);
        }
        beta_sum = quad_sum(beta_sum);
        if (lane % 4 == 0) sum_of(kBetaPairs, columns_part)[i] = beta_sum;
      }
    }
    // dV = beta Z. For dbeta_i = z_i . y_i - sum over j of Gamma_ij (Z U^T)_ij (k_i . k_j), which is z_i . u_i / beta_i: that form,
    // without a difference, where beta allows it. Eight threads a row.
    {
      const int t = thread / 8, part = thread % 8;
      const T* y_row = static_cast<const T*>(pieces.y) + (piece * kChunk + t) * V;
      const std::int64_t d_v_at = view_offset(out.dv, p.documents, chunk.document, chunk.begin + t, head);
      const float beta = factor(kBeta, t);
      const bool divide = beta > kSmallBeta;
      const T* partner = divide ? m.u + t * kValueStride : y_row;
      float sum = 0;
      if (t < chunk.tokens) {
#pragma unroll
        for (int j = part * 8; j < V; j += 64) {
          const uint4 y_bits = *reinterpret_cast<const uint4*>(partner + j);
          const uint4 z_bits = *reinterpret_cast<const uint4*>(m.z + t * kValueStride + j);
          const std::uint32_t y_words[4] = {y_bits.x, y_bits.y, y_bits.z, y_bits.w},
                              z_words[4] = {z_bits.x, z_bits.y, z_bits.z, z_bits.w};
          std::uint32_t d_v[4];
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            const float2 y = unpack_pair<T>(y_words[w]), z = unpack_pair<T>(z_words[w]);
            sum += y.x * z.x + y.y * z.y;
            d_v[w] = pack_pair<T>(beta * z.x, beta * z.y);
          }
          *reinterpret_cast<uint4*>(static_cast<T*>(out.dv.data) + d_v_at + j) = make_uint4(d_v[0], d_v[1], d_v[2], d_v[3]);
        }
      }
      sum = quad_sum(sum);
      sum += __shfl_xor_sync(0xffffffffu, sum, 4);
      if (part == 0) sum_of(kBetaSum, 0)[t] = divide ? sum / beta : sum;
    }
    wait_copies<1>();
    __syncthreads();
    // Reads of the old state: b (dO S^T) and -a (Z S^T).
    float reads[2] = {0, 0};
    {
      float temp[kPieces][4] = {};
      warp_product<false, true, kPieces / 2>(temp, m.d_o, kValueStride, row, m.s, kValueStride, column, 0, V, lane);
      scale_and_dot(
          temp, m.q, kKeyStride, row, column, lane, [&](int i) { return factor(kReadQuery, i); },
          [&](int i, float dot) { reads[(i - row) / 8] = dot; });
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) d_q[n][e] += temp[n][e];
      }
    }
    {
      float temp[kPieces][4] = {};
      warp_product<false, true, kPieces / 2>(temp, m.z, kValueStride, row, m.s, kValueStride, column, 0, V, lane);
      scale_and_dot(
          temp, m.k, kKeyStride, row, column, lane, [&](int i) { return -factor(kReadKey, i); },
          [&](int i, float dot) { reads[(i - row) / 8] += dot; });
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) d_k[n][e] += temp[n][e];
      }
    }
    if (lane % 4 == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + lane / 4 + 8 * half;
        sum_of(kReads, columns_part)[i] = reads[half];
      }
    }
    wait_copies<0>();
    __syncthreads();
    // Writes to the next state: c (U D'^T).
    {
      float temp[kPieces][4] = {};
      warp_product<false, true, kPieces / 2>(temp, m.u, kValueStride, row, m.d_s, kValueStride, column, 0, V, lane);
      scale_and_dot(
          temp, m.k, kKeyStride, row, column, lane, [&](int i) { return factor(kWriteKey, i); },
          [&](int i, float dot) { sum_of(kWrites, columns_part)[i] = dot; });
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) d_k[n][e] += temp[n][e];
      }
    }
    // Pairs.
    warp_product<false, false, kPieces / 2>(d_q, m.x, kSquareStride, row, m.k, kKeyStride, column, 0, row + 16, lane);
    warp_product<true, false, kPieces / 2>(d_k, m.x, kSquareStride, row, m.q, kKeyStride, column, row, kChunk, lane);
    warp_product<false, false, kPieces / 2>(d_k, m.n, kSquareStride, row, m.k, kKeyStride, column, 0, row + 16, lane);
    warp_product<true, false, kPieces / 2>(d_k, m.n, kSquareStride, row, m.k, kKeyStride, column, row, kChunk, lane);
    // The old state that reaches the next one: e^gamma_last <S, D'>.
    {
      float sum = 0;
      for (int at = thread * 8; at < K * V; at += kThreads * 8) {
        const int i = at / V, j = at % V;
        const uint4 s_bits = *reinterpret_cast<const uint4*>(m.s + i * kValueStride + j);
        const uint4 d_bits = *reinterpret_cast<const uint4*>(m.d_s + i * kValueStride + j);
        const std::uint32_t s_words[4] = {s_bits.x, s_bits.y, s_bits.z, s_bits.w},
                            d_words[4] = {d_bits.x, d_bits.y, d_bits.z, d_bits.w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float2 s = unpack_pair<T>(s_words[w]), d = unpack_pair<T>(d_words[w]);
          sum += s.x * d.x + s.y * d.y;
        }
      }
      sum = warp_sum(sum);
      if (lane == 0) m.carried[warp] = sum;
    }
    if (thread < kChunk) {  // pairs_ij becomes the sum over rows >= i of column j
      float sum = 0;
#pragma unroll 8
      for (int i = kChunk - 1; i >= 0; --i) {
        sum += m.pairs[i * kPairStride + thread];
        m.pairs[i * kPairStride + thread] = sum;
      }
    }
    __syncthreads();
    if (thread < chunk.tokens) {  // (7.10)
      const int t = thread;
      float straddling = 0, reads_after = 0, writes_before = 0, carried = 0;
      for (int j = 0; j < t; ++j) {
        straddling += m.pairs[t * kPairStride + j];
        writes_before += over_parts(kWrites, j);
      }
      for (int i = kChunk - 1; i >= t; --i) reads_after += over_parts(kReads, i);
      for (int w = 0; w < kThreads / 32; ++w) carried += m.carried[w];
      const std::int64_t at = (first_token + t) * p.value_heads + head;
      gates.d_decay[at] = straddling + reads_after + writes_before + factor(kWhole, t) * carried;
      gates.d_erase[at] = sum_of(kBetaSum, 0)[t] - (factor(kBeta, t) > kSmallBeta ? 0.0f : over_parts(kBetaPairs, t));
    }
    __syncthreads();  // the next head overwrites the tiles
  }

  // Through the norms (4.4): dx = dx' - r^2 x (x . dx'), with dx' = r dx^.
  const auto finish = [&](float(&d)[kPieces][4], const T* tile, const MutableHeadView& view, int which) {
    if (p.use_qk_l2norm) {
      scale_and_dot(
          d, tile, kKeyStride, row, column, lane, [](int) { return 1.0f; },
          [&](int i, float dot) { sum_of(kAlong, columns_part)[i] = dot; });
      __syncthreads();
    }
    const std::int64_t at = view_offset(view, p.documents, chunk.document, chunk.begin, key_head);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + lane / 4 + 8 * half;
      const float r = m.factors[which * kChunk + i];
      const float along = p.use_qk_l2norm ? r * r * over_parts(kAlong, i) : 0.0f;
      if (i >= chunk.tokens) continue;
#pragma unroll
      for (int n = 0; n < kPieces; ++n) {
        const int j = column + 8 * n + lane % 4 * 2;
        const float2 y = load_pair(tile + i * kKeyStride + j);
        store_pair(static_cast<T*>(view.data) + at + i * view.token_stride + j, d[n][2 * half] - along * y.x,
                   d[n][2 * half + 1] - along * y.y);
      }
    }
    __syncthreads();
  };
  finish(d_q, m.q, out.dq, kQueryRstd);
  finish(d_k, m.k, out.dk, kKeyRstd);
}

}  // namespace

void gradients_scalar(const RuleProblem& p, const RuleGradients& out, const ChunkTable& table, const TensorPieces& pieces,
                      const GatePieces& gates, cudaStream_t stream) {
  with_tensor_types(p, [&](auto type, auto key, auto value) {
    using T = decltype(type);
    constexpr int K = key.value, V = value.value;
    launch("gated_delta_rule_gradients", &gradients<T, K, V>, table.count * p.key_heads, kThreads, Shared<T, K, V>::bytes(), stream,
           p, out, table, pieces, gates);
  });
}

}  // namespace deltron::kernels::cuda
