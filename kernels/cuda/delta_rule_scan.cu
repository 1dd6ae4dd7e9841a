// The sequential part of both delta rules on tensor cores: the state of one (document, value head, 32 value channels) walks the
// chunks of its document in registers (fp32), forward; its gradient walks back. A block is 8 warps; three barriers a chunk:
//   forward   R = w v - a (k S) | U = T R | O = b (q S) + P U, S = whole S + k^T (c U)
//   backward  dU = c (k D) + P^T dO | Z = T^T dU | D = whole D + q^T (b dO) - k^T (a Z)
// Per chunk and block at K = 128: 2.1 MFLOP forward against 54 KiB of operands; the chain of a chunk, not either of them, sets the
// time: about 1.5 us predicted, 0.2 ms for 128 chunks.
#include "kernels/cuda/delta_rule_records.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kThreads = 256, kTile = 32, kTileStride = kTile + kTilePad, kSquareStride = kChunk + kTilePad;

// One stage of operands in shared memory.
template <class T, int K, bool kScalar>
struct Stage {
  T* k;       // [64, K]: keys, or Cs
  T* k_end;   // keys again, or Ke
  T* q;       // queries, or Qs
  T* t;       // [64, 64]
  T* t_rest;  // [64, 64], backward
  T* p;       // [64, 64]
  T* d_o;     // [64, 32]
  float* factors;  // scalar: [kScanFactors, 64]; else whole [K]

  static constexpr int kKeyBytes = kChunk * (K + kTilePad) * 2, kSquareBytes = kChunk * kSquareStride * 2;
  static constexpr int kFactorBytes = kScalar ? kScanFactors * kChunk * 4 : K * 4;
  static constexpr int kTileBytes = kChunk * kTileStride * 2;
  static constexpr int bytes(bool with_q, bool with_rest, bool with_d_o) {
    return kKeyBytes * ((kScalar ? 1 : 2) + (with_q ? 1 : 0)) + kSquareBytes * (1 + (with_rest ? 1 : 0) + (with_q ? 1 : 0)) + (with_d_o ? kTileBytes : 0) +
           kFactorBytes;
  }
  __device__ Stage(char* memory, bool with_q, bool with_rest, bool with_d_o) {
    k = reinterpret_cast<T*>(memory), memory += kKeyBytes;
    k_end = k;
    if constexpr (!kScalar) k_end = reinterpret_cast<T*>(memory), memory += kKeyBytes;
    q = reinterpret_cast<T*>(memory);
    if (with_q) memory += kKeyBytes;
    t = reinterpret_cast<T*>(memory), memory += kSquareBytes;
    t_rest = reinterpret_cast<T*>(memory);
    if (with_rest) memory += kSquareBytes;
    p = reinterpret_cast<T*>(memory);
    if (with_q) memory += kSquareBytes;
    d_o = reinterpret_cast<T*>(memory);
    if (with_d_o) memory += kTileBytes;
    factors = reinterpret_cast<float*>(memory);
  }
  __device__ void load(const RuleProblem& problem, const TensorPieces& pieces, std::int64_t c, const Chunk& chunk, int head,
                       bool with_q, bool with_rest, int thread) const {
    const int gate_head = head / problem.gate_group(), key_head = head / problem.key_group();
    const std::int64_t piece = c * problem.gate_heads + gate_head;
    if constexpr (kScalar) {
      const std::int64_t k_at = view_offset(problem.k, problem.documents, chunk.document, chunk.begin, key_head);
      copy_rows<K, kThreads>(k, static_cast<const T*>(problem.k.data) + k_at, problem.k.token_stride, kChunk, chunk.tokens, thread);
      if (with_q) {
        const std::int64_t q_at = view_offset(problem.q, problem.documents, chunk.document, chunk.begin, key_head);
        copy_rows<K, kThreads>(q, static_cast<const T*>(problem.q.data) + q_at, problem.q.token_stride, kChunk, chunk.tokens, thread);
      }
      copy_flat<kThreads>(factors, pieces.factors + piece * kFactors * kChunk, kFactorBytes, thread);
    } else {
      const std::int64_t at = piece * kChunk * K;
      copy_rows<K, kThreads>(k, static_cast<const T*>(pieces.erased_start) + at, K, kChunk, kChunk, thread);
      copy_rows<K, kThreads>(k_end, static_cast<const T*>(pieces.key_end) + at, K, kChunk, kChunk, thread);
      if (with_q) copy_rows<K, kThreads>(q, static_cast<const T*>(pieces.query_start) + at, K, kChunk, kChunk, thread);
      copy_flat<kThreads>(factors, pieces.whole + piece * K, kFactorBytes, thread);
    }
    const std::int64_t square = piece * kChunk * kChunk;
    copy_rows<kChunk, kThreads>(t, static_cast<const T*>(pieces.t) + square, kChunk, kChunk, kChunk, thread);
    if (with_rest) copy_rows<kChunk, kThreads>(t_rest, static_cast<const T*>(pieces.t_rest) + square, kChunk, kChunk, kChunk, thread);
    if (with_q) copy_rows<kChunk, kThreads>(p, static_cast<const T*>(pieces.p) + square, kChunk, kChunk, kChunk, thread);
  }
  __device__ float factor(int which, int row) const { return kScalar ? factors[which * kChunk + row] : 1.0f; }
};

