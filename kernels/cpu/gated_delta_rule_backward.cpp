// Backward of the gated delta rule, chunked (kernels/gated_delta_rule.h; docs/gdn.md section 7). First forward over the chunks of
// a document to rebuild states, Y and U from the inputs and the kept T; then backward over them, all value heads of a key head
// together, so that dq and dk are summed over the group in rising head order. Knows no autograd.
#include "kernels/gated_delta_rule.h"

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_delta_rule_backward.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/delta_rule_backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

// What one phase leaves for the next, by (chunk, head): all chunks and heads of the call when the work is split, else those of the
// (document, key head) that a thread is working on.
template <class T>
struct BackwardHandover {
  T* states;   // [chunks, heads, K, Vp] before each chunk
  T* y;        // [chunks, heads, 64, Vp]
  T* u;        // [chunks, heads, 64, Vp]
  T* d_u;      // split only: dU of the chunk, then Z
  T* d_state;  // split only: gradient of the state after each chunk

  void carve(Carver& carver, const DeltaRuleInputs& in, std::int64_t pieces, bool split) {
    const std::int64_t vp = in.padded_value();
    states = carver.take<T>(pieces * in.key_dim * vp);
    y = carver.take<T>(pieces * kChunk * vp);
    u = carver.take<T>(pieces * kChunk * vp);
    d_u = split ? carver.take<T>(pieces * kChunk * vp) : nullptr;
    d_state = split ? carver.take<T>(pieces * in.key_dim * vp) : nullptr;
  }
};

template <class T>
class Backward {
 public:
  Backward(const GatedDeltaRuleBackwardArgs& args, const ChunkPlan& plan, ThreadPool& pool)
      : args_(args),
        in_(delta_rule_inputs(args)),
        plan_(plan),
        pool_(pool),
        scratch_(static_cast<std::size_t>(pool.threads())),
        handover_(plan.split ? 1 : static_cast<std::size_t>(pool.threads())) {}

  std::int64_t carve(void* memory) {
    Carver carver(memory);
    for (BackwardScratch<T>& scratch : scratch_) scratch.carve(carver, in_);
    const std::int64_t pieces = plan_.split ? plan_.chunk_count() * in_.value_heads : plan_.longest * in_.group();
    for (BackwardHandover<T>& handover : handover_) handover.carve(carver, in_, pieces, plan_.split);
    gate_partials_ = in_.gate_form == GateForm::Raw ? carver.take<double>(plan_.chunk_count() * in_.value_heads * 2) : nullptr;
    return carver.bytes();
  }

  void run() {
    if (plan_.split) {
      run_split();
    } else {
      run_items(pool_, in_.documents.count * in_.key_heads, [&](std::int64_t item, std::int64_t slot) {
        whole_document(plan_.longest_first[item / in_.key_heads], item % in_.key_heads, scratch_[slot], handover_[slot]);
      });
    }
    if (in_.gate_form == GateForm::Raw) add_gate_parameters();
  }

 private:
  void whole_document(std::int64_t document, std::int64_t key_head, BackwardScratch<T>& s, BackwardHandover<T>& h) {
    const std::int64_t group = in_.group(), vp = in_.padded_value(), state_size = in_.key_dim * vp, tile = kChunk * vp;
    const std::int64_t first = plan_.document_chunk[document], last = plan_.document_chunk[document + 1];
    const std::int64_t state_index = document * in_.value_heads + key_head * group;
    for (std::int64_t r = 0; r < group; ++r)
      load_state<T>(in_.initial_state, state_index + r, in_.key_dim, in_.value_dim, s.states + r * state_size, vp);
    for (std::int64_t c = first; c < last; ++c) {
      s.load_keys(in_, plan_.chunks[c], key_head);
      for (std::int64_t r = 0; r < group; ++r) {
        const std::int64_t piece = (c - first) * group + r;
        std::copy_n(s.states + r * state_size, state_size, h.states + piece * state_size);
        rebuild(plan_.chunks[c], key_head * group + r, s, s.states + r * state_size, h.y + piece * tile, h.u + piece * tile,
                c + 1 < last);
      }
    }
    for (std::int64_t r = 0; r < group; ++r)
      load_state<T>(args_.d_final_state, state_index + r, in_.key_dim, in_.value_dim, s.states + r * state_size, vp);
    for (std::int64_t c = last - 1; c >= first; --c) {
      const Chunk& chunk = plan_.chunks[c];
      s.load_chunk(in_, chunk, key_head);
      for (std::int64_t r = 0; r < group; ++r) {
        const std::int64_t head = key_head * group + r, piece = (c - first) * group + r;
        T* d_state = s.states + r * state_size;
        ChunkGates<T> gates;
        load_gates(in_, chunk, head, gates);
        s.load_head(in_, args_, chunk, head, gates);
        local_update_gradient(in_, chunk.tokens, s, s.d_u);
        update_gradient(in_, chunk.tokens, gates, s.keys.k, s.t, d_state, s.d_u, s.z, s.scaled);
        head_gradients(in_, args_, chunk, head, gates, r == 0, h.states + piece * state_size, d_state, h.y + piece * tile,
                       h.u + piece * tile, s.z, s, partial(c, head));
        state_gradient(in_, chunk.tokens, gates, s.keys.q, s.keys.k, s.d_o, s.z, s.v_scaled, d_state);
      }
      s.store_keys(in_, args_, chunk, key_head);
    }
    if (args_.d_initial_state == nullptr) return;
    for (std::int64_t r = 0; r < group; ++r)
      store_state(s.states + r * state_size, vp, in_.key_dim, in_.value_dim, args_.d_initial_state, state_index + r);
  }

