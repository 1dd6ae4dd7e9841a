// One chunk of gated delta rule 2 forward: gates by channel with their cumulative decay, the products of token pairs, and the steps
// that delta_rule_drive-inl.h puts in order. Compiled once a Highway target. Numbers in brackets are equations
// of docs/gdn.md.
//
// Decay never enters as an exponent that could be positive: everything is built from e^g <= 1 of single tokens, multiplied along
// the chunk. A chunk is cut into sub-blocks of 16 rows. Pairs in different sub-blocks share an anchor at the border before the
// later one (both factors are products of e^g, hence <= 1); pairs inside one sub-block go row by row. g = -inf is an exact reset, g
// = 0 the rule without decay to the bit. Rows past the last token are zero with e^g = 1, so that sub-blocks are always whole.
#if defined(DELTRON_KERNELS_CPU_GATED_DELTA_RULE_2_CHUNK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_GATED_DELTA_RULE_2_CHUNK_INL_H
#undef DELTRON_KERNELS_CPU_GATED_DELTA_RULE_2_CHUNK_INL_H
#else
#define DELTRON_KERNELS_CPU_GATED_DELTA_RULE_2_CHUNK_INL_H
#endif

#include "kernels/cpu/delta_rule_chunk-inl.h"
#include "kernels/gated_delta_rule_2.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

inline constexpr std::int64_t kSubBlock = 16;

// Gates of one (chunk, gate head) and what they make of keys and queries; tiles [64, Kp], valid up to a whole sub-block.
template <class T>
struct ChannelGates {
  T* decay;         // e^g
  T* erase;         // b
  T* erased;        // c = b o k
  T* in_block;      // product of e^g from the first row of the sub-block to this one
  T* to_block_end;  // product of e^g after this row to the last of the sub-block
  T* from_start;    // e^G
  T* to_end;        // e^(G_last - G)
  T* erased_start;  // -c o e^G: reads the old state
  T* key_end;       // k o e^(G_last - G): writes the next state
  T* query_start;   // s q o e^G
  T* erased_block;  // c o in_block
  T* query_block;   // q o in_block
  T* block;         // [4, Kp] products over whole sub-blocks
  T* whole;         // [Kp] e^G_last
  T* bias;          // [Kp] Raw: dt_bias
  T* log_decay;     // g; Raw and backward only, else null
  T* slope;         // d softplus / d f, likewise
  T* erase_slope;   // d b / d b_raw, likewise
  T rate;           // Raw: e^A_log

  void carve(Carver& carver, std::int64_t kp, bool slopes) {
    for (T** tile : {&decay, &erase, &erased, &in_block, &to_block_end, &from_start, &to_end, &erased_start, &key_end, &query_start,
                     &erased_block, &query_block}) {
      *tile = carver.take<T>(kChunk * kp);
    }
    block = carver.take<T>(kChunk / kSubBlock * kp);
    whole = carver.take<T>(kp);
    bias = carver.take<T>(kp);
    for (T** tile : {&log_decay, &slope, &erase_slope}) *tile = slopes ? carver.take<T>(kChunk * kp) : nullptr;
  }