// The state (or its gradient) in accumulators: warp w has rows 16 (w % kRowWarps) and 16 kPairs columns.
template <class T, int K>
struct StateTile {
  static constexpr int kRowWarps = K / 16, kPairs = K == 128 ? 2 : 1;
  float c[2 * kPairs][4];
  int row, column, lane;

  __device__ StateTile(int warp, int lane_) : row(warp % kRowWarps * 16), column(warp / kRowWarps * 16 * kPairs), lane(lane_) {}
  template <class F>
  __device__ void for_pairs(const F& function) {
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        function(row + lane / 4 + 8 * half, column + 8 * n + lane % 4 * 2, c[n][2 * half], c[n][2 * half + 1]);
      }
    }
  }
  __device__ void load(const float* from, int V) {
    for_pairs([&](int i, int j, float& x, float& y) {
      x = from == nullptr ? 0.0f : from[static_cast<std::int64_t>(i) * V + j];
      y = from == nullptr ? 0.0f : from[static_cast<std::int64_t>(i) * V + j + 1];
    });
  }
  __device__ void store(float* to, int V) {
    if (to == nullptr) return;
    for_pairs([&](int i, int j, float& x, float& y) { *reinterpret_cast<float2*>(to + static_cast<std::int64_t>(i) * V + j) = make_float2(x, y); });
  }
  // As operand into shared memory, and to `kept` [K, V] unless null.
  __device__ void publish(T* tile, T* kept, int V) {
    for_pairs([&](int i, int j, float& x, float& y) {
      const std::uint32_t bits = pack_pair<T>(x, y);
      *reinterpret_cast<std::uint32_t*>(tile + i * kTileStride + j) = bits;
      if (kept != nullptr) *reinterpret_cast<std::uint32_t*>(kept + static_cast<std::int64_t>(i) * V + j) = bits;
    });
  }
  template <bool kScalar>
  __device__ void decay(const float* factors) {
    for_pairs([&](int i, int, float& x, float& y) {
      const float f = kScalar ? factors[kWhole * kChunk] : factors[i];
      x *= f, y *= f;
    });
  }
  // c += A^T B, A [64, K] and B [64, 32] by tokens.
  __device__ void add(const T* a, const T* b) {
    warp_product<true, false, kPairs>(c, a, K + kTilePad, row, b, kTileStride, column, 0, kChunk, lane);
  }
};

// Position of a warp's 16 x 16 piece of a [64, 32] tile.
template <class F>
__device__ __forceinline__ void for_piece(float (&c)[2][4], int row, int column, int lane, const F& function) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      function(row + lane / 4 + 8 * half, column + 8 * n + lane % 4 * 2, c[n][2 * half], c[n][2 * half + 1], n * 2 + half);
    }
  }
}

// w v of the pairs that a thread owns, straight from the views.
template <class T, bool kScalar>
struct ValuePairs {
  std::uint32_t v[4];
  float2 w[4];
  __device__ void load(const RuleProblem& p, const Chunk& chunk, int head, int column, int row, int lane) {
    const std::int64_t v_at = view_offset(p.v, p.documents, chunk.document, chunk.begin, head);
    const std::int64_t w_at = kScalar ? 0 : view_offset(p.write, p.documents, chunk.document, chunk.begin, head);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = row + lane / 4 + i % 2 * 8, j = column + i / 2 * 8 + lane % 4 * 2;
      v[i] = 0, w[i] = make_float2(0, 0);
      if (t >= chunk.tokens) continue;
      v[i] = *reinterpret_cast<const std::uint32_t*>(static_cast<const T*>(p.v.data) + v_at + t * p.v.token_stride + j);
      if constexpr (!kScalar) {
        const std::int64_t at = w_at + t * p.write.token_stride + j;
        w[i] = make_float2(load_element(p.write.data, p.write_dtype, at), load_element(p.write.data, p.write_dtype, at + 1));
      }
    }
  }
  __device__ float2 product(const RuleProblem& p, int i, float beta) const {
    const float2 x = unpack_pair<T>(v[i]);
    if constexpr (kScalar) return make_float2(beta * x.x, beta * x.y);
    return make_float2(activated_write(p, w[i].x) * x.x, activated_write(p, w[i].y) * x.y);
  }
};

