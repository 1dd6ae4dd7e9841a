// Forward of the gated delta rule, chunked (kernels/gated_delta_rule.h; docs/gdn.md section 5). One chunk and key head: K K^T and Q
// K^T once, then for every value head of the group T = (I + M)^-1, U, the output, the next state. Knows no gradients.
#include "kernels/gated_delta_rule.h"

#include <string>

#include "kernels/cpu/simd_targets.h"
#include "kernels/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_delta_rule_forward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/delta_rule_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

// Scratch of one thread.
template <class T>
struct ForwardScratch {
  KeyTiles<T> keys;
  T* decay;   // [64, 64]
  T* m;       // [64, 64], later P
  T* t;       // [64, 64]
  T* scaled;  // [64, Kp]
  T* v;       // [64, Vp]
  T* u;       // [64, Vp]
  T* write;   // [64, Vp]
  T* states;  // [group, K, Vp]

  void carve(Carver& carver, const DeltaRuleInputs& in) {
    keys.carve(carver, in.padded_key());
    decay = carver.take<T>(kChunk * kChunk);
    m = carver.take<T>(kChunk * kChunk);
    t = carver.take<T>(kChunk * kChunk);
    scaled = carver.take<T>(kChunk * in.padded_key());
    v = carver.take<T>(kChunk * in.padded_value());
    u = carver.take<T>(kChunk * in.padded_value());
    write = carver.take<T>(kChunk * in.padded_value());
    states = carver.take<T>(in.group() * in.key_dim * in.padded_value());
  }
};

// What passes between the phases when the work is split by chunks.
template <class T>
struct ForwardHandover {
  T* t;       // [chunks, Hv, 64, 64]
  T* u;       // [chunks, Hv, 64, Vp]
  T* states;  // [chunks, Hv, K, Vp] before each chunk

  void carve(Carver& carver, const DeltaRuleInputs& in, std::int64_t chunks) {
    const std::int64_t pieces = chunks * in.value_heads;
    t = carver.take<T>(pieces * kChunk * kChunk);
    u = carver.take<T>(pieces * kChunk * in.padded_value());
    states = carver.take<T>(pieces * in.key_dim * in.padded_value());
  }
};

template <class T>
class Forward {
 public:
  Forward(const GatedDeltaRuleForwardArgs& args, const ChunkPlan& plan, ThreadPool& pool)
      : args_(args), in_(delta_rule_inputs(args)), plan_(plan), pool_(pool), scratch_(static_cast<std::size_t>(pool.threads())) {}

  std::int64_t carve(void* memory) {
    Carver carver(memory);
    for (ForwardScratch<T>& scratch : scratch_) scratch.carve(carver, in_);
    if (plan_.split) handover_.carve(carver, in_, plan_.chunk_count());
    return carver.bytes();
  }

  void run() {
    if (plan_.split) {
      run_split();
    } else {
      run_items(pool_, in_.documents.count * in_.key_heads, [&](std::int64_t item, std::int64_t slot) {
        whole_document(plan_.longest_first[item / in_.key_heads], item % in_.key_heads, scratch_[slot]);
      });
    }
  }

 private:
  void whole_document(std::int64_t document, std::int64_t key_head, ForwardScratch<T>& s) {
    const std::int64_t group = in_.group(), vp = in_.padded_value(), state_size = in_.key_dim * vp;
    for (std::int64_t r = 0; r < group; ++r) {
      load_state<T>(in_.initial_state, document * in_.value_heads + key_head * group + r, in_.key_dim, in_.value_dim,
                    s.states + r * state_size, vp);
    }
    for (std::int64_t c = plan_.document_chunk[document]; c < plan_.document_chunk[document + 1]; ++c) {
      const Chunk& chunk = plan_.chunks[c];
      s.keys.load_keys(in_, chunk, key_head);
      s.keys.load_queries(in_, chunk, key_head);
      s.keys.transpose_keys(in_, chunk);
      s.keys.key_products(in_, chunk);
      s.keys.query_products(in_, chunk);
      for (std::int64_t r = 0; r < group; ++r) {
        const std::int64_t head = key_head * group + r;
        T* state = s.states + r * state_size;
        ChunkGates<T> gates;
        load_gates(in_, chunk, head, gates);
        decay_matrix(gates, chunk.tokens, s.decay);
        solve(chunk, head, gates, s, s.t);
        load_tile<T>(in_.dtype, in_.v, in_.documents, chunk, head, in_.value_dim, s.v, vp);
        chunk_update(in_, chunk.tokens, gates, s.keys.k, s.t, state, s.v, s.u, s.scaled, s.write);
        output(chunk, head, gates, state, s.u, s);
        chunk_state(in_, chunk.tokens, gates, s.keys.k, s.u, state, s.write);
      }
    }
    if (args_.final_state == nullptr) return;
    for (std::int64_t r = 0; r < group; ++r) {
      store_state(s.states + r * state_size, vp, in_.key_dim, in_.value_dim, args_.final_state,
                  document * in_.value_heads + key_head * group + r);
    }
  }

