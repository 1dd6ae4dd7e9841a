// The order of work of both delta rules, forward and backward: which chunk, head and state comes when, on which thread. What is
// computed is the rule's: a scratch type with the steps of one chunk (GatedForward, GatedBackward in gated_delta_rule_*-inl.h, and
// their counterparts of rule 2). Compiled once a Highway target. Knows no gate and no formula.
#if defined(DELTRON_KERNELS_CPU_DELTA_RULE_DRIVE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTRON_KERNELS_CPU_DELTA_RULE_DRIVE_INL_H
#undef DELTRON_KERNELS_CPU_DELTA_RULE_DRIVE_INL_H
#else
#define DELTRON_KERNELS_CPU_DELTA_RULE_DRIVE_INL_H
#endif

#include "kernels/cpu/delta_rule_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltron::kernels::cpu::HWY_NAMESPACE {

// Scratch: load_keys, load_queries, key_products (of a key head), load_gates, pair_products -> m, p (of a gate head), update -> u,
// output, next_state (of a value head), keep_inverse.
template <class Scratch>
class DeltaRuleForward {
 public:
  using T = typename Scratch::Value;
  using Args = typename Scratch::Args;
  using Inputs = typename Scratch::Inputs;

  DeltaRuleForward(const Args& args, const Inputs& in, const ChunkPlan& plan, ThreadPool& pool)
      : args_(args), in_(in), plan_(plan), pool_(pool), scratch_(static_cast<std::size_t>(pool.threads())) {}

