// Tensor-core path of the gated delta rule, first step, parallel over (chunk, key head): K K^T and Q K^T once, then for every value
// head of the group the gates' factors, T = (I + M)^-1 by substitution in fp32 (docs/gdn.md 6.1) and P.
// At T 8192, Hk 16, Hv 32, D 128: 67 MB in, 77 MB out, 34 us by bytes; the substitution is 2016 FMA and 528 shared loads a thread.
#include "kernels/cuda/delta_rule_records.cuh"
#include "kernels/cuda/delta_rule_solve.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// Gates of one value head by one warp, two tokens a lane; gamma in fp64, kept as a pair of floats.
__device__ void make_factors(const RuleProblem& p, const Chunk& chunk, int head, const float* q_rstd, const float* k_rstd, float* f,
                             int lane) {
  double g[2];
  float beta[2];
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    g[i] = 0, beta[i] = 0;
    if (t >= chunk.tokens) continue;
    const std::int64_t decay_at = view_offset(p.decay, p.documents, chunk.document, chunk.begin + t, head);
    const std::int64_t beta_at = view_offset(p.erase, p.documents, chunk.document, chunk.begin + t, head);
    g[i] = static_cast<double>(activated_decay(p, load_element(p.decay.data, p.decay_dtype, decay_at), head, 0));
    beta[i] = activated_erase(p, load_element(p.erase.data, p.erase_dtype, beta_at));
  }
  double sum = g[0] + g[1];
  for (int offset = 1; offset < 32; offset *= 2) {
    const double other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += other;
  }
  const double last = __shfl_sync(0xffffffffu, sum, 31);  // tokens past the end have g = 0
  const float whole = expf(static_cast<float>(last));
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    const double gamma = i == 1 ? sum : sum - g[1];
    const float start = expf(static_cast<float>(gamma)), end = expf(static_cast<float>(last - gamma));
    const float high = static_cast<float>(gamma);
    f[kReadKey * kChunk + t] = beta[i] * start * k_rstd[t], f[kReadQuery * kChunk + t] = p.scale * start * q_rstd[t];
    f[kWriteKey * kChunk + t] = end * k_rstd[t], f[kBeta * kChunk + t] = beta[i], f[kWhole * kChunk + t] = whole;
    f[kDecayKey * kChunk + t] = start * k_rstd[t];
    f[kGammaHigh * kChunk + t] = high, f[kGammaLow * kChunk + t] = static_cast<float>(gamma - static_cast<double>(high));
    f[kQueryRstd * kChunk + t] = q_rstd[t], f[kKeyRstd * kChunk + t] = k_rstd[t];
  }
}

template <class T, int K>
__host__ __device__ constexpr std::size_t tile_bytes() {
  constexpr std::size_t tiles = 2 * kChunk * (K + kTilePad) * sizeof(T), squares = 2 * kChunk * kMStride * 4;
  return tiles > squares ? tiles : squares;
}

