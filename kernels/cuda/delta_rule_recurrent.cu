// Both delta rules for any head dims and types, token by token in fp32 as docs/gdn.md (12.1)-(12.7) state them: the path for sizes
// without a tensor-core kernel, and the cross-check of those that have one. A block holds the state of one (document, value head,
// tile of value channels) in shared memory; warps own rows of it, lanes columns. Nothing is summed in an order that depends on
// timing.
#include <algorithm>

#include "kernels/cuda/delta_rule_launch.h"

namespace deltron::kernels::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kMaxTile = 128, kColumns = kMaxTile / 32;
constexpr std::int64_t kOtherBytes = 32 * 1024;  // of shared memory, at most, besides states

// Value channels a block holds: as many as fit with `states` states of K rows.
int tile_of(const RuleProblem& p, int states) {
  const std::int64_t rows = (shared_memory_limit() - kOtherBytes) / (4 * static_cast<std::int64_t>(p.key_dim) * states);
  DELTRON_CHECK_GE(rows, 1, "key dim ", p.key_dim, " is too large for the delta rules on cuda");
  return static_cast<int>(std::min<std::int64_t>({rows, kMaxTile, p.value_dim}));
}
int tiles_of(const RuleProblem& p, int states) { return (p.value_dim + tile_of(p, states) - 1) / tile_of(p, states); }
std::size_t shared_bytes_of(const RuleProblem& p, int states) {
  const std::size_t K = static_cast<std::size_t>(p.key_dim), tile = static_cast<std::size_t>(tile_of(p, states));
  return 4 * (K * tile * static_cast<std::size_t>(states) + 4 * K + (5 + kWarps) * tile);
}

// Shared memory of a block, and the steps of one token.
struct Recurrence {
  float *state, *gradient;                 // [K, tile]
  float *q, *k, *decay, *erase;            // [K] of the current token
  float *v, *write, *u, *d_o, *d_u, *red;  // [tile]; red [warps, tile]
  int K, tile, columns, first_column, warp, lane;

  __device__ Recurrence(char* shared, const RuleProblem& p, int tile_size, int tile_index, bool with_gradient) {
    K = p.key_dim, tile = tile_size, first_column = tile_index * tile_size;
    columns = p.value_dim - first_column < tile ? p.value_dim - first_column : tile;
    warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    float* next = reinterpret_cast<float*>(shared);
    state = next, next += K * tile;
    gradient = next;
    if (with_gradient) next += K * tile;
    q = next, k = q + K, decay = k + K, erase = decay + K;
    v = erase + K, write = v + tile, u = write + tile, d_o = u + tile, d_u = d_o + tile, red = d_u + tile;
  }