  // Activated decay e^g and b from storage; in Raw form with their slopes where these are kept.
  void activate(const ChannelGateInputs& in, const Chunk& chunk, std::int64_t head) {
    const TileTag<T> d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d)), kp = in.padded_key(), tokens = chunk.tokens;
    load_tile<T>(in.decay_dtype, in.decay, in.documents, chunk, head, in.key_dim, decay, kp);
    load_tile<T>(in.erase_dtype, in.erase, in.documents, chunk, head, in.key_dim, erase, kp);
    const auto floor = hn::Set(d, T(kLogDecayFloor));
    if (in.gate_form == GateForm::Raw) {
      rate = std::exp(static_cast<const T*>(in.A_log)[head]);
      load_rows<T, T>(static_cast<const T*>(in.dt_bias) + head * in.key_dim, in.key_dim, 1, in.key_dim, bias, kp);
      const auto minus_rate = hn::Set(d, -rate);
      const auto one = hn::Set(d, T(1));
      const auto twenty = hn::Set(d, T(20));
      const auto factor = hn::Set(d, T(in.allow_neg_eigval ? 2 : 1));
      for (std::int64_t i = 0; i < tokens * kp; i += kp) {
        for (std::int64_t j = 0; j < kp; j += lanes) {
          const auto x = hn::Add(hn::LoadU(d, decay + i + j), hn::LoadU(d, bias + j));
          const auto linear = hn::Gt(x, twenty);
          const auto g = hn::Mul(minus_rate, hn::IfThenElse(linear, x, softplus(d, x)));
          hn::StoreU(g, d, decay + i + j);
          const auto s = sigmoid(d, hn::LoadU(d, erase + i + j));
          hn::StoreU(hn::Mul(factor, s), d, erase + i + j);
          if (slope == nullptr) continue;
          hn::StoreU(hn::IfThenElse(linear, one, sigmoid(d, x)), d, slope + i + j);
          hn::StoreU(hn::Mul(factor, hn::Mul(s, hn::Sub(one, s))), d, erase_slope + i + j);
        }
      }
    }
    for (std::int64_t i = 0; i < tokens * kp; i += lanes) {
      auto g = hn::LoadU(d, decay + i);
      g = hn::IfThenElse(hn::Lt(g, floor), floor, g);
      if (log_decay != nullptr) hn::StoreU(g, d, log_decay + i);
      hn::StoreU(exp(d, g), d, decay + i);
    }
    const std::int64_t padded = round_up_16(tokens);
    std::fill(decay + tokens * kp, decay + padded * kp, T(1));
    std::fill(erase + tokens * kp, erase + padded * kp, T(0));
  }

  // Everything else, one vector of channels at a time. k and q [padded, Kp] (q null: not wanted).
  void accumulate(std::int64_t padded, std::int64_t kp, T scale, const T* k, const T* q) {
    const TileTag<T> d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const auto factor = hn::Set(d, scale);
    for (std::int64_t channel = 0; channel < kp; channel += lanes) {
      auto start = hn::Set(d, T(1));  // up to the end of the previous sub-block
      for (std::int64_t first = 0; first < padded; first += kSubBlock) {
        auto inside = hn::Set(d, T(1));
        for (std::int64_t i = first; i < first + kSubBlock; ++i) {
          const std::int64_t at = i * kp + channel;
          inside = hn::Mul(inside, hn::LoadU(d, decay + at));
          const auto from = hn::Mul(start, inside);
          const auto c = hn::Mul(hn::LoadU(d, erase + at), hn::LoadU(d, k + at));
          hn::StoreU(inside, d, in_block + at);
          hn::StoreU(from, d, from_start + at);
          hn::StoreU(c, d, erased + at);
          hn::StoreU(hn::Neg(hn::Mul(c, from)), d, erased_start + at);
          hn::StoreU(hn::Mul(c, inside), d, erased_block + at);
          if (q == nullptr) continue;
          const auto query = hn::LoadU(d, q + at);
          hn::StoreU(hn::Mul(factor, hn::Mul(query, from)), d, query_start + at);
          hn::StoreU(hn::Mul(query, inside), d, query_block + at);
        }
        start = hn::Mul(start, inside);
        hn::StoreU(inside, d, block + first / kSubBlock * kp + channel);
      }
      hn::StoreU(start, d, whole + channel);
      auto end = hn::Set(d, T(1));  // from the start of the next sub-block
      for (std::int64_t first = padded - kSubBlock; first >= 0; first -= kSubBlock) {
        auto after = hn::Set(d, T(1));
        for (std::int64_t i = first + kSubBlock - 1; i >= first; --i) {
          const std::int64_t at = i * kp + channel;
          const auto to = hn::Mul(after, end);
          hn::StoreU(after, d, to_block_end + at);
          hn::StoreU(to, d, to_end + at);
          hn::StoreU(hn::Mul(hn::LoadU(d, k + at), to), d, key_end + at);
          after = hn::Mul(after, hn::LoadU(d, decay + at));
        }
        end = hn::Mul(end, after);
      }
    }
  }
};

