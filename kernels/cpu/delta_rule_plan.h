// What forward and backward of the delta rules share outside vector code: the chunk grid of packed documents, the cut of work over
// threads, the layout of workspace, and offsets of strided views. Knows no arithmetic.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "kernels/delta_rule.h"
#include "kernels/views.h"
#include "src/base/thread_pool.h"

namespace deltron::kernels::cpu {

// The inputs that forward and backward of both rules have in common.
struct DeltaRuleInputs {
  std::int64_t tokens = 0, key_heads = 0, gate_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  Documents documents;
  DType dtype = DType::F32;
  HeadView q, k, v;
  GateForm gate_form = GateForm::Activated;
  const void* A_log = nullptr;
  const void* dt_bias = nullptr;
  bool allow_neg_eigval = false;
  bool use_qk_l2norm = false;
  double scale = 1;
  const void* initial_state = nullptr;

  std::int64_t group() const { return value_heads / key_heads; }        // value heads of a key head
  std::int64_t gate_group() const { return value_heads / gate_heads; }  // value heads of a gate head
  std::int64_t gates_of_key() const { return gate_heads / key_heads; }  // gate heads of a key head
  std::int64_t padded_key() const { return (key_dim + 15) / 16 * 16; }  // leading dimensions of tiles
  std::int64_t padded_value() const { return (value_dim + 15) / 16 * 16; }
};
// One decay and one write strength a token and value head.
struct ScalarGateInputs : DeltaRuleInputs {
  HeadView decay, beta;
  DType decay_dtype = DType::F32, beta_dtype = DType::F32;
};
// Decay and erasure by key channel of a gate head, writing by value channel.
struct ChannelGateInputs : DeltaRuleInputs {
  HeadView decay, erase, write;
  DType decay_dtype = DType::F32, erase_dtype = DType::F32, write_dtype = DType::F32;
};

template <class Inputs, class Args>
Inputs common_inputs(const Args& a, std::int64_t gate_heads) {
  Inputs in;
  in.tokens = a.tokens, in.key_heads = a.key_heads, in.gate_heads = gate_heads, in.value_heads = a.value_heads;
  in.key_dim = a.key_dim, in.value_dim = a.value_dim;
  in.documents = a.documents, in.dtype = a.dtype;
  in.q = a.q, in.k = a.k, in.v = a.v;
  in.gate_form = a.gate_form, in.A_log = a.A_log, in.dt_bias = a.dt_bias;
  in.allow_neg_eigval = a.allow_neg_eigval, in.use_qk_l2norm = a.use_qk_l2norm, in.scale = a.scale;
  in.initial_state = a.initial_state;
  return in;
}
template <class Args>
ScalarGateInputs scalar_gate_inputs(const Args& a) {
  ScalarGateInputs in = common_inputs<ScalarGateInputs>(a, a.value_heads);
  in.decay = a.decay, in.decay_dtype = a.decay_dtype, in.beta = a.beta, in.beta_dtype = a.beta_dtype;
  return in;
}
template <class Args>
ChannelGateInputs channel_gate_inputs(const Args& a) {
  ChannelGateInputs in = common_inputs<ChannelGateInputs>(a, a.gate_heads);
  in.decay = a.decay, in.decay_dtype = a.decay_dtype, in.erase = a.erase, in.erase_dtype = a.erase_dtype;
  in.write = a.write, in.write_dtype = a.write_dtype;
  return in;
}

// A chunk never crosses a document; every document starts its own grid.
struct Chunk {
  std::int64_t document;
  std::int64_t begin;   // first token, counted from the document's start
  std::int64_t tokens;  // 1..64
};

struct ChunkPlan {
  std::vector<Chunk> chunks;                 // documents in order, chunks in order
  std::vector<std::int64_t> document_chunk;  // [N+1]: first chunk of a document
  std::vector<std::int64_t> longest_first;   // documents by falling number of chunks: they are handed out in this order
  std::int64_t longest = 0;                  // chunks of the longest document
  // False: a work item is a whole (document, key head), its chunks in cache one after the other. True: too few or too unequal
  // items for the threads; chunks are prepared and finished in parallel and only the state passes from chunk to chunk in sequence.
  // Both do the same arithmetic in the same order.
  bool split = false;

  std::int64_t chunk_count() const { return static_cast<std::int64_t>(chunks.size()); }
};

// Checks sizes, offsets (start 0, non-decreasing, end = tokens) and grouping, then cuts.
ChunkPlan make_chunk_plan(const DeltaRuleInputs& in, int threads);

// Element offset of token `token` (counted from the start of `document`) and `head` in a view.
template <class View>
std::int64_t view_offset(const View& view, const Documents& documents, std::int64_t document, std::int64_t token,
                         std::int64_t head) {
  const std::int64_t base =
      view.sequence_stride == 0 ? documents.cu_seqlens[document] * view.token_stride : document * view.sequence_stride;
  return base + token * view.token_stride + head * view.head_stride;
}

// Calls function(item, slot) for every item; slot < threads names scratch memory that no other running call uses. Which thread and
// slot serve an item depends on timing, so an item's result must not depend on its slot.
template <class F>
void run_items(ThreadPool& pool, std::int64_t items, const F& function) {
  const std::int64_t slots = pool.threads();
  std::atomic<std::int64_t> next{0};
  pool.run(slots, [&](std::int64_t slot) {
    for (std::int64_t item = next.fetch_add(1, std::memory_order_relaxed); item < items;
         item = next.fetch_add(1, std::memory_order_relaxed)) {
      function(item, slot);
    }
  });
}

// Hands out pieces of workspace, each aligned to a cache line; with no memory behind it, it only counts.
class Carver {
 public:
  explicit Carver(void* memory) {
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(memory);
    next_ = (address + 63) / 64 * 64;
    begin_ = address;
  }
  template <class T>
  T* take(std::int64_t count) {
    T* piece = reinterpret_cast<T*>(next_);
    next_ += (static_cast<std::uintptr_t>(count) * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  // Counted from null; 64 bytes are added for the alignment of whatever memory comes.
  std::int64_t bytes() const { return static_cast<std::int64_t>(next_ - begin_) + 64; }

 private:
  std::uintptr_t begin_ = 0;
  std::uintptr_t next_ = 0;
};

}  // namespace deltron::kernels::cpu