  // The same arithmetic in four phases; the first and the third follow the chunks of a document in sequence.
  void run_split() {
    const std::int64_t group = in_.group(), vp = in_.padded_value(), state_size = in_.key_dim * vp, tile = kChunk * vp;
    BackwardHandover<T>& h = handover_[0];
    const auto piece_of = [&](std::int64_t c, std::int64_t head) { return c * in_.value_heads + head; };
    run_items(pool_, in_.documents.count * in_.value_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t document = plan_.longest_first[item / in_.value_heads], head = item % in_.value_heads;
      BackwardScratch<T>& s = scratch_[slot];
      load_state<T>(in_.initial_state, document * in_.value_heads + head, in_.key_dim, in_.value_dim, s.states, vp);
      const std::int64_t last = plan_.document_chunk[document + 1];
      for (std::int64_t c = plan_.document_chunk[document]; c < last; ++c) {
        const std::int64_t piece = piece_of(c, head);
        s.load_keys(in_, plan_.chunks[c], head / group);
        std::copy_n(s.states, state_size, h.states + piece * state_size);
        rebuild(plan_.chunks[c], head, s, s.states, h.y + piece * tile, h.u + piece * tile, c + 1 < last);
      }
    });
    run_items(pool_, plan_.chunk_count() * in_.key_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t c = item / in_.key_heads, key_head = item % in_.key_heads;
      BackwardScratch<T>& s = scratch_[slot];
      s.load_chunk(in_, plan_.chunks[c], key_head);
      for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
        ChunkGates<T> gates;
        load_gates(in_, plan_.chunks[c], head, gates);
        s.load_head(in_, args_, plan_.chunks[c], head, gates);
        local_update_gradient(in_, plan_.chunks[c].tokens, s, h.d_u + piece_of(c, head) * tile);
      }
    });
    run_items(pool_, in_.documents.count * in_.value_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t document = plan_.longest_first[item / in_.value_heads], head = item % in_.value_heads;
      BackwardScratch<T>& s = scratch_[slot];
      load_state<T>(args_.d_final_state, document * in_.value_heads + head, in_.key_dim, in_.value_dim, s.states, vp);
      for (std::int64_t c = plan_.document_chunk[document + 1] - 1; c >= plan_.document_chunk[document]; --c) {
        const Chunk& chunk = plan_.chunks[c];
        const std::int64_t piece = piece_of(c, head);
        std::copy_n(s.states, state_size, h.d_state + piece * state_size);
        ChunkGates<T> gates;
        load_gates(in_, chunk, head, gates);
        s.load_keys(in_, chunk, head / group);
        s.keys.load_queries(in_, chunk, head / group);
        s.load_inverse(in_, args_, chunk, head, gates);
        s.load_output_gradient(in_, args_, chunk, head);
        T* d_u = h.d_u + piece * tile;
        std::copy_n(d_u, chunk.tokens * vp, s.d_u);
        update_gradient(in_, chunk.tokens, gates, s.keys.k, s.t, s.states, s.d_u, d_u, s.scaled);
        state_gradient(in_, chunk.tokens, gates, s.keys.q, s.keys.k, s.d_o, d_u, s.v_scaled, s.states);
      }
      if (args_.d_initial_state != nullptr) {
        store_state(s.states, vp, in_.key_dim, in_.value_dim, args_.d_initial_state, document * in_.value_heads + head);
      }
    });
    run_items(pool_, plan_.chunk_count() * in_.key_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t c = item / in_.key_heads, key_head = item % in_.key_heads;
      const Chunk& chunk = plan_.chunks[c];
      BackwardScratch<T>& s = scratch_[slot];
      s.load_chunk(in_, chunk, key_head);
      for (std::int64_t r = 0; r < group; ++r) {
        const std::int64_t head = key_head * group + r, piece = piece_of(c, head);
        ChunkGates<T> gates;
        load_gates(in_, chunk, head, gates);
        s.load_head(in_, args_, chunk, head, gates);
        head_gradients(in_, args_, chunk, head, gates, r == 0, h.states + piece * state_size, h.d_state + piece * state_size,
                       h.y + piece * tile, h.u + piece * tile, h.d_u + piece * tile, s, partial(c, head));
      }
      s.store_keys(in_, args_, chunk, key_head);
    });
  }

  // Y, U and (unless it is the last chunk) the next state, from the kept T. s.keys.k holds the keys.
  void rebuild(const Chunk& chunk, std::int64_t head, BackwardScratch<T>& s, T* state, T* y, T* u, bool next_state) {
    ChunkGates<T> gates;
    load_gates(in_, chunk, head, gates);
    s.load_inverse(in_, args_, chunk, head, gates);
    load_tile<T>(in_.dtype, in_.v, in_.documents, chunk, head, in_.value_dim, y, in_.padded_value());
    chunk_update(in_, chunk.tokens, gates, s.keys.k, s.t, state, y, u, s.scaled, s.v_scaled);
    if (next_state) chunk_state(in_, chunk.tokens, gates, s.keys.k, u, state, s.v_scaled);
  }

  double* partial(std::int64_t chunk, std::int64_t head) const {
    return gate_partials_ == nullptr ? nullptr : gate_partials_ + (chunk * in_.value_heads + head) * 2;
  }

  // dA_log (3.4) and d(dt_bias) (3.3) += their partial sums in rising chunk order.
  void add_gate_parameters() {
    for (std::int64_t head = 0; head < in_.value_heads; ++head) {
      double d_A_log = 0, d_dt_bias = 0;
      for (std::int64_t c = 0; c < plan_.chunk_count(); ++c) {
        d_A_log += partial(c, head)[0];
        d_dt_bias += partial(c, head)[1];
      }
      if (args_.d_A_log != nullptr) static_cast<T*>(args_.d_A_log)[head] += static_cast<T>(d_A_log);
      if (args_.d_dt_bias != nullptr) static_cast<T*>(args_.d_dt_bias)[head] += static_cast<T>(d_dt_bias);
    }
  }

  const GatedDeltaRuleBackwardArgs& args_;
  const DeltaRuleInputs in_;
  const ChunkPlan& plan_;
  ThreadPool& pool_;
  std::vector<BackwardScratch<T>> scratch_;
  std::vector<BackwardHandover<T>> handover_;
  double* gate_partials_ = nullptr;  // [chunks, Hv, 2]
};