// (12.10) m_ij = sum_d c_id k_jd e^(G_id - G_jd) for j < i and (12.11) p_ij = s sum_d q_id k_jd e^(G_id - G_jd) for j <= i, inside
// the sub-block that begins at row `first`; zeros above the diagonal of the sub-block. Lanes are the columns j; k_t [Kp, 64]. Each
// channel carries k_j e^(G_i - G_j) from row to row.
template <bool kWantM, bool kWantP, class T>
void pairs_in_block(const ChannelGates<T>& gates, const T* k_t, const T* q, std::int64_t kp, T scale, std::int64_t first, T* m,
                    T* p) {
  const TileTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int kChannels = 4;
  const auto lane = hn::Iota(d, 0);
  for (std::int64_t column = 0; column < kSubBlock; column += lanes) {
    HWY_ALIGN T sum_m[kSubBlock * kTilePad] = {};
    HWY_ALIGN T sum_p[kSubBlock * kTilePad] = {};
    for (std::int64_t channel = 0; channel < kp; channel += kChannels) {
      hn::Vec<TileTag<T>> x[kChannels], keys[kChannels];
#pragma GCC unroll 4
      for (int c = 0; c < kChannels; ++c) {
        x[c] = hn::Zero(d);
        keys[c] = hn::LoadU(d, k_t + (channel + c) * kChunk + first + column);
      }
      for (std::int64_t i = column; i < kSubBlock; ++i) {
        const std::int64_t at = (first + i) * kp + channel;
        const auto own = hn::Eq(lane, hn::Set(d, static_cast<T>(i - column)));  // none past the last lane
        auto row_m = hn::Zero(d), row_p = hn::Zero(d);
        if constexpr (kWantM) row_m = hn::Load(d, sum_m + i * lanes);
        if constexpr (kWantP) row_p = hn::Load(d, sum_p + i * lanes);
#pragma GCC unroll 4
        for (int c = 0; c < kChannels; ++c) {
          x[c] = hn::Mul(x[c], hn::Set(d, gates.decay[at + c]));
          if constexpr (kWantM) row_m = hn::MulAdd(x[c], hn::Set(d, gates.erased[at + c]), row_m);
          x[c] = hn::IfThenElse(own, keys[c], x[c]);
          if constexpr (kWantP) row_p = hn::MulAdd(x[c], hn::Set(d, q[at + c]), row_p);
        }
        if constexpr (kWantM) hn::Store(row_m, d, sum_m + i * lanes);
        if constexpr (kWantP) hn::Store(row_p, d, sum_p + i * lanes);
      }
    }
    const auto factor = hn::Set(d, scale);
    for (std::int64_t i = 0; i < kSubBlock; ++i) {
      const std::int64_t at = (first + i) * kChunk + first + column;
      if constexpr (kWantM) hn::StoreU(hn::Load(d, sum_m + i * lanes), d, m + at);
      if constexpr (kWantP) hn::StoreU(hn::Mul(factor, hn::Load(d, sum_p + i * lanes)), d, p + at);
    }
  }
}

// What forward and backward do alike.
template <class T>
struct ChannelChunk {
  using Value = T;
  using Inputs = ChannelGateInputs;

  KeyTiles<T> keys;
  ChannelGates<T> gates;
  T* ladder;  // [Kp, 64] keys of earlier sub-blocks, decayed to the border before the current one
  T* scaled;  // [64, Kp]
  T* v;       // [64, Vp] w o v - (c o e^G) S
  T* w;       // [64, Vp]