  // The same arithmetic in three phases; only the second follows the chunks of a document in sequence.
  void run_split() {
    const std::int64_t group = in_.group(), vp = in_.padded_value(), state_size = in_.key_dim * vp;
    run_items(pool_, plan_.chunk_count() * in_.key_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t c = item / in_.key_heads, key_head = item % in_.key_heads;
      const Chunk& chunk = plan_.chunks[c];
      ForwardScratch<T>& s = scratch_[slot];
      s.keys.load_keys(in_, chunk, key_head);
      s.keys.transpose_keys(in_, chunk);
      s.keys.key_products(in_, chunk);
      for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
        ChunkGates<T> gates;
        load_gates(in_, chunk, head, gates);
        decay_matrix(gates, chunk.tokens, s.decay);
        solve(chunk, head, gates, s, handover_.t + piece(c, head) * kChunk * kChunk);
      }
    });
    run_items(pool_, in_.documents.count * in_.value_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t document = plan_.longest_first[item / in_.value_heads], head = item % in_.value_heads;
      ForwardScratch<T>& s = scratch_[slot];
      load_state<T>(in_.initial_state, document * in_.value_heads + head, in_.key_dim, in_.value_dim, s.states, vp);
      for (std::int64_t c = plan_.document_chunk[document]; c < plan_.document_chunk[document + 1]; ++c) {
        const Chunk& chunk = plan_.chunks[c];
        T* u = handover_.u + piece(c, head) * kChunk * vp;
        std::copy_n(s.states, state_size, handover_.states + piece(c, head) * state_size);
        ChunkGates<T> gates;
        load_gates(in_, chunk, head, gates);
        s.keys.load_keys(in_, chunk, head / group);
        load_tile<T>(in_.dtype, in_.v, in_.documents, chunk, head, in_.value_dim, s.v, vp);
        chunk_update(in_, chunk.tokens, gates, s.keys.k, handover_.t + piece(c, head) * kChunk * kChunk, s.states, s.v, u, s.scaled,
                     s.write);
        chunk_state(in_, chunk.tokens, gates, s.keys.k, u, s.states, s.write);
      }
      if (args_.final_state != nullptr) {
        store_state(s.states, vp, in_.key_dim, in_.value_dim, args_.final_state, document * in_.value_heads + head);
      }
    });
    run_items(pool_, plan_.chunk_count() * in_.key_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t c = item / in_.key_heads, key_head = item % in_.key_heads;
      const Chunk& chunk = plan_.chunks[c];
      ForwardScratch<T>& s = scratch_[slot];
      s.keys.load_keys(in_, chunk, key_head);
      s.keys.load_queries(in_, chunk, key_head);
      s.keys.transpose_keys(in_, chunk);
      s.keys.query_products(in_, chunk);
      for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
        ChunkGates<T> gates;
        load_gates(in_, chunk, head, gates);
        decay_matrix(gates, chunk.tokens, s.decay);
        output(chunk, head, gates, handover_.states + piece(c, head) * state_size, handover_.u + piece(c, head) * kChunk * vp, s);
      }
    });
  }

  std::int64_t piece(std::int64_t chunk, std::int64_t head) const { return chunk * in_.value_heads + head; }

  // (5.4) T = (I + M)^-1, (5.3) M_ij = beta_i Gamma_ij (k_i.k_j) below the diagonal; kept for backward where asked.
  void solve(const Chunk& chunk, std::int64_t head, const ChunkGates<T>& gates, ForwardScratch<T>& s, T* t) {
    decayed<T>(s.decay, s.keys.kk, gates.beta, 0, true, chunk.tokens, s.m);
    invert_unit_lower(s.m, t, kChunk, chunk.tokens);
    if (args_.t_inverse == nullptr) return;
    const std::int64_t padded = round_up_16(chunk.tokens);
    if (padded < kChunk) {
      for (std::int64_t i = 0; i < chunk.tokens; ++i) std::fill(t + i * kChunk + padded, t + (i + 1) * kChunk, T(0));
    }
    MutableHeadView view{args_.t_inverse, 0, in_.value_heads * kChunk, kChunk};
    store_tile<T>(in_.dtype, view, in_.documents, chunk, head, kChunk, t, kChunk);
  }

  // (5.8) O = s (e^gamma (Q S) + P U), (5.7) P_ij = Gamma_ij (q_i.k_j) on and below the diagonal.
  void output(const Chunk& chunk, std::int64_t head, const ChunkGates<T>& gates, const T* state, const T* u, ForwardScratch<T>& s) {
    const std::int64_t kp = in_.padded_key(), vp = in_.padded_value();
    const T scale = static_cast<T>(in_.scale);
    HWY_ALIGN T factor[kChunk];
    for (std::int64_t i = 0; i < chunk.tokens; ++i) factor[i] = scale * gates.from_start[i];
    decayed<T>(s.decay, s.keys.qk, nullptr, scale, false, chunk.tokens, s.m);
    scale_rows(s.keys.q, factor, s.scaled, chunk.tokens, kp);
    multiply<Part::Full, false>(s.scaled, kp, state, vp, s.write, vp, chunk.tokens, vp, in_.key_dim, false);
    multiply<Part::LowerA, false>(s.m, kChunk, u, vp, s.write, vp, chunk.tokens, vp, chunk.tokens, true);
    store_tile<T>(in_.dtype, args_.o, in_.documents, chunk, head, in_.value_dim, s.write, vp);
  }

  const GatedDeltaRuleForwardArgs& args_;
  const DeltaRuleInputs in_;
  const ChunkPlan& plan_;
  ThreadPool& pool_;
  std::vector<ForwardScratch<T>> scratch_;
  ForwardHandover<T> handover_{};
};

