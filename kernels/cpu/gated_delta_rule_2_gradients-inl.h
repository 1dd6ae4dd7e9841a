// Gradients of one chunk of gated delta rule 2 (docs/gdn.md 12.4): scratch of a thread and the steps that delta_rule_drive-inl.h
// puts in order. What depends on the gates alone is done once a gate head, on sums over its value heads. Compiled once a Highway
// target.
#if defined(DELTRON_KERNELS_CPU_GATED_DELTA_RULE_2_GRADIENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_GATED_DELTA_RULE_2_GRADIENTS_INL_H
#undef DELTRON_KERNELS_CPU_GATED_DELTA_RULE_2_GRADIENTS_INL_H
#else
#define DELTRON_KERNELS_CPU_GATED_DELTA_RULE_2_GRADIENTS_INL_H
#endif

#include "kernels/cpu/gated_delta_rule_2_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

template <class T>
struct ChannelBackward : ChannelChunk<T> {
  using Base = ChannelChunk<T>;
  using Args = GatedDeltaRule2BackwardArgs;
  using Inputs = ChannelGateInputs;
  using Base::gates;
  using Base::keys;
  static constexpr bool kNeedsY = false;
  static constexpr bool kRebuildsInverse = true;
  static constexpr std::int64_t kSubBlocks = kChunk / kSubBlock;

  T* p;             // [64, 64] s P
  const T* t;       // [64, 64] of the handover
  T* x;             // [64, 64] sum of dO U^T, then X; M while T is made
  T* n;             // [64, 64] sum of Z U^T, then N
  T* d_q;           // [64, Kp] sums over the gate heads of the key head
  T* d_k;           // [64, Kp]
  T* d_o;           // [64, Vp]
  T* d_u;           // [64, Vp]
  T* z;             // [64, Vp]
  T* out;           // [64, Vp]
  T* u_t;           // [Vp, 64]
  T* state_t;       // [Vp, Kp]
  T* query_state;   // [64, Kp] sum of dO S^T
  T* erased_state;  // [64, Kp] sum of Z S^T
  T* key_state;     // [64, Kp] sum of U D'^T
  T* carried;       // [Kp] sum of rows of S o D'
  T* keys_before;   // [16 + 32 + 48, Kp] keys of earlier sub-blocks, decayed to the border before sub-block 1, 2, 3
  T* keys_after;    // [64, Kp] gradient of keys from later sub-blocks, at the end of their own
  T* crossing;      // [4, Kp] part of dg of a whole sub-block: pairs on both sides of it
  T* d_query;       // [64, Kp] dQ of this gate head
  T* d_erased;      // [64, Kp] dC
  T* d_decay;       // [64, Kp] dg
  T* d_erase;       // [64, Kp] db
  T* states;        // [group, K, Vp] states on the way forward, their gradients on the way back
  bool first_of_key_head;