template <class T, int K, bool kScalar, bool kKeep>
__global__ void __launch_bounds__(kThreads, 1) forward_scan(RuleProblem p, RuleOutputs out, ChunkTable table, TensorPieces pieces) {
  DELTRON_DYNAMIC_SHARED(shared);
  using Operands = Stage<T, K, kScalar>;
  constexpr int kStageBytes = Operands::bytes(!kKeep, kKeep, false);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int row = warp % 4 * 16, piece_column = warp / 4 * 16, V = p.value_dim, tiles = V / kTile;
  const std::int64_t index = blockIdx.x / tiles, document = index / p.value_heads;
  const int head = static_cast<int>(index % p.value_heads), first_column = static_cast<int>(blockIdx.x % tiles) * kTile;
  T* state_tile = reinterpret_cast<T*>(shared + 2 * kStageBytes);  // [K, 32]
  T* r_tile = state_tile + K * kTileStride;                        // [64, 32] R
  T* u_tile = r_tile + kChunk * kTileStride;                       // [64, 32] U
  T* c_tile = kScalar ? u_tile + kChunk * kTileStride : u_tile;    // [64, 32] c U
  StateTile<T, K> state(warp, lane);
  const std::int64_t state_at = index * K * V + first_column;
  state.load(p.initial_state == nullptr ? nullptr : p.initial_state + state_at, V);
  const std::int64_t first = table.document_chunk[document], last = table.document_chunk[document + 1];
  ValuePairs<T, kScalar> values;
  if (first < last) {
    const Chunk chunk = table.chunks[first];
    Operands(shared, !kKeep, kKeep, false).load(p, pieces, first, chunk, head, !kKeep, kKeep, thread);
    values.load(p, chunk, head, first_column + piece_column, row, lane);
  }
  commit_copies();
  for (std::int64_t c = first; c < last; ++c) {
    const Chunk chunk = table.chunks[c];
    const Operands now(shared + (c - first) % 2 * kStageBytes, !kKeep, kKeep, false);
    const std::int64_t piece = c * p.value_heads + head;
    state.publish(state_tile, kKeep ? static_cast<T*>(pieces.states) + piece * K * V + first_column : nullptr, V);
    wait_copies<0>();
    __syncthreads();
    if (c + 1 < last) Operands(shared + (c - first + 1) % 2 * kStageBytes, !kKeep, kKeep, false).load(p, pieces, c + 1, table.chunks[c + 1], head, !kKeep, kKeep, thread);
    commit_copies();
    float read[2][4] = {}, out_piece[2][4] = {};
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      std::uint32_t a[4], b[4];
      load_b<false>(b, state_tile, kTileStride, k, piece_column, lane);
      load_a<false>(a, now.k, K + kTilePad, row, k, lane);
      multiply_add<T>(read[0], a, b[0], b[1]);
      multiply_add<T>(read[1], a, b[2], b[3]);
      if constexpr (!kKeep) {
        load_a<false>(a, now.q, K + kTilePad, row, k, lane);
        multiply_add<T>(out_piece[0], a, b[0], b[1]);
        multiply_add<T>(out_piece[1], a, b[2], b[3]);
      }
    }
    for_piece(read, row, piece_column, lane, [&](int t, int j, float& x, float& y, int i) {
      const float a = now.factor(kReadKey, t);
      const float2 wv = values.product(p, i, now.factor(kBeta, t));
      store_pair(r_tile + t * kTileStride + j, wv.x - a * x, wv.y - a * y);
      if constexpr (kScalar && kKeep) {
        const float2 v = values.product(p, i, 1);
        const float read_undamped = now.factor(kDecayKey, t);
        store_pair(static_cast<T*>(pieces.y) + (piece * kChunk + t) * V + first_column + j, v.x - read_undamped * x, v.y - read_undamped * y);
      }
    });
    if (c + 1 < last) values.load(p, table.chunks[c + 1], head, first_column + piece_column, row, lane);
    __syncthreads();
    float u[2][4] = {};
    warp_product<false, false, 1>(u, now.t, kSquareStride, row, r_tile, kTileStride, piece_column, 0, row + 16, lane);
    if constexpr (kKeep) warp_product<false, false, 1>(u, now.t_rest, kSquareStride, row, r_tile, kTileStride, piece_column, 0, row + 16, lane);
    for_piece(u, row, piece_column, lane, [&](int t, int j, float& x, float& y, int) {
      const std::uint32_t bits = pack_pair<T>(x, y);
      *reinterpret_cast<std::uint32_t*>(u_tile + t * kTileStride + j) = bits;
      if constexpr (kKeep) *reinterpret_cast<std::uint32_t*>(static_cast<T*>(pieces.u) + (piece * kChunk + t) * V + first_column + j) = bits;
      if constexpr (kScalar) {
        const float f = now.factor(kWriteKey, t);
        store_pair(c_tile + t * kTileStride + j, f * x, f * y);
      }
    });
    __syncthreads();
    state.template decay<kScalar>(now.factors);
    state.add(now.k_end, c_tile);
    if constexpr (!kKeep) {
      for_piece(out_piece, row, piece_column, lane, [&](int t, int, float& x, float& y, int) {
        const float f = now.factor(kReadQuery, t);
        x *= f, y *= f;
      });
      warp_product<false, false, 1>(out_piece, now.p, kSquareStride, row, u_tile, kTileStride, piece_column, 0, row + 16, lane);
      const std::int64_t at = view_offset(out.o, p.documents, chunk.document, chunk.begin, head) + first_column;
      for_piece(out_piece, row, piece_column, lane, [&](int t, int j, float& x, float& y, int) {
        if (t < chunk.tokens) store_pair(static_cast<T*>(out.o.data) + at + t * out.o.token_stride + j, x, y);
      });
    }
  }
  state.store(out.final_state == nullptr ? nullptr : out.final_state + state_at, V);
}

