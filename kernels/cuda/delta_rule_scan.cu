// The sequential part of both delta rules on tensor cores: the state of one (document, value head, 32 value channels) walks the
// chunks of its document in registers (fp32), forward; its gradient walks back. A block is 8 warps that compute and 4 that fetch
// the operands of the next chunk meanwhile; three barriers a chunk:
//   forward   R = w v - a (k S) | U = T R | O = b (q S) + P U, S = whole S + k^T (c U)
//   backward  dU = c (k D) + P^T dO | Z = T^T dU | D = whole D + q^T (b dO) - k^T (a Z)
// Per chunk and block at K = 128: 2.1 MFLOP forward against 54 KiB of operands; the chain of a chunk, not either of them, sets the
// time: about 1.5 us predicted, 0.2 ms for 128 chunks.
#include "kernels/cuda/delta_rule_records.cuh"
#include "kernels/cuda/delta_rule_solve.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kWorkers = 256, kFetchers = 128, kThreads = kWorkers + kFetchers, kTile = 32, kTileStride = kTile + kTilePad,
              kSquareStride = kChunk + kTilePad;

// One stage of operands in shared memory.
template <class T, int K, bool kScalar>
struct Stage {
  T* k;            // [64, K]: keys, or Cs
  T* k_end;        // keys again, or Ke
  T* q;            // queries, or Qs
  T* t;            // [64, 64]
  T* t_rest;       // [64, 64], backward
  T* p;            // [64, 64]
  T* d_o;          // [64, 32]
  float* factors;  // scalar: [kScanFactors, 64]; else whole [K]

  static constexpr int kKeyBytes = kChunk * (K + kTilePad) * 2, kSquareBytes = kChunk * kSquareStride * 2;
  static constexpr int kFactorBytes = kScalar ? kScanFactors * kChunk * 4 : K * 4;
  static constexpr int kTileBytes = kChunk * kTileStride * 2;
  __host__ __device__ static constexpr int bytes(bool with_q, bool with_rest, bool with_d_o) {
    return kKeyBytes * ((kScalar ? 1 : 2) + (with_q ? 1 : 0)) + kSquareBytes * (1 + (with_rest ? 1 : 0) + (with_q ? 1 : 0)) +
           (with_d_o ? kTileBytes : 0) + kFactorBytes;
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
  // By the fetching warps: rows from `token` of the document on, records of chunk `c`.
  __device__ void load(const RuleProblem& problem, const TensorPieces& pieces, const T* keys, const T* queries, std::int64_t c,
                       int tokens, int gate_head, bool with_q, bool with_rest, int thread) const {
    const std::int64_t piece = c * problem.gate_heads + gate_head;
    if constexpr (kScalar) {
      copy_rows<K, kFetchers>(k, keys, problem.k.token_stride, kChunk, tokens, thread);
      if (with_q) copy_rows<K, kFetchers>(q, queries, problem.q.token_stride, kChunk, tokens, thread);
      copy_flat<kFetchers>(factors, pieces.factors + piece * kFactors * kChunk, kFactorBytes, thread);
    } else {
      const std::int64_t at = piece * kChunk * K;
      copy_rows<K, kFetchers>(k, static_cast<const T*>(pieces.erased_start) + at, K, kChunk, kChunk, thread);
      copy_rows<K, kFetchers>(k_end, static_cast<const T*>(pieces.key_end) + at, K, kChunk, kChunk, thread);
      if (with_q) copy_rows<K, kFetchers>(q, static_cast<const T*>(pieces.query_start) + at, K, kChunk, kChunk, thread);
      copy_flat<kFetchers>(factors, pieces.whole + piece * K, kFactorBytes, thread);
    }
    const std::int64_t square = piece * kChunk * kChunk;
    copy_rows<kChunk, kFetchers>(t, static_cast<const T*>(pieces.t) + square, kChunk, kChunk, kChunk, thread);
    if (with_rest)
      copy_rows<kChunk, kFetchers>(t_rest, static_cast<const T*>(pieces.t_rest) + square, kChunk, kChunk, kChunk, thread);
    if (with_q) copy_rows<kChunk, kFetchers>(p, static_cast<const T*>(pieces.p) + square, kChunk, kChunk, kChunk, thread);
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
    for_pairs([&](int i, int j, float& x, float& y) {
      *reinterpret_cast<float2*>(to + static_cast<std::int64_t>(i) * V + j) = make_float2(x, y);
    });
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

// A pair as rounded, and what the rounding left in `rest` unless null.
template <class T>
__device__ __forceinline__ void store_split(T* tile, T* rest, int at, float x, float y) {
  const std::uint32_t bits = pack_pair<T>(x, y);
  *reinterpret_cast<std::uint32_t*>(tile + at) = bits;
  if (rest == nullptr) return;
  const float2 rounded = unpack_pair<T>(bits);
  store_pair(rest + at, x - rounded.x, y - rounded.y);
}

// w v of the pairs that a thread owns, straight from the views.
template <class T, bool kScalar>
struct ValuePairs {
  std::uint32_t v[4];
  RawPair w[4];
  // `v_at`, `w_at`: offsets of the chunk's first row at this thread's first column.
  __device__ void load(const RuleProblem& p, std::int64_t v_at, std::int64_t w_at, int tokens, int first_row) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = first_row + i % 2 * 8, j = i / 2 * 8;
      v[i] = t < tokens ? *reinterpret_cast<const std::uint32_t*>(static_cast<const T*>(p.v.data) + v_at + t * p.v.token_stride + j)
                        : 0;
    }
    if constexpr (kScalar) return;
    const bool wide = p.write_dtype == DType::F32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = first_row + i % 2 * 8, j = i / 2 * 8;
      w[i].bits = make_uint2(0, 0);
      if (t < tokens) w[i].load(p.write.data, wide, w_at + t * p.write.token_stride + j);
    }
  }
  __device__ float2 product(const RuleProblem& p, int i, float beta) const {
    const float2 x = unpack_pair<T>(v[i]);
    if constexpr (kScalar) return make_float2(beta * x.x, beta * x.y);
    const float2 y = w[i].value(p.write_dtype);
    return make_float2(activated_write(p, y.x) * x.x, activated_write(p, y.y) * x.y);
  }
};