  void carve(Carver& carver, const Inputs& in) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value();
    this->carve_chunk(carver, in, true);
    for (T** square : {&p, &x, &n}) *square = carver.take<T>(kChunk * kChunk);
    for (T** tile : {&d_q, &d_k, &query_state, &erased_state, &key_state, &keys_after, &d_query, &d_erased, &d_decay, &d_erase})
      *tile = carver.take<T>(kChunk * kp);
    for (T** tile : {&d_o, &d_u, &z, &out, &u_t}) *tile = carver.take<T>(kChunk * vp);
    state_t = carver.take<T>(vp * kp);
    carried = carver.take<T>(kp);
    keys_before = carver.take<T>(6 * kSubBlock * kp);
    crossing = carver.take<T>(kSubBlocks * kp);
    states = carver.take<T>(in.group() * in.key_dim * vp);
  }

  void load_chunk(const Inputs& in, const Chunk& chunk, std::int64_t key_head) {
    this->load_keys(in, chunk, key_head);
    this->load_queries(in, chunk, key_head);
    this->key_products(in, chunk, true, true);
  }
  // T of the chunk, made here and kept for the phases that follow; with_queries: after load_chunk, and s P too.
  void first_inverse(const Inputs& in, const Args&, const Chunk& chunk, std::int64_t, bool with_queries, T* kept) {
    if (!with_queries) this->key_products(in, chunk, true, false);
    this->make_pairs(in, chunk, x, with_queries ? p : nullptr);
    invert_unit_lower(x, kept, kChunk, chunk.tokens);
    t = kept;
  }
  void inverse(const Inputs&, const Args&, const Chunk&, std::int64_t, const T* kept) { t = kept; }
  void pair_products(const Inputs& in, const Chunk& chunk, bool, bool want_p) {
    if (want_p) this->make_pairs(in, chunk, nullptr, p);
  }

  void load_output_gradient(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t head) {
    load_tile<T>(in.dtype, args.d_o, in.documents, chunk, head, in.value_dim, d_o, in.padded_value());
  }
  // dU of what the chunk's own outputs read: s P^T dO, the first term of (12.15).
  void local_update_gradient(const Inputs& in, const Chunk& chunk, T* du) {
    const std::int64_t vp = in.padded_value();
    multiply<Part::LowerA, true>(p, kChunk, d_o, vp, du, vp, chunk.tokens, vp, chunk.tokens, false);
  }
  // (12.15) dU += (k o e^(G_last - G)) D';  Z = T^T dU.
  void update_gradient(const Inputs& in, const Chunk& chunk, const T* d_state, T* du, T* dz) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value(), tokens = chunk.tokens;
    multiply<Part::Full, false>(gates.key_end, kp, d_state, vp, du, vp, tokens, vp, in.key_dim, true);
    multiply<Part::LowerA, true>(t, kChunk, du, vp, dz, vp, tokens, vp, tokens, false);
  }
  // (12.22) D = Diag(e^G_last) D' + s (q o e^G)^T dO - (c o e^G)^T Z.
  void state_gradient(const Inputs& in, const Chunk& chunk, const T* dz, T* d_state) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value(), tokens = chunk.tokens;
    this->decay_state(in, d_state);
    multiply<Part::Full, true>(gates.query_start, kp, d_o, vp, d_state, vp, in.key_dim, vp, tokens, true);
    multiply<Part::Full, true>(gates.erased_start, kp, dz, vp, d_state, vp, in.key_dim, vp, tokens, true);
  }

  void begin_gate_head(const Inputs&, const Chunk&, bool first) { first_of_key_head = first; }

  // dv, dw (12.16), and this value head's share of everything that finish_gate_head needs.
  void head_gradients(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t head, const T* state, const T* d_state,
                      const T*, const T* u, const T* dz) {
    const TileTag<T> d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d)), kp = in.padded_key(), vp = in.padded_value();
    const std::int64_t tokens = chunk.tokens, padded = round_up_16(tokens);
    const bool add = head % in.gate_group() != 0;
    this->load_values(in, chunk, head);
    Base::multiply_elements(this->w, dz, out, tokens * vp);
    store_tile<T>(in.dtype, args.dv, in.documents, chunk, head, in.value_dim, out, vp);
    Base::multiply_elements(this->v, dz, out, tokens * vp);
    if (in.gate_form == GateForm::Raw) {
      for (std::int64_t i = 0; i < tokens * vp; i += lanes) {
        const auto s = hn::LoadU(d, this->w + i);
        hn::StoreU(hn::Mul(hn::LoadU(d, out + i), hn::Mul(s, hn::Sub(hn::Set(d, T(1)), s))), d, out + i);
      }
    }
    store_tile<T>(args.d_gate_dtype, args.d_write, in.documents, chunk, head, in.value_dim, out, vp);

    transpose(u, vp, tokens, in.value_dim, u_t, kChunk, padded);
    multiply<Part::LowerC, false>(d_o, vp, u_t, kChunk, x, kChunk, tokens, padded, in.value_dim, add);
    multiply<Part::LowerC, false>(dz, vp, u_t, kChunk, n, kChunk, tokens, padded, in.value_dim, add);
    transpose(state, vp, in.key_dim, in.value_dim, state_t, kp, kp);
    multiply<Part::Full, false>(d_o, vp, state_t, kp, query_state, kp, tokens, kp, in.value_dim, add);
    multiply<Part::Full, false>(dz, vp, state_t, kp, erased_state, kp, tokens, kp, in.value_dim, add);
    transpose(d_state, vp, in.key_dim, in.value_dim, state_t, kp, kp);
    multiply<Part::Full, false>(u, vp, state_t, kp, key_state, kp, tokens, kp, in.value_dim, add);
    for (std::int64_t c = 0; c < kp; ++c) {
      const T whole = c < in.key_dim ? dot(state + c * vp, d_state + c * vp, vp) : T(0);
      carried[c] = add ? carried[c] + whole : whole;
    }
  }

  void finish_gate_head(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t gate_head, double* partial) {
    const std::int64_t kp = in.padded_key(), tokens = chunk.tokens, padded = round_up_16(tokens);
    mask_pairs(tokens, padded, static_cast<T>(in.scale));
    pairs_of_sub_blocks(padded, kp);
    const TileTag<T> d;
    for (std::int64_t channel = 0; channel < kp; channel += static_cast<std::int64_t>(hn::Lanes(d))) {
      for (std::int64_t first = 0; first < padded; first += kSubBlock) pairs_inside(first, kp, channel);
      through_states(tokens, kp, channel, static_cast<T>(in.scale));
    }
    if (in.gate_form == GateForm::Raw) through_gates(in, tokens, partial);
    store_tile<T>(args.d_gate_dtype, args.d_decay, in.documents, chunk, gate_head, in.key_dim, d_decay, kp);
    store_tile<T>(args.d_gate_dtype, args.d_erase, in.documents, chunk, gate_head, in.key_dim, d_erase, kp);
  }
  void store_keys(const Inputs& in, const Args& args, const Chunk& chunk, std::int64_t key_head) {
    keys.store_gradients(in, args, chunk, key_head, d_q, d_k);
  }

  static std::int64_t partial_size(const Inputs& in) { return 1 + in.key_dim; }
  static void add_gate_parameters(const Inputs& in, const Args& args, std::int64_t head, const double* sums) {
    if (args.d_A_log != nullptr) static_cast<T*>(args.d_A_log)[head] += static_cast<T>(sums[0]);
    if (args.d_dt_bias == nullptr) return;
    T* d_bias = static_cast<T*>(args.d_dt_bias) + head * in.key_dim;
    for (std::int64_t c = 0; c < in.key_dim; ++c) d_bias[c] += static_cast<T>(sums[1 + c]);
  }

 private:
  void mask_pairs(std::int64_t tokens, std::int64_t padded, T scale);
  void pairs_of_sub_blocks(std::int64_t padded, std::int64_t kp);
  void pairs_inside(std::int64_t first, std::int64_t kp, std::int64_t channel);
  void through_states(std::int64_t tokens, std::int64_t kp, std::int64_t channel, T scale);
  void through_gates(const Inputs& in, std::int64_t tokens, double* partial);
};