  // A row of keys or queries by one warp, normalised (4.3) if asked; a barrier must follow.
  __device__ void load_key(const RuleProblem& p, const HeadView& view, std::int64_t document, std::int64_t token, int head,
                           float* to) const {
    const std::int64_t at = view_offset(view, p.documents, document, token, head);
    float sum = 0;
    for (int i = lane; i < K; i += 32) {
      const float x = load_element(view.data, p.dtype, at + i);
      to[i] = x, sum += x * x;
    }
    if (!p.use_qk_l2norm) return;
    const float r = 1 / sqrtf(warp_sum(sum) + kQkNormEpsilon);
    for (int i = lane; i < K; i += 32) to[i] *= r;
  }
  __device__ void load_token(const RuleProblem& p, std::int64_t document, std::int64_t token, int head) const {
    const int gate_head = head / p.gate_group(), key_head = head / p.key_group();
    if (warp == 0) load_key(p, p.q, document, token, key_head, q);
    if (warp == 1) load_key(p, p.k, document, token, key_head, k);
    if (warp >= 2) {
      const std::int64_t decay_at = view_offset(p.decay, p.documents, document, token, gate_head);
      const std::int64_t erase_at = view_offset(p.erase, p.documents, document, token, gate_head);
      for (int i = static_cast<int>(threadIdx.x) - 64; i < K; i += kThreads - 64) {
        const int channel = p.scalar_gates ? 0 : i;
        decay[i] = expf(activated_decay(p, load_element(p.decay.data, p.decay_dtype, decay_at + channel), gate_head, channel));
        erase[i] = activated_erase(p, load_element(p.erase.data, p.erase_dtype, erase_at + channel));
      }
      const std::int64_t v_at = view_offset(p.v, p.documents, document, token, head) + first_column;
      const std::int64_t write_at = view_offset(p.write, p.documents, document, token, head) + (p.scalar_gates ? 0 : first_column);
      for (int j = static_cast<int>(threadIdx.x) - 64; j < columns; j += kThreads - 64) {
        v[j] = load_element(p.v.data, p.dtype, v_at + j);
        write[j] = activated_write(p, load_element(p.write.data, p.write_dtype, write_at + (p.scalar_gates ? 0 : j)));
      }
    }
    __syncthreads();
  }
  // to_j = first_j + factor * the sum of the warps' parts of column j; barriers on both sides.
  __device__ void sum_columns(const float (&part)[kColumns], float factor, bool minus_from_write, float* to) const {
    for (int c = 0; c < kColumns; ++c) {
      if (lane + 32 * c < columns) red[warp * tile + lane + 32 * c] = part[c];
    }
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < columns; j += kThreads) {
      float sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += red[w * tile + j];
      to[j] = minus_from_write ? write[j] * v[j] - sum : factor * sum;
    }
    __syncthreads();
  }
  // (12.1)-(12.3): the state of the next token; u of this one. o_j = scale q S where `o` is given.
  __device__ void advance(float scale, float* o) const {
    float part[kColumns] = {};
    for (int i = warp; i < K; i += kWarps) {
      const float factor = erase[i] * k[i], e = decay[i];
      for (int c = 0; c < kColumns; ++c) {
        const int j = lane + 32 * c;
        if (j < columns) part[c] += factor * (e * state[i * tile + j]);
      }
    }
    sum_columns(part, 0, true, u);
    float out[kColumns] = {};
    for (int i = warp; i < K; i += kWarps) {
      for (int c = 0; c < kColumns; ++c) {
        const int j = lane + 32 * c;
        if (j >= columns) continue;
        const float value = decay[i] * state[i * tile + j] + k[i] * u[j];
        state[i * tile + j] = value;
        out[c] += q[i] * value;
      }
    }
    if (o != nullptr) {
      sum_columns(out, scale, false, o);
    } else {
      __syncthreads();
    }
  }
  // state or gradient <-> [K, V] of the compute type; null: zero.
  __device__ void load_state(const float* from, int V, float* to) const {
    for (int i = warp; i < K; i += kWarps) {
      for (int j = lane; j < columns; j += 32) {
        to[i * tile + j] = from == nullptr ? 0.0f : from[static_cast<std::int64_t>(i) * V + first_column + j];
      }
    }
  }
  __device__ void store_state(const float* from, int V, float* to) const {
    if (to == nullptr) return;
    for (int i = warp; i < K; i += kWarps) {
      for (int j = lane; j < columns; j += 32) to[static_cast<std::int64_t>(i) * V + first_column + j] = from[i * tile + j];
    }
  }
};

template <class T>
__device__ T* state_at(T* states, std::int64_t index, const RuleProblem& p) {
  return states == nullptr ? nullptr : states + index * p.key_dim * p.value_dim;
}

__global__ void __launch_bounds__(kThreads)
    forward_kernel(RuleProblem p, RuleOutputs out, ChunkTable table, float* chunk_states, int tile, int tiles) {
  DELTRON_DYNAMIC_SHARED(shared);
  const std::int64_t item = blockIdx.x, index = item / tiles, document = index / p.value_heads;
  const int head = static_cast<int>(index % p.value_heads);
  const Recurrence r(shared, p, tile, static_cast<int>(item % tiles), false);
  r.load_state(state_at(p.initial_state, index, p), p.value_dim, r.state);
  const std::int64_t length = p.documents.cu_seqlens[document + 1] - p.documents.cu_seqlens[document];
  for (std::int64_t t = 0; t < length; ++t) {
    if (chunk_states != nullptr && t % kChunk == 0) {
      const std::int64_t piece = (table.document_chunk[document] + t / kChunk) * p.value_heads + head;
      r.store_state(r.state, p.value_dim, state_at(chunk_states, piece, p));
    }
    r.load_token(p, document, t, head);
    r.advance(p.scale, out.o.data != nullptr ? r.d_o : nullptr);
    if (out.o.data == nullptr) continue;
    const std::int64_t at = view_offset(out.o, p.documents, document, t, head) + r.first_column;
    for (int j = static_cast<int>(threadIdx.x); j < r.columns; j += kThreads) store_element(out.o.data, p.dtype, at + j, r.d_o[j]);
  }
  __syncthreads();
  r.store_state(r.state, p.value_dim, state_at(out.final_state, index, p));
}