// c += A B over all 64 tokens, A [64, 64] by rows (kTransposedA: its transpose), B [64, 32]; with the parts that rounding took from
// A and B where they are given. Chains are short: the three products sum apart.
template <bool kTransposedA, bool kSplit, class T>
__device__ __forceinline__ void square_product(float (&c)[2][4], const T* a_tile, const T* a_rest, const T* b_tile, const T* b_rest,
                                               int row, int column, int lane) {
  float more[2][4] = {}, most[2][4] = {};
#pragma unroll
  for (int k = 0; k < kChunk; k += 16) {
    std::uint32_t a[4], b[4];
    load_a<kTransposedA>(a, a_tile, kSquareStride, row, k, lane);
    load_b<false>(b, b_tile, kTileStride, k, column, lane);
    multiply_add<T>(c[0], a, b[0], b[1]);
    multiply_add<T>(c[1], a, b[2], b[3]);
    if constexpr (kSplit) {
      std::uint32_t a2[4], b2[4];
      load_a<kTransposedA>(a2, a_rest, kSquareStride, row, k, lane);
      load_b<false>(b2, b_rest, kTileStride, k, column, lane);
      multiply_add<T>(more[0], a2, b[0], b[1]);
      multiply_add<T>(more[1], a2, b[2], b[3]);
      multiply_add<T>(most[0], a, b2[0], b2[1]);
      multiply_add<T>(most[1], a, b2[2], b2[3]);
    }
  }
  if constexpr (kSplit) {
#pragma unroll
    for (int i = 0; i < 8; ++i) c[i / 4][i % 4] += more[i / 4][i % 4] + most[i / 4][i % 4];
  }
}

// Which piece of the problem a block has.
struct Place {
  std::int64_t index, document, first, length;
  int head, key_head, gate_head, first_column, chunks;
  __device__ Place(const RuleProblem& p, const ChunkTable& table) {
    const int tiles = p.value_dim / kTile;
    index = blockIdx.x / tiles, document = index / p.value_heads;
    head = static_cast<int>(index % p.value_heads), first_column = static_cast<int>(blockIdx.x % tiles) * kTile;
    key_head = head / p.key_group(), gate_head = head / p.gate_group();
    first = table.document_chunk[document];
    length = p.documents.cu_seqlens[document + 1] - p.documents.cu_seqlens[document];
    chunks = static_cast<int>((length + kChunk - 1) / kChunk);
  }
  __device__ int tokens(int i) const {
    return static_cast<int>(length - static_cast<std::int64_t>(i) * kChunk < kChunk ? length - static_cast<std::int64_t>(i) * kChunk
                                                                                    : kChunk);
  }
  template <class View>
  __device__ std::int64_t offset(const RuleProblem& p, const View& view, int of_head) const {
    return view_offset(view, p.documents, document, 0, of_head);
  }
};