template <class T, int K, bool kScalar>
__global__ void __launch_bounds__(kThreads, 1) backward_scan(RuleProblem p, RuleGradients out, ChunkTable table, TensorPieces pieces) {
  DELTRON_DYNAMIC_SHARED(shared);
  using Operands = Stage<T, K, kScalar>;
  constexpr int kStageBytes = Operands::bytes(true, true, true);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int row = warp % 4 * 16, piece_column = warp / 4 * 16, V = p.value_dim, tiles = V / kTile;
  const std::int64_t index = blockIdx.x / tiles, document = index / p.value_heads;
  const int head = static_cast<int>(index % p.value_heads), first_column = static_cast<int>(blockIdx.x % tiles) * kTile;
  T* state_tile = reinterpret_cast<T*>(shared + 2 * kStageBytes);  // [K, 32]
  T* u_tile = state_tile + K * kTileStride;                        // [64, 32] dU
  T* z_tile = u_tile + kChunk * kTileStride;                       // [64, 32] - a Z
  T* o_tile = z_tile + kChunk * kTileStride;                       // [64, 32] b dO, scalar
  StateTile<T, K> state(warp, lane);
  const std::int64_t state_at = index * K * V + first_column;
  state.load(out.d_final_state == nullptr ? nullptr : out.d_final_state + state_at, V);
  const std::int64_t first = table.document_chunk[document], last = table.document_chunk[document + 1];
  const auto load = [&](std::int64_t c) {
    const Operands stage(shared + (c - first) % 2 * kStageBytes, true, true, true);
    const Chunk chunk = table.chunks[c];
    stage.load(p, pieces, c, chunk, head, true, true, thread);
    const std::int64_t at = view_offset(out.d_o, p.documents, chunk.document, chunk.begin, head) + first_column;
    copy_rows<kTile, kThreads>(stage.d_o, static_cast<const T*>(out.d_o.data) + at, out.d_o.token_stride, kChunk, chunk.tokens, thread);
  };
  if (first < last) load(last - 1);
  commit_copies();
  for (std::int64_t c = last - 1; c >= first; --c) {
    const Operands now(shared + (c - first) % 2 * kStageBytes, true, true, true);
    const std::int64_t piece = c * p.value_heads + head;
    state.publish(state_tile, static_cast<T*>(pieces.d_states) + piece * K * V + first_column, V);
    wait_copies<0>();
    __syncthreads();
    if (c > first) load(c - 1);
    commit_copies();
    float u[2][4] = {};
    warp_product<false, false, 1>(u, now.k_end, K + kTilePad, row, state_tile, kTileStride, piece_column, 0, K, lane);
    if constexpr (kScalar) {
      for_piece(u, row, piece_column, lane, [&](int t, int j, float& x, float& y, int) {
        const float f = now.factor(kWriteKey, t), b = now.factor(kReadQuery, t);
        x *= f, y *= f;
        const float2 d_o = load_pair(now.d_o + t * kTileStride + j);
        store_pair(o_tile + t * kTileStride + j, b * d_o.x, b * d_o.y);
      });
    }
    warp_product<true, false, 1>(u, now.p, kSquareStride, row, now.d_o, kTileStride, piece_column, row, kChunk, lane);
    for_piece(u, row, piece_column, lane, [&](int t, int j, float& x, float& y, int) { store_pair(u_tile + t * kTileStride + j, x, y); });
    __syncthreads();
    float z[2][4] = {};
    warp_product<true, false, 1>(z, now.t, kSquareStride, row, u_tile, kTileStride, piece_column, row, kChunk, lane);
    warp_product<true, false, 1>(z, now.t_rest, kSquareStride, row, u_tile, kTileStride, piece_column, row, kChunk, lane);
    for_piece(z, row, piece_column, lane, [&](int t, int j, float& x, float& y, int) {
      store_pair(static_cast<T*>(pieces.z) + (piece * kChunk + t) * V + first_column + j, x, y);
      const float a = -now.factor(kReadKey, t);
      store_pair(z_tile + t * kTileStride + j, a * x, a * y);
    });
    __syncthreads();
    state.template decay<kScalar>(now.factors);
    state.add(now.q, kScalar ? o_tile : now.d_o);
    state.add(now.k, z_tile);
  }
  state.store(out.d_initial_state == nullptr ? nullptr : out.d_initial_state + state_at, V);
}