// Blocks take items in turn: each has scratch for the states after every token of a chunk and for u.
__global__ void __launch_bounds__(kThreads)
    backward_kernel(RuleProblem p, RuleGradients out, ChunkTable table, RecurrentPieces pieces, int tile, int tiles) {
  DELTRON_DYNAMIC_SHARED(shared);
  const std::int64_t items = p.documents.count * p.value_heads * tiles;
  const int K = p.key_dim;
  float* after = pieces.scratch + static_cast<std::int64_t>(blockIdx.x) * kChunk * (K + 1) * tile;  // [64, K, tile]
  float* u_of = after + static_cast<std::int64_t>(kChunk) * K * tile;                               // [64, tile]
  for (std::int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const std::int64_t index = item / tiles, document = index / p.value_heads;
    const int head = static_cast<int>(index % p.value_heads), tile_index = static_cast<int>(item % tiles);
    const Recurrence r(shared, p, tile, tile_index, true);
    r.load_state(state_at(out.d_final_state, index, p), p.value_dim, r.gradient);
    for (std::int64_t c = table.document_chunk[document + 1] - 1; c >= table.document_chunk[document]; --c) {
      const Chunk chunk = table.chunks[c];
      const float* before = state_at(pieces.states, c * p.value_heads + head, p) + r.first_column;
      __syncthreads();
      r.load_state(state_at(pieces.states, c * p.value_heads + head, p), p.value_dim, r.state);
      for (int t = 0; t < chunk.tokens; ++t) {
        r.load_token(p, document, chunk.begin + t, head);
        r.advance(p.scale, nullptr);
        for (int i = r.warp; i < K; i += kWarps) {
          for (int j = r.lane; j < r.columns; j += 32)
            after[(static_cast<std::int64_t>(t) * K + i) * tile + j] = r.state[i * tile + j];
        }
        for (int j = static_cast<int>(threadIdx.x); j < r.columns; j += kThreads) u_of[t * tile + j] = r.u[j];
      }
      __syncthreads();
      const std::int64_t first_row = p.documents.cu_seqlens[document] + chunk.begin;
      for (int t = chunk.tokens - 1; t >= 0; --t) {
        const std::int64_t d_o_at = view_offset(out.d_o, p.documents, document, chunk.begin + t, head) + r.first_column;
        for (int j = static_cast<int>(threadIdx.x); j < r.columns; j += kThreads) {
          r.d_o[j] = load_element(out.d_o.data, p.dtype, d_o_at + j);
          r.u[j] = u_of[t * tile + j];
        }
        r.load_token(p, document, chunk.begin + t, head);  // ends with a barrier
        const std::int64_t row = ((static_cast<std::int64_t>(tile_index) * p.tokens + first_row + t) * p.value_heads + head) * K;
        const float* now = after + static_cast<std::int64_t>(t) * K * tile;
        float part[kColumns] = {};
        for (int i = r.warp; i < K; i += kWarps) {  // (12.4), first half of (12.5), (12.6)
          float d_q = 0, d_k = 0;
          for (int c2 = 0; c2 < kColumns; ++c2) {
            const int j = r.lane + 32 * c2;
            if (j >= r.columns) continue;
            const float e = r.gradient[i * tile + j] + p.scale * r.q[i] * r.d_o[j];
            r.gradient[i * tile + j] = e;
            d_q += p.scale * r.d_o[j] * now[i * tile + j];
            d_k += r.u[j] * e;
            part[c2] += r.k[i] * e;
          }
          d_q = warp_sum(d_q), d_k = warp_sum(d_k);
          if (r.lane == 0) pieces.d_q[row + i] = d_q, pieces.d_k[row + i] = d_k;
        }
        r.sum_columns(part, 1, false, r.d_u);
        for (int i = r.warp; i < K; i += kWarps) {  // rest of (12.5), (12.7)
          float d_c = 0, d_g = 0;
          const float c_i = r.erase[i] * r.k[i], e = r.decay[i];
          for (int c2 = 0; c2 < kColumns; ++c2) {
            const int j = r.lane + 32 * c2;
            if (j >= r.columns) continue;
            const float old = t > 0 ? now[i * tile + j - K * tile] : before[static_cast<std::int64_t>(i) * p.value_dim + j];
            const float decayed = e * old, d_decayed = r.gradient[i * tile + j] - c_i * r.d_u[j];
            d_c -= r.d_u[j] * decayed;
            d_g += decayed * d_decayed;
            r.gradient[i * tile + j] = e * d_decayed;
          }
          d_c = warp_sum(d_c), d_g = warp_sum(d_g);
          if (r.lane == 0) pieces.d_c[row + i] = d_c, pieces.d_g[row + i] = d_g;
        }
        const std::int64_t d_v_at = view_offset(out.dv, p.documents, document, chunk.begin + t, head) + r.first_column;
        for (int j = static_cast<int>(threadIdx.x); j < r.columns; j += kThreads) {
          store_element(out.dv.data, p.dtype, d_v_at + j, r.write[j] * r.d_u[j]);
          if (p.scalar_gates) continue;
          const float s = p.raw ? r.write[j] * (1 - r.write[j]) : 1.0f;
          const std::int64_t at = view_offset(out.d_write, p.documents, document, chunk.begin + t, head) + r.first_column;
          store_element(out.d_write.data, out.d_gate_dtype, at + j, s * r.v[j] * r.d_u[j]);
        }
        if (p.scalar_gates && r.warp == 0) {
          float sum = 0;
          for (int j = r.lane; j < r.columns; j += 32) sum += r.v[j] * r.d_u[j];
          sum = warp_sum(sum);
          if (r.lane == 0) pieces.d_w[row / K] = sum;
        }
        __syncthreads();
      }
    }
    __syncthreads();
    r.store_state(r.gradient, p.value_dim, state_at(out.d_initial_state, index, p));
    __syncthreads();
  }
}