  std::int64_t carve(void* memory) {
    Carver carver(memory);
    for (Scratch& scratch : scratch_) scratch.carve(carver, in_);
    if (plan_.split) {
      t_ = carver.take<T>(plan_.chunk_count() * in_.gate_heads * kChunk * kChunk);
      u_ = carver.take<T>(plan_.chunk_count() * in_.value_heads * kChunk * in_.padded_value());
      states_ = carver.take<T>(plan_.chunk_count() * in_.value_heads * in_.key_dim * in_.padded_value());
    }
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
  // function(gate head, first value head) for the gate heads of a key head.
  template <class F>
  void for_gate_heads(std::int64_t key_head, const F& function) const {
    const std::int64_t count = in_.gates_of_key();
    for (std::int64_t g = key_head * count; g < (key_head + 1) * count; ++g) function(g, g * in_.gate_group());
  }

  void whole_document(std::int64_t document, std::int64_t key_head, Scratch& s) {
    const std::int64_t group = in_.group(), vp = in_.padded_value(), state_size = in_.key_dim * vp;
    const std::int64_t first_head = key_head * group, state_index = document * in_.value_heads + first_head;
    for (std::int64_t r = 0; r < group; ++r)
      load_state<T>(in_.initial_state, state_index + r, in_.key_dim, in_.value_dim, s.states + r * state_size, vp);
    for (std::int64_t c = plan_.document_chunk[document]; c < plan_.document_chunk[document + 1]; ++c) {
      const Chunk& chunk = plan_.chunks[c];
      s.load_keys(in_, chunk, key_head);
      s.load_queries(in_, chunk, key_head);
      s.key_products(in_, chunk, true, true);
      for_gate_heads(key_head, [&](std::int64_t gate_head, std::int64_t begin) {
        s.load_gates(in_, chunk, gate_head, true);
        s.pair_products(in_, chunk, true, true);
        solve(chunk, gate_head, s, s.t);
        for (std::int64_t head = begin; head < begin + in_.gate_group(); ++head) {
          T* state = s.states + (head - first_head) * state_size;
          s.update(in_, chunk, head, s.t, state, s.y, s.u);
          s.output(in_, chunk, state, s.u, s.o);
          store_tile<T>(in_.dtype, args_.o, in_.documents, chunk, head, in_.value_dim, s.o, vp);
          s.next_state(in_, chunk, s.u, state);
        }
      });
    }
    if (args_.final_state == nullptr) return;
    for (std::int64_t r = 0; r < group; ++r)
      store_state(s.states + r * state_size, vp, in_.key_dim, in_.value_dim, args_.final_state, state_index + r);
  }

  // The same arithmetic in three phases; only the second follows the chunks of a document in sequence.
  void run_split() {
    const std::int64_t group = in_.group(), vp = in_.padded_value(), state_size = in_.key_dim * vp, tile = kChunk * vp;
    run_items(pool_, plan_.chunk_count() * in_.key_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t c = item / in_.key_heads, key_head = item % in_.key_heads;
      const Chunk& chunk = plan_.chunks[c];
      Scratch& s = scratch_[slot];
      s.load_keys(in_, chunk, key_head);
      s.key_products(in_, chunk, true, false);
      for_gate_heads(key_head, [&](std::int64_t gate_head, std::int64_t) {
        s.load_gates(in_, chunk, gate_head, false);
        s.pair_products(in_, chunk, true, false);
        solve(chunk, gate_head, s, inverse_of(c, gate_head));
      });
    });
    run_items(pool_, in_.documents.count * in_.value_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t document = plan_.longest_first[item / in_.value_heads], head = item % in_.value_heads;
      const std::int64_t gate_head = head / in_.gate_group();
      Scratch& s = scratch_[slot];
      load_state<T>(in_.initial_state, document * in_.value_heads + head, in_.key_dim, in_.value_dim, s.states, vp);
      for (std::int64_t c = plan_.document_chunk[document]; c < plan_.document_chunk[document + 1]; ++c) {
        const Chunk& chunk = plan_.chunks[c];
        T* u = u_ + piece(c, head) * tile;
        std::copy_n(s.states, state_size, states_ + piece(c, head) * state_size);
        s.load_keys(in_, chunk, head / group);
        s.load_gates(in_, chunk, gate_head, false);
        s.update(in_, chunk, head, inverse_of(c, gate_head), s.states, s.y, u);
        s.next_state(in_, chunk, u, s.states);
      }
      if (args_.final_state != nullptr)
        store_state(s.states, vp, in_.key_dim, in_.value_dim, args_.final_state, document * in_.value_heads + head);
    });
    run_items(pool_, plan_.chunk_count() * in_.key_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t c = item / in_.key_heads, key_head = item % in_.key_heads;
      const Chunk& chunk = plan_.chunks[c];
      Scratch& s = scratch_[slot];
      s.load_keys(in_, chunk, key_head);
      s.load_queries(in_, chunk, key_head);
      s.key_products(in_, chunk, false, true);
      for_gate_heads(key_head, [&](std::int64_t gate_head, std::int64_t begin) {
        s.load_gates(in_, chunk, gate_head, true);
        s.pair_products(in_, chunk, false, true);
        for (std::int64_t head = begin; head < begin + in_.gate_group(); ++head) {
          s.output(in_, chunk, states_ + piece(c, head) * state_size, u_ + piece(c, head) * tile, s.o);
          store_tile<T>(in_.dtype, args_.o, in_.documents, chunk, head, in_.value_dim, s.o, vp);
        }
      });
    });
  }

  std::int64_t piece(std::int64_t chunk, std::int64_t head) const { return chunk * in_.value_heads + head; }
  T* inverse_of(std::int64_t chunk, std::int64_t gate_head) const {
    return t_ + (chunk * in_.gate_heads + gate_head) * kChunk * kChunk;
  }

  // (5.4) t = (I + M)^-1, zeros above the diagonal.
  void solve(const Chunk& chunk, std::int64_t gate_head, const Scratch& s, T* t) {
    invert_unit_lower(s.m, t, kChunk, chunk.tokens);
    s.keep_inverse(in_, args_, chunk, gate_head, t);
  }

  const Args& args_;
  const Inputs in_;
  const ChunkPlan& plan_;
  ThreadPool& pool_;
  std::vector<Scratch> scratch_;
  // What passes between the phases when the work is split by chunks.
  T* t_ = nullptr;       // [chunks, Hg, 64, 64]
  T* u_ = nullptr;       // [chunks, Hv, 64, Vp]
  T* states_ = nullptr;  // [chunks, Hv, K, Vp] before each chunk
};

// What one phase of backward leaves for the next, by (chunk, head): all chunks and heads of the call when the work is split, else
// those of the (document, key head) that a thread is working on.
template <class T>
struct DeltaRuleHandover {
  T* t;        // [chunks, gate heads, 64, 64], rules that rebuild T only
  T* states;   // [chunks, heads, K, Vp] before each chunk
  T* y;        // [chunks, heads, 64, Vp], rules that need Y only
  T* u;        // [chunks, heads, 64, Vp]
  T* d_u;      // split only: dU of the chunk, then Z
  T* d_state;  // split only: gradient of the state after each chunk
};