// (12.17) x = X = s tril(dO U^T), n = N = -tril_(Z U^T): zeros above the diagonal up to the end of the sub-block, and in rows past
// the last token.
template <class T>
void ChannelBackward<T>::mask_pairs(std::int64_t tokens, std::int64_t padded, T scale) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, scale);
  for (std::int64_t i = 0; i < padded; ++i) {
    const std::int64_t row = i * kChunk, end = i / kSubBlock * kSubBlock + kSubBlock;
    for (std::int64_t j = 0; j < end; j += lanes) {
      const std::int64_t valid = i < tokens ? std::clamp<std::int64_t>(i + 1 - j, 0, lanes) : 0;
      const std::int64_t strict = i < tokens ? std::clamp<std::int64_t>(i - j, 0, lanes) : 0;
      const auto dp = hn::Mul(factor, hn::LoadU(d, x + row + j)), dm = hn::Neg(hn::LoadU(d, n + row + j));
      hn::StoreU(hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(valid)), dp), d, x + row + j);
      hn::StoreU(hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(strict)), dm), d, n + row + j);
    }
  }
}

// Pairs of (12.18)-(12.20) in different sub-blocks, as products around the border before the later one: their part of dQ and dC
// (rows of d_query, d_erased), of dk (keys_after) and, where both lie outside a sub-block, of its dg (crossing).
template <class T>
void ChannelBackward<T>::pairs_of_sub_blocks(std::int64_t padded, std::int64_t kp) {
  std::fill(d_query, d_query + kSubBlock * kp, T(0));
  std::fill(d_erased, d_erased + kSubBlock * kp, T(0));
  std::fill(keys_after, keys_after + padded * kp, T(0));
  std::fill(crossing, crossing + kSubBlocks * kp, T(0));
  const auto before_of = [&](std::int64_t first) { return keys_before + first * (first - kSubBlock) / (2 * kSubBlock) * kp; };
  for (std::int64_t first = kSubBlock; first < padded; first += kSubBlock) {
    T* before = before_of(first);
    const std::int64_t last = first - kSubBlock;  // sub-block just before
    for (std::int64_t j = 0; j < last; ++j) {
      Base::multiply_elements(before_of(last) + j * kp, gates.block + last / kSubBlock * kp, before + j * kp, kp);
    }
    Base::multiply_elements(keys.k + last * kp, gates.to_block_end + last * kp, before + last * kp, kSubBlock * kp);
    const std::int64_t rows = first * kp, pairs = first * kChunk;
    multiply<Part::Full, false>(x + pairs, kChunk, before, kp, d_query + rows, kp, kSubBlock, kp, first, false);
    multiply<Part::Full, false>(n + pairs, kChunk, before, kp, d_erased + rows, kp, kSubBlock, kp, first, false);
    Base::multiply_elements(d_query + rows, gates.in_block + rows, d_query + rows, kSubBlock * kp);
    Base::multiply_elements(d_erased + rows, gates.in_block + rows, d_erased + rows, kSubBlock * kp);
  }
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t first = padded - kSubBlock; first > 0; first -= kSubBlock) {
    if (first + kSubBlock < padded) {
      const std::int64_t over = first / kSubBlock * kp;
      const T* before = before_of(first);
      for (std::int64_t c = 0; c < kp; c += lanes) {
        const auto decay = hn::LoadU(d, gates.block + over + c);
        auto sum = hn::Zero(d);
        for (std::int64_t j = 0; j < first; ++j) {
          const auto value = hn::Mul(decay, hn::LoadU(d, keys_after + j * kp + c));
          hn::StoreU(value, d, keys_after + j * kp + c);
          sum = hn::MulAdd(value, hn::LoadU(d, before + j * kp + c), sum);
        }
        hn::StoreU(sum, d, crossing + over + c);
      }
    }
    const std::int64_t rows = first * kp, pairs = first * kChunk;
    multiply<Part::Full, true>(x + pairs, kChunk, gates.query_block + rows, kp, keys_after, kp, first, kp, kSubBlock, true);
    multiply<Part::Full, true>(n + pairs, kChunk, gates.erased_block + rows, kp, keys_after, kp, first, kp, kSubBlock, true);
  }
}