// A warp takes one (token, key head): sums over tiles and value heads in rising order, then the gates of its gate heads and (4.4).
__global__ void __launch_bounds__(kThreads)
    finish_keys(RuleProblem p, RuleGradients out, ChunkTable table, RecurrentPieces pieces, GatePieces gates, int tiles) {
  DELTRON_DYNAMIC_SHARED(shared);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, K = p.key_dim;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (item >= table.count * kChunk * p.key_heads) return;
  const int key_head = static_cast<int>(item % p.key_heads);
  const std::int64_t slot = item / p.key_heads;
  const Chunk chunk = table.chunks[slot / kChunk];
  const int t = static_cast<int>(slot % kChunk);
  if (t >= chunk.tokens) return;
  const std::int64_t token = chunk.begin + t, row = p.documents.cu_seqlens[chunk.document] + token;
  float* x[2] = {reinterpret_cast<float*>(shared) + warp * 4 * K, nullptr};  // q, k as given
  float* d[2] = {x[0] + 2 * K, x[0] + 3 * K};
  x[1] = x[0] + K;
  const HeadView* views[2] = {&p.q, &p.k};
  float rstd[2] = {1, 1};
  for (int which = 0; which < 2; ++which) {
    const std::int64_t at = view_offset(*views[which], p.documents, chunk.document, token, key_head);
    float sum = 0;
    for (int i = lane; i < K; i += 32) {
      const float value = load_element(views[which]->data, p.dtype, at + i);
      x[which][i] = value, d[which][i] = 0, sum += value * value;
    }
    if (p.use_qk_l2norm) rstd[which] = 1 / sqrtf(warp_sum(sum) + kQkNormEpsilon);
  }
  const int group = p.gate_group(), first = key_head * p.key_group();
  for (int gate_head = first / group; gate_head < (first + p.key_group()) / group; ++gate_head) {
    const std::int64_t erase_at = view_offset(p.erase, p.documents, chunk.document, token, gate_head);
    float sum_beta = 0, sum_g = 0;
    for (int i = lane; i < K; i += 32) {
      float d_c = 0, d_g = 0;
      for (int h = gate_head * group; h < (gate_head + 1) * group; ++h) {
        for (int tile = 0; tile < tiles; ++tile) {
          const std::int64_t at = ((static_cast<std::int64_t>(tile) * p.tokens + row) * p.value_heads + h) * K + i;
          d[0][i] += pieces.d_q[at], d[1][i] += pieces.d_k[at];
          d_c += pieces.d_c[at], d_g += pieces.d_g[at];
        }
      }
      const float b = activated_erase(p, load_element(p.erase.data, p.erase_dtype, erase_at + (p.scalar_gates ? 0 : i)));
      const float d_b = rstd[1] * x[1][i] * d_c;
      d[1][i] += b * d_c;
      sum_beta += d_b, sum_g += d_g;
      if (p.scalar_gates) continue;
      gates.d_decay[(row * p.gate_heads + gate_head) * K + i] = d_g;
      gates.d_erase[(row * p.gate_heads + gate_head) * K + i] = d_b;
    }
    if (!p.scalar_gates) continue;
    sum_beta = warp_sum(sum_beta), sum_g = warp_sum(sum_g);
    for (int tile = 0; tile < tiles; ++tile)
      sum_beta += pieces.d_w[(static_cast<std::int64_t>(tile) * p.tokens + row) * p.value_heads + gate_head];
    if (lane == 0) gates.d_decay[row * p.gate_heads + gate_head] = sum_g, gates.d_erase[row * p.gate_heads + gate_head] = sum_beta;
  }
  const MutableHeadView* outputs[2] = {&out.dq, &out.dk};
  for (int which = 0; which < 2; ++which) {
    float along = 0;
    for (int i = lane; i < K; i += 32) along += rstd[which] * x[which][i] * d[which][i];
    along = p.use_qk_l2norm ? warp_sum(along) : 0;
    const std::int64_t at = view_offset(*outputs[which], p.documents, chunk.document, token, key_head);
    for (int i = lane; i < K; i += 32) {
      store_element(outputs[which]->data, p.dtype, at + i, rstd[which] * (d[which][i] - rstd[which] * x[which][i] * along));
    }
  }
}