template <class T, int K, bool kScalar, bool kKeep>
__global__ void __launch_bounds__(kThreads, 1) forward_scan(RuleProblem p, RuleOutputs out, ChunkTable table, TensorPieces pieces) {
  DELTRON_DYNAMIC_SHARED(shared);
  using Operands = Stage<T, K, kScalar>;
  constexpr int kStageBytes = Operands::bytes(!kKeep, kKeep, false);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, V = p.value_dim;
  const Place place(p, table);
  if (thread >= kWorkers) {
    const T* keys = static_cast<const T*>(p.k.data) + place.offset(p, p.k, place.key_head);
    const T* queries = static_cast<const T*>(p.q.data) + place.offset(p, p.q, place.key_head);
    for (int i = -1; i < place.chunks; ++i) {
      if (i >= 0) {
        wait_copies<0>();
        __syncthreads();
      }
      if (i + 1 < place.chunks) {
        const std::int64_t row = static_cast<std::int64_t>(i + 1) * kChunk;
        Operands(shared + (i + 1) % 2 * kStageBytes, !kKeep, kKeep, false)
            .load(p, pieces, keys + row * p.k.token_stride, queries + row * p.q.token_stride, place.first + i + 1,
                  place.tokens(i + 1), place.gate_head, !kKeep, kKeep, thread - kWorkers);
      }
      commit_copies();
      if (i < 0) continue;
      __syncthreads();
      __syncthreads();
    }
    return;
  }
  const int row = warp % 4 * 16, piece_column = warp / 4 * 16, own_row = row + lane / 4;
  T* state_tile = reinterpret_cast<T*>(shared + 2 * kStageBytes);  // [K, 32]
  T* r_tile = state_tile + K * kTileStride;                        // [64, 32] R
  T* u_tile = r_tile + kChunk * kTileStride;                       // [64, 32] U
  T* c_tile = kScalar ? u_tile + kChunk * kTileStride : u_tile;    // [64, 32] c U
  T* r_rest = u_tile + 2 * kChunk * kTileStride;                   // [64, 32] R - its rounding, where U is kept
  StateTile<T, K> state(warp, lane);
  const std::int64_t state_at = place.index * K * V + place.first_column;
  state.load(p.initial_state == nullptr ? nullptr : p.initial_state + state_at, V);
  const int own_column = place.first_column + piece_column + lane % 4 * 2;
  const std::int64_t v_at = place.offset(p, p.v, place.head) + own_column,
                     w_at = kScalar ? 0 : place.offset(p, p.write, place.head) + own_column;
  T* o = kKeep ? nullptr : static_cast<T*>(out.o.data) + place.offset(p, out.o, place.head) + place.first_column;
  ValuePairs<T, kScalar> values;
  if (place.chunks > 0) values.load(p, v_at, w_at, place.tokens(0), own_row);
  for (int i = 0; i < place.chunks; ++i) {
    const Operands now(shared + i % 2 * kStageBytes, !kKeep, kKeep, false);
    const std::int64_t piece = (place.first + i) * p.value_heads + place.head;
    state.publish(state_tile, kKeep ? static_cast<T*>(pieces.states) + piece * K * V + place.first_column : nullptr, V);
    __syncthreads();
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
    for_piece(read, row, piece_column, lane, [&](int t, int j, float& x, float& y, int at) {
      const float a = now.factor(kReadKey, t);
      const float2 wv = values.product(p, at, now.factor(kBeta, t));
      store_split(r_tile, kKeep ? r_rest : nullptr, t * kTileStride + j, wv.x - a * x, wv.y - a * y);
      if constexpr (kScalar && kKeep) {
        const float2 v = values.product(p, at, 1);
        const float undamped = now.factor(kDecayKey, t);
        store_pair(static_cast<T*>(pieces.y) + (piece * kChunk + t) * V + place.first_column + j, v.x - undamped * x,
                   v.y - undamped * y);
      }
    });
    if (i + 1 < place.chunks) {
      const std::int64_t next = static_cast<std::int64_t>(i + 1) * kChunk;
      values.load(p, v_at + next * p.v.token_stride, w_at + next * p.write.token_stride, place.tokens(i + 1), own_row);
    }
    __syncthreads();
    float u[2][4] = {};
    square_product<false, kKeep>(u, now.t, now.t_rest, r_tile, r_rest, row, piece_column, lane);
    for_piece(u, row, piece_column, lane, [&](int t, int j, float& x, float& y, int) {
      const std::uint32_t bits = pack_pair<T>(x, y);
      *reinterpret_cast<std::uint32_t*>(u_tile + t * kTileStride + j) = bits;
      if constexpr (kKeep)
        *reinterpret_cast<std::uint32_t*>(static_cast<T*>(pieces.u) + (piece * kChunk + t) * V + place.first_column + j) = bits;
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
      square_product<false, false>(out_piece, now.p, now.p, u_tile, u_tile, row, piece_column, lane);
      const int tokens = place.tokens(i);
      T* o_rows = o + static_cast<std::int64_t>(i) * kChunk * out.o.token_stride;
      for_piece(out_piece, row, piece_column, lane, [&](int t, int j, float& x, float& y, int) {
        if (t < tokens) store_pair(o_rows + t * out.o.token_stride + j, x, y);
      });
    }
  }
  state.store(out.final_state == nullptr ? nullptr : out.final_state + state_at, V);
}

template <class T, int K, bool kScalar>
__global__ void __launch_bounds__(kThreads, 1)
    backward_scan(RuleProblem p, RuleGradients out, ChunkTable table, TensorPieces pieces) {
  DELTRON_DYNAMIC_SHARED(shared);
  using Operands = Stage<T, K, kScalar>;
  constexpr int kStageBytes = Operands::bytes(true, true, true);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, V = p.value_dim;
  const Place place(p, table);
  if (thread >= kWorkers) {
    const T* keys = static_cast<const T*>(p.k.data) + place.offset(p, p.k, place.key_head);
    const T* queries = static_cast<const T*>(p.q.data) + place.offset(p, p.q, place.key_head);
    const T* d_o = static_cast<const T*>(out.d_o.data) + place.offset(p, out.d_o, place.head) + place.first_column;
    for (int i = place.chunks; i >= 0; --i) {
      if (i < place.chunks) {
        wait_copies<0>();
        __syncthreads();
      }
      if (i > 0) {
        const std::int64_t row = static_cast<std::int64_t>(i - 1) * kChunk;
        const Operands stage(shared + (i - 1) % 2 * kStageBytes, true, true, true);
        stage.load(p, pieces, keys + row * p.k.token_stride, queries + row * p.q.token_stride, place.first + i - 1,
                   place.tokens(i - 1), place.gate_head, true, true, thread - kWorkers);
        copy_rows<kTile, kFetchers>(stage.d_o, d_o + row * out.d_o.token_stride, out.d_o.token_stride, kChunk, place.tokens(i - 1),
                                    thread - kWorkers);
      }
      commit_copies();
      if (i == place.chunks) continue;
      __syncthreads();
      __syncthreads();
    }
    return;
  }
  const int row = warp % 4 * 16, piece_column = warp / 4 * 16;
  T* state_tile = reinterpret_cast<T*>(shared + 2 * kStageBytes);  // [K, 32]
  T* u_tile = state_tile + K * kTileStride;                        // [64, 32] dU
  T* z_tile = u_tile + kChunk * kTileStride;                       // [64, 32] - a Z
  T* o_tile = z_tile + kChunk * kTileStride;                       // [64, 32] b dO, scalar
  T* u_rest = o_tile + kChunk * kTileStride;                       // [64, 32] dU - its rounding
  StateTile<T, K> state(warp, lane);
  const std::int64_t state_at = place.index * K * V + place.first_column;
  state.load(out.d_final_state == nullptr ? nullptr : out.d_final_state + state_at, V);
  for (int i = place.chunks - 1; i >= 0; --i) {
    const Operands now(shared + i % 2 * kStageBytes, true, true, true);
    const std::int64_t piece = (place.first + i) * p.value_heads + place.head;
    state.publish(state_tile, static_cast<T*>(pieces.d_states) + piece * K * V + place.first_column, V);
    __syncthreads();
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
    square_product<true, false>(u, now.p, now.p, now.d_o, now.d_o, row, piece_column, lane);
    for_piece(u, row, piece_column, lane,
              [&](int t, int j, float& x, float& y, int) { store_split(u_tile, u_rest, t * kTileStride + j, x, y); });
    __syncthreads();
    float z[2][4] = {};
    square_product<true, true>(z, now.t, now.t_rest, u_tile, u_rest, row, piece_column, lane);
    for_piece(z, row, piece_column, lane, [&](int t, int j, float& x, float& y, int) {
      store_pair(static_cast<T*>(pieces.z) + (piece * kChunk + t) * V + place.first_column + j, x, y);
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
      const std::size_t bytes = 2 * Stage<T, K, kScalar>::bytes(!kKeep, kKeep, false) + tiles_bytes<K, kScalar>(4);
      launch("delta_rule_forward_scan", &forward_scan<T, K, kScalar, kKeep>, blocks, kThreads, bytes, stream, p, out, table,
             pieces);
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
      const std::size_t bytes = 2 * Stage<T, K, kScalar>::bytes(true, true, true) + tiles_bytes<K, kScalar>(4);
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