template <int K, bool kScalar>
std::size_t tiles_bytes(int squares) {
  return static_cast<std::size_t>(K + kChunk * squares) * kTileStride * 2;
}

}  // namespace

void scan_forward(const RuleProblem& p, const RuleOutputs& out, const ChunkTable& table, const TensorPieces& pieces, bool keep,
                  cudaStream_t stream) {
  with_tensor_types(p, [&](auto type, auto key, auto) {
    using T = decltype(type);
    constexpr int K = key.value;
    const std::int64_t blocks = p.documents.count * p.value_heads * (p.value_dim / kTile);
    const auto go = [&](auto scalar, auto kept) {
      constexpr bool kScalar = scalar.value, kKeep = kept.value;
      const std::size_t bytes = 2 * Stage<T, K, kScalar>::bytes(!kKeep, kKeep, false) + tiles_bytes<K, kScalar>(3);
      launch("delta_rule_forward_scan", &forward_scan<T, K, kScalar, kKeep>, blocks, kThreads, bytes, stream, p, out, table, pieces);
    };
    if (p.scalar_gates && keep) go(std::true_type{}, std::true_type{});
    if (p.scalar_gates && !keep) go(std::true_type{}, std::false_type{});
    if (!p.scalar_gates && keep) go(std::false_type{}, std::true_type{});
    if (!p.scalar_gates && !keep) go(std::false_type{}, std::false_type{});
  });
}

void scan_backward(const RuleProblem& p, const RuleGradients& out, const ChunkTable& table, const TensorPieces& pieces,
                   cudaStream_t stream) {
  with_tensor_types(p, [&](auto type, auto key, auto) {
    using T = decltype(type);
    constexpr int K = key.value;
    const std::int64_t blocks = p.documents.count * p.value_heads * (p.value_dim / kTile);
    const auto go = [&](auto scalar) {
      constexpr bool kScalar = scalar.value;
      const std::size_t bytes = 2 * Stage<T, K, kScalar>::bytes(true, true, true) + tiles_bytes<K, kScalar>(3);
      launch("delta_rule_backward_scan", &backward_scan<T, K, kScalar>, blocks, kThreads, bytes, stream, p, out, table, pieces);
    };
    if (p.scalar_gates) {
      go(std::true_type{});
    } else {
      go(std::false_type{});
    }
  });
}

}  // namespace deltron::kernels::cuda