// Rows of T (5.4) of one (chunk, value head), scalar gates.
__global__ void __launch_bounds__(kThreads) inverse_kernel(RuleProblem p, void* t_inverse, ChunkTable table) {
  __shared__ float m[kChunk][kChunk + 1];
  __shared__ float gamma[kChunk], beta[kChunk], rstd[kChunk];
  const Chunk chunk = table.chunks[blockIdx.x / p.value_heads];
  const int head = static_cast<int>(blockIdx.x % p.value_heads), key_head = head / p.key_group(),
            thread = static_cast<int>(threadIdx.x);
  const std::int64_t key = view_offset(p.k, p.documents, chunk.document, chunk.begin, key_head);
  if (thread < chunk.tokens) {
    const std::int64_t decay_at = view_offset(p.decay, p.documents, chunk.document, chunk.begin + thread, head);
    const std::int64_t beta_at = view_offset(p.erase, p.documents, chunk.document, chunk.begin + thread, head);
    gamma[thread] = activated_decay(p, load_element(p.decay.data, p.decay_dtype, decay_at), head, 0);
    beta[thread] = activated_erase(p, load_element(p.erase.data, p.erase_dtype, beta_at));
    float sum = 0;
    for (int i = 0; i < p.key_dim; ++i) {
      const float x = load_element(p.k.data, p.dtype, key + thread * p.k.token_stride + i);
      sum += x * x;
    }
    rstd[thread] = p.use_qk_l2norm ? 1 / sqrtf(sum + kQkNormEpsilon) : 1;
  }
  __syncthreads();
  for (int at = thread; at < kChunk * kChunk; at += kThreads) {
    const int i = at / kChunk, j = at % kChunk;
    float sum = 0, exponent = 0;
    if (j < i && i < chunk.tokens) {
      for (int d = 0; d < p.key_dim; ++d) {
        sum += load_element(p.k.data, p.dtype, key + i * p.k.token_stride + d) *
               load_element(p.k.data, p.dtype, key + j * p.k.token_stride + d);
      }
      for (int l = j + 1; l <= i; ++l) exponent += gamma[l];  // a difference of two sums would lose small decays behind large ones
      sum *= beta[i] * rstd[i] * rstd[j] * expf(exponent);
    }
    m[i][j] = sum;
  }
  __syncthreads();
  if (thread < kChunk) {  // a thread per column: T_ij = e_ij - sum over l < i of M_il T_lj (6.1)
    float column[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      float sum = i == thread ? 1.0f : 0.0f;
#pragma unroll
      for (int l = 0; l < i; ++l) sum -= m[i][l] * column[l];
      column[i] = sum;
    }
    const std::int64_t row = p.documents.cu_seqlens[chunk.document] + chunk.begin;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if (i < chunk.tokens) store_element(t_inverse, p.dtype, ((row + i) * p.value_heads + head) * kChunk + thread, column[i]);
    }
  }
}