// Scratch, besides the steps of forward: load_chunk (keys, queries and their products), first_inverse, inverse -> t,
// load_output_gradient, local_update_gradient -> dU, update_gradient -> dU, Z, state_gradient -> D, begin_gate_head,
// head_gradients, finish_gate_head, store_keys, add_gate_parameters.
template <class Scratch>
class DeltaRuleBackward {
 public:
  using T = typename Scratch::Value;
  using Args = typename Scratch::Args;
  using Inputs = typename Scratch::Inputs;

  DeltaRuleBackward(const Args& args, const Inputs& in, const ChunkPlan& plan, ThreadPool& pool)
      : args_(args),
        in_(in),
        plan_(plan),
        pool_(pool),
        scratch_(static_cast<std::size_t>(pool.threads())),
        handover_(plan.split ? 1 : static_cast<std::size_t>(pool.threads())) {}

  std::int64_t carve(void* memory) {
    Carver carver(memory);
    for (Scratch& scratch : scratch_) scratch.carve(carver, in_);
    const std::int64_t heads = plan_.split ? plan_.chunk_count() * in_.value_heads : plan_.longest * in_.group();
    const std::int64_t vp = in_.padded_value(), tile = kChunk * vp, state_size = in_.key_dim * vp;
    for (DeltaRuleHandover<T>& h : handover_) {
      h.t = carver.take<T>(Scratch::kRebuildsInverse ? heads / in_.gate_group() * kChunk * kChunk : 0);
      h.states = carver.take<T>(heads * state_size);
      h.y = carver.take<T>(Scratch::kNeedsY ? heads * tile : 0);
      h.u = carver.take<T>(heads * tile);
      h.d_u = carver.take<T>(plan_.split ? heads * tile : 0);
      h.d_state = carver.take<T>(plan_.split ? heads * state_size : 0);
    }
    const bool raw = in_.gate_form == GateForm::Raw;
    partials_ = raw ? carver.take<double>(plan_.chunk_count() * in_.gate_heads * Scratch::partial_size(in_)) : nullptr;
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
    if (partials_ != nullptr) add_gate_parameters();
  }

 private:
  // function(gate head, first value head) for the gate heads of a key head.
  template <class F>
  void for_gate_heads(std::int64_t key_head, const F& function) const {
    const std::int64_t count = in_.gates_of_key();
    for (std::int64_t g = key_head * count; g < (key_head + 1) * count; ++g) function(g, g * in_.gate_group());
  }

  // First forward over the chunks to rebuild states, Y and U, then backward over them, all value heads of a key head together, so
  // that dq, dk and the gradients of shared gates are summed over the group in rising head order.
  void whole_document(std::int64_t document, std::int64_t key_head, Scratch& s, DeltaRuleHandover<T>& h) {
    const std::int64_t group = in_.group(), vp = in_.padded_value(), state_size = in_.key_dim * vp, tile = kChunk * vp;
    const std::int64_t first = plan_.document_chunk[document], last = plan_.document_chunk[document + 1];
    const std::int64_t first_head = key_head * group, state_index = document * in_.value_heads + first_head;
    const auto piece_of = [&](std::int64_t c, std::int64_t head) { return (c - first) * group + head - first_head; };
    const auto inverse_of = [&](std::int64_t c, std::int64_t gate_head) {
      return h.t + ((c - first) * in_.gates_of_key() + gate_head % in_.gates_of_key()) * kChunk * kChunk;
    };
    for (std::int64_t r = 0; r < group; ++r)
      load_state<T>(in_.initial_state, state_index + r, in_.key_dim, in_.value_dim, s.states + r * state_size, vp);
    for (std::int64_t c = first; c < last; ++c) {
      const Chunk& chunk = plan_.chunks[c];
      s.load_keys(in_, chunk, key_head);
      for_gate_heads(key_head, [&](std::int64_t gate_head, std::int64_t begin) {
        s.load_gates(in_, chunk, gate_head, false);
        s.first_inverse(in_, args_, chunk, gate_head, false, inverse_of(c, gate_head));
        for (std::int64_t head = begin; head < begin + in_.gate_group(); ++head) {
          T* state = s.states + (head - first_head) * state_size;
          const std::int64_t piece = piece_of(c, head);
          std::copy_n(state, state_size, h.states + piece * state_size);
          s.update(in_, chunk, head, s.t, state, h.y + piece * tile, h.u + piece * tile);
          if (c + 1 < last) s.next_state(in_, chunk, h.u + piece * tile, state);
        }
      });
    }
    for (std::int64_t r = 0; r < group; ++r)
      load_state<T>(args_.d_final_state, state_index + r, in_.key_dim, in_.value_dim, s.states + r * state_size, vp);
    for (std::int64_t c = last - 1; c >= first; --c) {
      const Chunk& chunk = plan_.chunks[c];
      s.load_chunk(in_, chunk, key_head);
      for_gate_heads(key_head, [&](std::int64_t gate_head, std::int64_t begin) {
        s.load_gates(in_, chunk, gate_head, true);
        s.inverse(in_, args_, chunk, gate_head, inverse_of(c, gate_head));
        s.pair_products(in_, chunk, false, true);
        s.begin_gate_head(in_, chunk, gate_head % in_.gates_of_key() == 0);
        for (std::int64_t head = begin; head < begin + in_.gate_group(); ++head) {
          T* d_state = s.states + (head - first_head) * state_size;
          const std::int64_t piece = piece_of(c, head);
          s.load_output_gradient(in_, args_, chunk, head);
          s.local_update_gradient(in_, chunk, s.d_u);
          s.update_gradient(in_, chunk, d_state, s.d_u, s.z);
          s.head_gradients(in_, args_, chunk, head, h.states + piece * state_size, d_state, h.y + piece * tile, h.u + piece * tile,
                           s.z);
          s.state_gradient(in_, chunk, s.z, d_state);
        }
        s.finish_gate_head(in_, args_, chunk, gate_head, partial(c, gate_head));
      });
      s.store_keys(in_, args_, chunk, key_head);
    }
    if (args_.d_initial_state == nullptr) return;
    for (std::int64_t r = 0; r < group; ++r)
      store_state(s.states + r * state_size, vp, in_.key_dim, in_.value_dim, args_.d_initial_state, state_index + r);
  }