// One vector of channels of one sub-block: adds the pairs inside it to d_query, d_erased and keys_after (which becomes the pair
// part of dk), and sets d_decay to the part of dg_t from pairs j < t <= i, the first sum of (12.23). No term is added that another
// one would have to take away: sums over rows from t on, over columns before t, over pairs inside on both sides of t, and over
// pairs around the sub-block.
template <class T>
void ChannelBackward<T>::pairs_inside(std::int64_t first, std::int64_t kp, std::int64_t channel) {
  const TileTag<T> d;
  using V = hn::Vec<TileTag<T>>;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t origin = first * kp + channel;
  const T* k = keys.k + origin;
  const T* q = keys.q + origin;
  HWY_ALIGN T d_key[kSubBlock * kTilePad] = {};  // from pairs inside
  auto suffix = hn::LoadU(d, crossing + first / kSubBlock * kp + channel);
  for (std::int64_t i = kSubBlock - 1; i >= 0; --i) {
    const std::int64_t at = i * kp;
    const T* dp = x + (first + i) * kChunk + first;
    const T* dm = n + (first + i) * kChunk + first;
    const V query = hn::LoadU(d, q + at), erased = hn::LoadU(d, gates.erased + origin + at);
    V row_q = hn::LoadU(d, d_query + origin + at), row_c = hn::LoadU(d, d_erased + origin + at);
    suffix = hn::Add(suffix, hn::MulAdd(query, row_q, hn::Mul(erased, row_c)));
    V between = hn::LoadU(d, gates.decay + origin + at);  // e^(G_i - G_j)
    V straddling = hn::Zero(d);
    for (std::int64_t j = i - 1; j >= 0; --j) {
      const V key = hn::LoadU(d, k + j * kp), pair_p = hn::Set(d, dp[j]), pair_m = hn::Set(d, dm[j]);
      const V decayed_key = hn::Mul(key, between);
      row_q = hn::MulAdd(pair_p, decayed_key, row_q);
      row_c = hn::MulAdd(pair_m, decayed_key, row_c);
      const V row = hn::MulAdd(pair_p, query, hn::Mul(pair_m, erased));
      const V sum = hn::MulAdd(row, between, hn::Load(d, d_key + j * lanes));  // rows >= i of column j
      hn::Store(sum, d, d_key + j * lanes);
      straddling = hn::MulAdd(key, sum, straddling);
      between = hn::Mul(between, hn::LoadU(d, gates.decay + origin + j * kp));
    }
    const V own = hn::Set(d, dp[i]);
    row_q = hn::MulAdd(own, hn::LoadU(d, k + at), row_q);
    hn::Store(hn::MulAdd(own, query, hn::Load(d, d_key + i * lanes)), d, d_key + i * lanes);
    hn::StoreU(row_q, d, d_query + origin + at);
    hn::StoreU(row_c, d, d_erased + origin + at);
    hn::StoreU(hn::Add(suffix, straddling), d, d_decay + origin + at);
  }
  auto prefix = hn::Zero(d);
  for (std::int64_t j = 0; j < kSubBlock; ++j) {
    const std::int64_t at = origin + j * kp;
    hn::StoreU(hn::Add(prefix, hn::LoadU(d, d_decay + at)), d, d_decay + at);
    const V later = hn::Mul(hn::LoadU(d, gates.to_block_end + at), hn::LoadU(d, keys_after + at));
    prefix = hn::MulAdd(hn::LoadU(d, k + j * kp), later, prefix);
    hn::StoreU(hn::Add(later, hn::Load(d, d_key + j * lanes)), d, keys_after + at);
  }
}