  void carve_chunk(Carver& carver, const Inputs& in, bool slopes) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value();
    keys.carve(carver, kp);
    gates.carve(carver, kp, slopes && in.gate_form == GateForm::Raw);
    for (T** tile : {&ladder, &scaled}) *tile = carver.take<T>(kChunk * kp);
    for (T** tile : {&v, &w}) *tile = carver.take<T>(kChunk * vp);
  }
  void load_keys(const Inputs& in, const Chunk& chunk, std::int64_t key_head) {
    keys.load_keys(in, chunk, key_head);
    clear_rest(in, chunk, keys.k);
  }
  void load_queries(const Inputs& in, const Chunk& chunk, std::int64_t key_head) {
    keys.load_queries(in, chunk, key_head);
    clear_rest(in, chunk, keys.q);
  }
  void key_products(const Inputs& in, const Chunk& chunk, bool, bool) {
    const std::int64_t kp = in.padded_key(), padded = round_up_16(chunk.tokens);
    transpose(keys.k, kp, padded, kp, keys.k_t, kChunk, padded);
  }
  void load_gates(const Inputs& in, const Chunk& chunk, std::int64_t gate_head, bool with_queries) {
    gates.activate(in, chunk, gate_head);
    gates.accumulate(round_up_16(chunk.tokens), in.padded_key(), static_cast<T>(in.scale), keys.k, with_queries ? keys.q : nullptr);
  }

  // M (12.10) into m and s P (12.11) into p where these are not null.
  void make_pairs(const Inputs& in, const Chunk& chunk, T* m, T* p) {
    const std::int64_t kp = in.padded_key(), padded = round_up_16(chunk.tokens);
    const T scale = static_cast<T>(in.scale);
    for (std::int64_t first = 0; first < padded; first += kSubBlock) {
      if (m != nullptr && p != nullptr) {
        pairs_in_block<true, true>(gates, keys.k_t, keys.q, kp, scale, first, m, p);
      } else if (m != nullptr) {
        pairs_in_block<true, false>(gates, keys.k_t, keys.q, kp, scale, first, m, p);
      } else {
        pairs_in_block<false, true>(gates, keys.k_t, keys.q, kp, scale, first, m, p);
      }
    }
    if (padded <= kSubBlock) return;
    multiply_elements(keys.k, gates.to_block_end, scaled, (padded - kSubBlock) * kp);
    transpose(scaled, kp, padded - kSubBlock, kp, ladder, kChunk, padded - kSubBlock);
    for (std::int64_t first = kSubBlock; first < padded; first += kSubBlock) {
      if (first > kSubBlock) scale_ladder(first - kSubBlock, kp);
      const std::int64_t left = first * kp, out = first * kChunk;
      if (m != nullptr) {
        multiply<Part::Full, false>(gates.erased_block + left, kp, ladder, kChunk, m + out, kChunk, kSubBlock, first, kp, false);
      }
      if (p == nullptr) continue;
      multiply<Part::Full, false>(gates.query_block + left, kp, ladder, kChunk, p + out, kChunk, kSubBlock, first, kp, false);
      for (std::int64_t i = 0; i < kSubBlock; ++i) scale_in_place(p + out + i * kChunk, scale, first);
    }
  }

  // (12.12) U = T R, R = w o V - (c o e^G) S;  (12.14) S' = Diag(e^G_last) S + (k o e^(G_last - G))^T U.
  void update(const Inputs& in, const Chunk& chunk, std::int64_t head, const T* t, const T* state, T*, T* u) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value(), tokens = chunk.tokens;
    load_values(in, chunk, head);
    multiply_elements(v, w, v, tokens * vp);
    multiply<Part::Full, false>(gates.erased_start, kp, state, vp, v, vp, tokens, vp, in.key_dim, true);
    multiply<Part::LowerA, false>(t, kChunk, v, vp, u, vp, tokens, vp, tokens, false);
  }
  void next_state(const Inputs& in, const Chunk& chunk, const T* u, T* state) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value();
    decay_state(in, state);
    multiply<Part::Full, true>(gates.key_end, kp, u, vp, state, vp, in.key_dim, vp, chunk.tokens, true);
  }
  void decay_state(const Inputs& in, T* state) const {
    const std::int64_t vp = in.padded_value();
    for (std::int64_t channel = 0; channel < in.key_dim; ++channel) scale_in_place(state + channel * vp, gates.whole[channel], vp);
  }
  // v and the activated w of a value head.
  void load_values(const Inputs& in, const Chunk& chunk, std::int64_t head) {
    const TileTag<T> d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d)), vp = in.padded_value();
    load_tile<T>(in.dtype, in.v, in.documents, chunk, head, in.value_dim, v, vp);
    load_tile<T>(in.write_dtype, in.write, in.documents, chunk, head, in.value_dim, w, vp);
    if (in.gate_form != GateForm::Raw) return;
    for (std::int64_t i = 0; i < chunk.tokens * vp; i += lanes) hn::StoreU(sigmoid(d, hn::LoadU(d, w + i)), d, w + i);
  }

  // to = a o b over n values (a multiple of kTilePad); `to` may be one of them.
  static void multiply_elements(const T* a, const T* b, T* to, std::int64_t n) {
    const TileTag<T> d;
    const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
    for (std::int64_t i = 0; i < n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, to + i);
  }

 private:
  void clear_rest(const Inputs& in, const Chunk& chunk, T* tile) {
    std::fill(tile + chunk.tokens * in.padded_key(), tile + round_up_16(chunk.tokens) * in.padded_key(), T(0));
  }
  // Columns of sub-blocks before row `first` decay over the sub-block that begins there.
  void scale_ladder(std::int64_t first, std::int64_t kp) {
    const T* over = gates.block + first / kSubBlock * kp;
    for (std::int64_t channel = 0; channel < kp; ++channel) scale_in_place(ladder + channel * kChunk, over[channel], first);
  }
};