// Returns the bytes of workspace; runs unless `count_only`.
std::int64_t delta_rule_backward(const GatedDeltaRuleBackwardArgs& args, const ChunkPlan& plan, ThreadPool& pool, bool count_only) {
  std::int64_t bytes = 0;
  const auto go = [&](auto compute) {
    Backward<decltype(compute)> backward(args, plan, pool);
    bytes = backward.carve(count_only ? nullptr : args.workspace.data);
    if (!count_only) backward.run();
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

HWY_EXPORT(delta_rule_backward);

std::int64_t gated_delta_rule_backward_workspace_bytes(const GatedDeltaRuleBackwardArgs& args, const StreamHandle& stream) {
  const ChunkPlan plan = make_chunk_plan(delta_rule_inputs(args), stream.pool->threads());
  return HWY_DYNAMIC_DISPATCH(delta_rule_backward)(args, plan, *stream.pool, true);
}

void gated_delta_rule_backward(const GatedDeltaRuleBackwardArgs& args, const StreamHandle& stream) {
  const ChunkPlan plan = make_chunk_plan(delta_rule_inputs(args), stream.pool->threads());
  const std::int64_t needed = HWY_DYNAMIC_DISPATCH(delta_rule_backward)(args, plan, *stream.pool, true);
  DELTRON_CHECK_GE(args.workspace.bytes, needed, "workspace of gated_delta_rule_backward");
  DELTRON_CHECK(args.t_inverse != nullptr || args.tokens == 0, "gated_delta_rule_backward needs the t_inverse that forward kept");
  HWY_DYNAMIC_DISPATCH(delta_rule_backward)(args, plan, *stream.pool, false);
}

}  // namespace deltron::kernels::cpu
#endif