// One vector of channels: adds what passes through the old and the next state, then dq, dk, db (12.21) and dg (12.23) of this gate
// head are whole.
template <class T>
void ChannelBackward<T>::through_states(std::int64_t tokens, std::int64_t kp, std::int64_t channel, T scale) {
  const TileTag<T> d;
  const auto factor = hn::Set(d, scale);
  auto suffix = hn::Mul(hn::LoadU(d, gates.whole + channel), hn::LoadU(d, carried + channel));
  for (std::int64_t i = tokens - 1; i >= 0; --i) {
    const std::int64_t at = i * kp + channel;
    const auto from = hn::LoadU(d, gates.from_start + at);
    const auto query = hn::Mul(factor, hn::Mul(from, hn::LoadU(d, query_state + at)));
    const auto erased = hn::Neg(hn::Mul(from, hn::LoadU(d, erased_state + at)));
    suffix = hn::Add(suffix, hn::MulAdd(hn::LoadU(d, keys.q + at), query, hn::Mul(hn::LoadU(d, gates.erased + at), erased)));
    hn::StoreU(hn::Add(suffix, hn::LoadU(d, d_decay + at)), d, d_decay + at);
    hn::StoreU(hn::Add(erased, hn::LoadU(d, d_erased + at)), d, d_erased + at);
    const auto dq = hn::Add(query, hn::LoadU(d, d_query + at));
    hn::StoreU(first_of_key_head ? dq : hn::Add(hn::LoadU(d, d_q + at), dq), d, d_q + at);
  }
  auto prefix = hn::Zero(d);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t at = i * kp + channel;
    const auto key = hn::LoadU(d, keys.k + at), dc = hn::LoadU(d, d_erased + at);
    const auto end = hn::Mul(hn::LoadU(d, gates.to_end + at), hn::LoadU(d, key_state + at));
    hn::StoreU(hn::Add(prefix, hn::LoadU(d, d_decay + at)), d, d_decay + at);
    prefix = hn::MulAdd(key, end, prefix);
    hn::StoreU(hn::Mul(key, dc), d, d_erase + at);
    const auto dk = hn::MulAdd(hn::LoadU(d, gates.erase + at), dc, hn::Add(end, hn::LoadU(d, keys_after + at)));
    hn::StoreU(first_of_key_head ? dk : hn::Add(hn::LoadU(d, d_k + at), dk), d, d_k + at);
  }
}

// (12.9) Raw gates: dg -> df with the sums for A_log and dt_bias; db -> db_raw.
template <class T>
void ChannelBackward<T>::through_gates(const Inputs& in, std::int64_t tokens, double* partial) {
  const std::int64_t kp = in.padded_key();
  std::fill(partial, partial + 1 + in.key_dim, 0.0);
  for (std::int64_t i = 0; i < tokens; ++i) {
    for (std::int64_t c = 0; c < in.key_dim; ++c) {
      const std::int64_t at = i * kp + c;
      partial[0] += static_cast<double>(d_decay[at]) * static_cast<double>(gates.log_decay[at]);
      d_decay[at] *= -gates.rate * gates.slope[at];
      partial[1 + c] += static_cast<double>(d_decay[at]);
      d_erase[at] *= gates.erase_slope[at];
    }
  }
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