// Returns the bytes of workspace; runs unless `count_only`.
std::int64_t delta_rule_forward(const GatedDeltaRuleForwardArgs& args, const ChunkPlan& plan, ThreadPool& pool, bool count_only) {
  std::int64_t bytes = 0;
  const auto go = [&](auto compute) {
    Forward<decltype(compute)> forward(args, plan, pool);
    bytes = forward.carve(count_only ? nullptr : args.workspace.data);
    if (!count_only) forward.run();
  };
  if (args.dtype == DType::F64) {
    go(double{});
  } else {
    go(float{});
  }
  return bytes;
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltron::kernels::cpu {

HWY_EXPORT(delta_rule_forward);

std::int64_t gated_delta_rule_forward_workspace_bytes(const GatedDeltaRuleForwardArgs& args, const StreamHandle& stream) {
  const ChunkPlan plan = make_chunk_plan(delta_rule_inputs(args), stream.pool->threads());
  return HWY_DYNAMIC_DISPATCH(delta_rule_forward)(args, plan, *stream.pool, true);
}

void gated_delta_rule_forward(const GatedDeltaRuleForwardArgs& args, const StreamHandle& stream) {
  const ChunkPlan plan = make_chunk_plan(delta_rule_inputs(args), stream.pool->threads());
  const std::int64_t needed = HWY_DYNAMIC_DISPATCH(delta_rule_forward)(args, plan, *stream.pool, true);
  DELTRON_CHECK_GE(args.workspace.bytes, needed, "workspace of gated_delta_rule_forward");
  HWY_DYNAMIC_DISPATCH(delta_rule_forward)(args, plan, *stream.pool, false);
}

const char* gated_delta_rule_kernel_name() {
  static const std::string name = std::string("cpu.chunked64.") + instruction_set();
  return name.c_str();
}

}  // namespace deltron::kernels::cpu
#endif