template <class T>
struct ChannelForward : ChannelChunk<T> {
  using Args = GatedDeltaRule2ForwardArgs;
  using Inputs = ChannelGateInputs;
  T* m;       // [64, 64]
  T* p;       // [64, 64] s P
  T* t;       // [64, 64]
  T* y;       // unused: R stays inside the step
  T* u;       // [64, Vp]
  T* o;       // [64, Vp]
  T* states;  // [group, K, Vp]

  void carve(Carver& carver, const Inputs& in) {
    this->carve_chunk(carver, in, false);
    for (T** square : {&m, &p, &t}) *square = carver.take<T>(kChunk * kChunk);
    for (T** tile : {&u, &o}) *tile = carver.take<T>(kChunk * in.padded_value());
    states = carver.take<T>(in.group() * in.key_dim * in.padded_value());
    y = nullptr;
  }
  void pair_products(const Inputs& in, const Chunk& chunk, bool want_m, bool want_p) {
    this->make_pairs(in, chunk, want_m ? m : nullptr, want_p ? p : nullptr);
  }
  void keep_inverse(const Inputs&, const Args&, const Chunk&, std::int64_t, const T*) const {}  // backward rebuilds it
  // (12.13) O = s (q o e^G) S + s P U.
  void output(const Inputs& in, const Chunk& chunk, const T* state, const T* update, T* out) {
    const std::int64_t kp = in.padded_key(), vp = in.padded_value(), tokens = chunk.tokens;
    multiply<Part::Full, false>(this->gates.query_start, kp, state, vp, out, vp, tokens, vp, in.key_dim, false);
    multiply<Part::LowerA, false>(p, kChunk, update, vp, out, vp, tokens, vp, tokens, true);
  }
};

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