template <class T, int K>
__global__ void __launch_bounds__(kThreads, 4) prepare(RuleProblem p, T* t_inverse, ChunkTable table, TensorPieces pieces) {
  DELTRON_DYNAMIC_SHARED(shared);
  constexpr int kStride = K + kTilePad;
  T* k_tile = reinterpret_cast<T*>(shared);
  T* q_tile = k_tile + kChunk * kStride;
  float* m = reinterpret_cast<float*>(shared);  // [2][64, kMStride], over the tiles once these are used up
  float* factors = reinterpret_cast<float*>(shared + tile_bytes<T, K>());  // [2][kFactors, 64]
  float* q_rstd = factors + 2 * kFactors * kChunk;
  float* k_rstd = q_rstd + kChunk;
  float* scratch = k_rstd + kChunk;  // [2][32, kScratchStride]
  const std::int64_t c = blockIdx.x / p.key_heads;
  const int key_head = static_cast<int>(blockIdx.x % p.key_heads), thread = static_cast<int>(threadIdx.x), warp = thread / 32,
            lane = thread % 32;
  const Chunk chunk = table.chunks[c];
  const std::int64_t k_at = view_offset(p.k, p.documents, chunk.document, chunk.begin, key_head);
  const std::int64_t q_at = view_offset(p.q, p.documents, chunk.document, chunk.begin, key_head);
  const int group = p.key_group(), row = warp * 16;
  for (int base = 0; base < group; base += 2) {
    const int count = group - base < 2 ? 1 : 2;
    __syncthreads();  // M of the last pair of heads is no longer read
    copy_rows<K, kThreads>(k_tile, static_cast<const T*>(p.k.data) + k_at, p.k.token_stride, kChunk, chunk.tokens, thread);
    copy_rows<K, kThreads>(q_tile, static_cast<const T*>(p.q.data) + q_at, p.q.token_stride, kChunk, chunk.tokens, thread);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    if (base == 0) {
      const T* source = (thread < kChunk ? k_tile : q_tile) + thread % kChunk * kStride;
      float sum = 0;
      if (p.use_qk_l2norm) {
#pragma unroll 4
        for (int i = 0; i < K; i += 8) {
          const uint4 bits = *reinterpret_cast<const uint4*>(source + i);
          const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            const float2 x = unpack_pair<T>(words[w]);
            sum += x.x * x.x + x.y * x.y;
          }
        }
      }
      (thread < kChunk ? k_rstd : q_rstd)[thread % kChunk] = p.use_qk_l2norm ? rsqrtf(sum + kQkNormEpsilon) : 1.0f;
    }
    float kk[8][4] = {}, qk[8][4] = {};  // 16 rows of the warp; pieces right of the diagonal stay zero
#pragma unroll 2
    for (int k = 0; k < K; k += 16) {
      std::uint32_t a[4], a2[4], b[4];
      load_a<false>(a, k_tile, kStride, row, k, lane);
      load_a<false>(a2, q_tile, kStride, row, k, lane);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        if (pair > warp) continue;
        load_b<true>(b, k_tile, kStride, k, 16 * pair, lane);
        multiply_add<T>(kk[2 * pair], a, b[0], b[1]), multiply_add<T>(kk[2 * pair + 1], a, b[2], b[3]);
        multiply_add<T>(qk[2 * pair], a2, b[0], b[1]), multiply_add<T>(qk[2 * pair + 1], a2, b[2], b[3]);
      }
    }
    __syncthreads();  // norms are there, tiles are used up
    if (warp < count)
      make_factors(p, chunk, key_head * group + base + warp, q_rstd, k_rstd, factors + warp * kFactors * kChunk, lane);
    __syncthreads();
    for (int which = 0; which < count; ++which) {
      const std::int64_t piece = c * p.value_heads + key_head * group + base + which;
      const float* f = factors + which * kFactors * kChunk;
      T* p_out = static_cast<T*>(pieces.p) + piece * kChunk * kChunk;
      for (int i = thread; i < kFactors * kChunk; i += kThreads) pieces.factors[piece * kFactors * kChunk + i] = f[i];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row + lane / 4 + 8 * half;
        const float high = f[kGammaHigh * kChunk + i], low = f[kGammaLow * kChunk + i];
        const float of_key = f[kBeta * kChunk + i] * k_rstd[i], of_query = p.scale * q_rstd[i];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          float m_pair[2], p_pair[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int j = 8 * n + lane % 4 * 2 + e;
            const float exponent = j > i ? 0.0f : (high - f[kGammaHigh * kChunk + j]) + (low - f[kGammaLow * kChunk + j]);
            const float decay = j > i ? 0.0f : __expf(exponent) * k_rstd[j];
            m_pair[e] = j < i ? of_key * decay * kk[n][2 * half + e] : 0.0f;
            p_pair[e] = of_query * decay * qk[n][2 * half + e];
          }
          *reinterpret_cast<float2*>(m + (which * kChunk + i) * kMStride + 8 * n + lane % 4 * 2) =
              make_float2(m_pair[0], m_pair[1]);
          store_pair(p_out + i * kChunk + 8 * n + lane % 4 * 2, p_pair[0], p_pair[1]);
        }
      }
    }
    __syncthreads();
    invert_unit_lower<2, kThreads>(m, scratch, thread);  // of a single last head the second matrix is left over, and not read
    for (int i = thread; i < count * kChunk * kChunk / 2; i += kThreads) {
      const int which = i / (kChunk * kChunk / 2), r = i / (kChunk / 2) % kChunk, j = i % (kChunk / 2) * 2,
                head = key_head * group + base + which;
      float2 x = *reinterpret_cast<const float2*>(m + (which * kChunk + r) * kMStride + j);
      if (j > r) x.x = 0;
      if (j + 1 > r) x.y = 0;
      const std::int64_t at = (c * p.value_heads + head) * kChunk * kChunk + r * kChunk + j;
      const std::uint32_t bits = pack_pair<T>(x.x, x.y);
      *reinterpret_cast<std::uint32_t*>(static_cast<T*>(pieces.t) + at) = bits;
      if (pieces.t_rest != nullptr) {
        const float2 rounded = unpack_pair<T>(bits);
        store_pair(static_cast<T*>(pieces.t_rest) + at, x.x - rounded.x, x.y - rounded.y);
      }
      if (t_inverse != nullptr && r < chunk.tokens) {
        const std::int64_t row_of_token = p.documents.cu_seqlens[chunk.document] + chunk.begin + r;
        *reinterpret_cast<std::uint32_t*>(t_inverse + (row_of_token * p.value_heads + head) * kChunk + j) = bits;
      }
    }
  }
}

}  // namespace

void prepare_scalar(const RuleProblem& p, void* t_inverse, const ChunkTable& table, const TensorPieces& pieces,
                    cudaStream_t stream) {
  with_tensor_types(p, [&](auto type, auto key, auto) {
    using T = decltype(type);
    constexpr int K = key.value;
    const std::size_t bytes = tile_bytes<T, K>() + 4 * (2 * kFactors * kChunk + 2 * kChunk + 2 * 32 * kScratchStride);
    launch("gated_delta_rule_prepare", &prepare<T, K>, table.count * p.key_heads, kThreads, bytes, stream, p,
           static_cast<T*>(t_inverse), table, pieces);
  });
}

}  // namespace deltron::kernels::cuda