  // The same arithmetic in four phases; the second and the third follow the chunks of a document in sequence.
  void run_split() {
    const std::int64_t group = in_.group(), vp = in_.padded_value(), state_size = in_.key_dim * vp, tile = kChunk * vp;
    DeltaRuleHandover<T>& h = handover_[0];
    const auto piece_of = [&](std::int64_t c, std::int64_t head) { return c * in_.value_heads + head; };
    const auto inverse_of = [&](std::int64_t c, std::int64_t gate_head) {
      return h.t + (c * in_.gate_heads + gate_head) * kChunk * kChunk;
    };
    run_items(pool_, plan_.chunk_count() * in_.key_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t c = item / in_.key_heads, key_head = item % in_.key_heads;
      const Chunk& chunk = plan_.chunks[c];
      Scratch& s = scratch_[slot];
      s.load_chunk(in_, chunk, key_head);
      for_gate_heads(key_head, [&](std::int64_t gate_head, std::int64_t begin) {
        s.load_gates(in_, chunk, gate_head, true);
        s.first_inverse(in_, args_, chunk, gate_head, true, inverse_of(c, gate_head));
        for (std::int64_t head = begin; head < begin + in_.gate_group(); ++head) {
          s.load_output_gradient(in_, args_, chunk, head);
          s.local_update_gradient(in_, chunk, h.d_u + piece_of(c, head) * tile);
        }
      });
    });
    run_items(pool_, in_.documents.count * in_.value_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t document = plan_.longest_first[item / in_.value_heads], head = item % in_.value_heads;
      const std::int64_t gate_head = head / in_.gate_group();
      Scratch& s = scratch_[slot];
      load_state<T>(in_.initial_state, document * in_.value_heads + head, in_.key_dim, in_.value_dim, s.states, vp);
      const std::int64_t last = plan_.document_chunk[document + 1];
      for (std::int64_t c = plan_.document_chunk[document]; c < last; ++c) {
        const Chunk& chunk = plan_.chunks[c];
        const std::int64_t piece = piece_of(c, head);
        std::copy_n(s.states, state_size, h.states + piece * state_size);
        s.load_keys(in_, chunk, head / group);
        s.load_gates(in_, chunk, gate_head, false);
        s.inverse(in_, args_, chunk, gate_head, inverse_of(c, gate_head));
        s.update(in_, chunk, head, s.t, s.states, h.y + piece * tile, h.u + piece * tile);
        if (c + 1 < last) s.next_state(in_, chunk, h.u + piece * tile, s.states);
      }
    });
    run_items(pool_, in_.documents.count * in_.value_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t document = plan_.longest_first[item / in_.value_heads], head = item % in_.value_heads;
      const std::int64_t gate_head = head / in_.gate_group();
      Scratch& s = scratch_[slot];
      load_state<T>(args_.d_final_state, document * in_.value_heads + head, in_.key_dim, in_.value_dim, s.states, vp);
      for (std::int64_t c = plan_.document_chunk[document + 1] - 1; c >= plan_.document_chunk[document]; --c) {
        const Chunk& chunk = plan_.chunks[c];
        const std::int64_t piece = piece_of(c, head);
        std::copy_n(s.states, state_size, h.d_state + piece * state_size);
        s.load_keys(in_, chunk, head / group);
        s.load_queries(in_, chunk, head / group);
        s.load_gates(in_, chunk, gate_head, true);
        s.inverse(in_, args_, chunk, gate_head, inverse_of(c, gate_head));
        s.load_output_gradient(in_, args_, chunk, head);
        T* d_u = h.d_u + piece * tile;
        std::copy_n(d_u, chunk.tokens * vp, s.d_u);
        s.update_gradient(in_, chunk, s.states, s.d_u, d_u);
        s.state_gradient(in_, chunk, d_u, s.states);
      }
      if (args_.d_initial_state != nullptr)
        store_state(s.states, vp, in_.key_dim, in_.value_dim, args_.d_initial_state, document * in_.value_heads + head);
    });
    run_items(pool_, plan_.chunk_count() * in_.key_heads, [&](std::int64_t item, std::int64_t slot) {
      const std::int64_t c = item / in_.key_heads, key_head = item % in_.key_heads;
      const Chunk& chunk = plan_.chunks[c];
      Scratch& s = scratch_[slot];
      s.load_chunk(in_, chunk, key_head);
      for_gate_heads(key_head, [&](std::int64_t gate_head, std::int64_t begin) {
        s.load_gates(in_, chunk, gate_head, true);
        s.pair_products(in_, chunk, false, false);
        s.begin_gate_head(in_, chunk, gate_head % in_.gates_of_key() == 0);
        for (std::int64_t head = begin; head < begin + in_.gate_group(); ++head) {
          const std::int64_t piece = piece_of(c, head);
          s.load_output_gradient(in_, args_, chunk, head);
          s.head_gradients(in_, args_, chunk, head, h.states + piece * state_size, h.d_state + piece * state_size,
                           h.y + piece * tile, h.u + piece * tile, h.d_u + piece * tile);
        }
        s.finish_gate_head(in_, args_, chunk, gate_head, partial(c, gate_head));
      });
      s.store_keys(in_, args_, chunk, key_head);
    });
  }

  double* partial(std::int64_t chunk, std::int64_t gate_head) const {
    return partials_ == nullptr ? nullptr : partials_ + (chunk * in_.gate_heads + gate_head) * Scratch::partial_size(in_);
  }

  // Gradients of A_log (3.4) and dt_bias (3.3) += their partial sums in rising chunk order.
  void add_gate_parameters() {
    const std::int64_t size = Scratch::partial_size(in_);
    std::vector<double> sums(static_cast<std::size_t>(size));
    for (std::int64_t head = 0; head < in_.gate_heads; ++head) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::int64_t c = 0; c < plan_.chunk_count(); ++c) {
        for (std::int64_t i = 0; i < size; ++i) sums[static_cast<std::size_t>(i)] += partial(c, head)[i];
      }
      Scratch::add_gate_parameters(in_, args_, head, sums.data());
    }
  }

  const Args& args_;
  const Inputs in_;
  const ChunkPlan& plan_;
  ThreadPool& pool_;
  std::vector<Scratch> scratch_;
  std::vector<DeltaRuleHandover<T>> handover_;
  double* partials_ = nullptr;  // [chunks, Hg, partial_size], raw gates only
};

// Runs a driver on its workspace, or only counts the bytes of it. Scratch<T> is the rule's, T the compute type of `args.dtype`.
template <template <class> class Driver, template <class> class Scratch, class Args, class Inputs>
std::int64_t drive(const Args& args, const Inputs& in, const ChunkPlan& plan, ThreadPool& pool, bool count_only) {
  const auto go = [&](auto compute) {
    Driver<Scratch<decltype(compute)>> driver(args, in, plan, pool);
    const std::int64_t bytes = driver.carve(count_only ? nullptr : args.workspace.data);
    if (!count_only) driver.run();
    return bytes;
  };
  return args.dtype == DType::F64 ? go(double{}) : go(float{});
}

}  // namespace deltron::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