constexpr std::int64_t kBackwardBlocks = 132;  // bounds the scratch

std::int64_t backward_blocks(const RuleProblem& p) {
  return std::min<std::int64_t>(kBackwardBlocks, p.documents.count * p.value_heads * tiles_of(p, 2));
}

}  // namespace

RecurrentPieces carve_recurrent(DeltaRuleCarver& carver, const RuleProblem& p, std::int64_t chunks) {
  const std::int64_t K = p.key_dim, V = p.value_dim, tiles = tiles_of(p, 2), rows = tiles * p.tokens * p.value_heads;
  RecurrentPieces pieces{};
  pieces.states = carver.take<float>(chunks * p.value_heads * K * V);
  pieces.scratch = carver.take<float>(backward_blocks(p) * kChunk * (K + 1) * tile_of(p, 2));
  for (float** piece : {&pieces.d_q, &pieces.d_k, &pieces.d_c, &pieces.d_g}) *piece = carver.take<float>(rows * K);
  if (p.scalar_gates) pieces.d_w = carver.take<float>(rows);
  return pieces;
}

void recurrent_forward(const RuleProblem& p, const RuleOutputs& out, const ChunkTable& table, float* chunk_states,
                       cudaStream_t stream) {
  launch("delta_rule_recurrent_forward", &forward_kernel, p.documents.count * p.value_heads * tiles_of(p, 1), kThreads,
         shared_bytes_of(p, 1), stream, p, out, table, chunk_states, tile_of(p, 1), tiles_of(p, 1));
}

void recurrent_inverse(const RuleProblem& p, void* t_inverse, const ChunkTable& table, cudaStream_t stream) {
  launch("delta_rule_recurrent_inverse", &inverse_kernel, table.count * p.value_heads, kThreads, 0, stream, p, t_inverse, table);
}

void recurrent_backward(const RuleProblem& p, const RuleGradients& out, const ChunkTable& table, const RecurrentPieces& pieces,
                        const GatePieces& gates, cudaStream_t stream) {
  recurrent_forward(p, RuleOutputs{}, table, pieces.states, stream);
  launch("delta_rule_recurrent_backward", &backward_kernel, backward_blocks(p), kThreads, shared_bytes_of(p, 2), stream, p, out,
         table, pieces, tile_of(p, 2), tiles_of(p, 2));
  launch("delta_rule_recurrent_finish", &finish_keys, (table.count * kChunk * p.key_heads + kWarps - 1) / kWarps, kThreads,
         static_cast<std::size_t>(kWarps) * 4 * 4 * static_cast<std::size_t>(p.key_dim), stream, p, out, table, pieces, gates,
         tiles_of(p, 2));
}

}  // namespace deltron::kernels::cuda
