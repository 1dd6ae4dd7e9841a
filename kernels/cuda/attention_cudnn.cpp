// See attention_cudnn.h. The graphs of cuDNN's front end: forward and deterministic backward, causal from the top left, for a dense
// batch or for documents by ragged offsets with a padding mask. The only file that includes the front end.
#include <cudnn_frontend.h>

#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/attention_places.h"
#include "kernels/cuda/cudnn_library.h"
#include "kernels/cuda/error.h"
#include "src/base/check.h"
#include "src/base/error.h"

namespace deltron::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Tensor_attributes>;

// The order of offsets in AttentionPlacesArgs, and the numbers of the graphs' tensors.
enum Slot : std::int64_t { kQ, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV, kSlots };
static_assert(kSlots == kFusedTensors);
constexpr std::int64_t kOffsetUid = 20, kLengthUid = 40, kAlignment = 256;
std::int64_t uid(std::int64_t slot) { return slot + 1; }

struct SlotView {
  const void* data = nullptr;
  std::int64_t heads = 0, dim = 0, sequence = 0, token = 0, head = 0;  // strides in elements
  bool output = false;
  std::size_t element = 2;
};

[[noreturn]] void fail(const char* what, const std::string& values) {
  throw Error(ErrorCode::DeviceFailed, ErrorText{std::string("cuDNN attention: ") + what, cudnn_library().path, values, "",
                                                 "set model.attention_backend: local, and report the message"});
}
void check(fe::error_t status, const char* what) {
  if (status.is_bad()) fail(what, status.get_message());
}
void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) fail(what, cudnnGetErrorString(status));
}

// What decides a plan. Everything that a call has but pointers.
using Key = std::vector<std::int64_t>;

struct Problem {
  bool backward = false, stats = false;
  DType dtype = DType::BF16;
  double scale = 1;
  FusedAttentionCall call;
  SlotView slots[kSlots];  // heads and data of this call's range
};

Key key_of(const Problem& p) {
  std::int64_t scale_bits = 0;
  static_assert(sizeof(scale_bits) == sizeof(p.scale));
  std::memcpy(&scale_bits, &p.scale, sizeof(scale_bits));
  Key key = {p.backward, p.stats, static_cast<std::int64_t>(p.dtype), scale_bits, p.call.ragged, p.call.batch, p.call.length};
  for (const SlotView& slot : p.slots) key.insert(key.end(), {slot.heads, slot.dim, slot.sequence, slot.token, slot.head});
  return key;
}

struct Plan {
  std::unique_ptr<fe::graph::Graph> graph;
  std::int64_t workspace = 0;
};

class CudnnAttention : public FusedAttention {
 public:
  ~CudnnAttention() override {
    plans_.clear();
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }

  std::int64_t forward_workspace_bytes(const AttentionForwardArgs& args) override {
    return most_workspace(problem_of(args), args, false);
  }
  std::int64_t backward_workspace_bytes(const AttentionBackwardArgs& args) override {
    return most_workspace(problem_of(args), args, true);
  }
  void forward(const AttentionForwardArgs& args, void* stream) override { run(problem_of(args), args, false, stream); }
  void backward(const AttentionBackwardArgs& args, void* stream) override { run(problem_of(args), args, true, stream); }
  std::int64_t plans() const override { return static_cast<std::int64_t>(plans_.size()); }

 private:
  template <class View>
  static SlotView slot(const View& view, std::int64_t heads, std::int64_t dim, bool output = false) {
    return {view.data, heads, dim, view.sequence_stride, view.token_stride, view.head_stride, output};
  }
  template <class Args>
  static Problem common(const Args& args) {
    Problem p;
    p.dtype = args.dtype;
    p.scale = args.scale;
    p.slots[kQ] = slot(args.q, args.query_heads, args.dim);
    p.slots[kK] = slot(args.k, args.kv_heads, args.dim);
    p.slots[kV] = slot(args.v, args.kv_heads, args.dim);
    p.slots[kO] = slot(args.o, args.query_heads, args.dim);
    p.slots[kStats] = {args.log_sum_exp, args.query_heads, 1, 0, 0, 0, false, sizeof(float)};
    return p;
  }
  static Problem problem_of(const AttentionForwardArgs& args) {
    Problem p = common(args);
    p.stats = args.log_sum_exp != nullptr;
    p.slots[kO].output = p.slots[kStats].output = true;
    return p;
  }
  static Problem problem_of(const AttentionBackwardArgs& args) {
    Problem p = common(args);
    p.backward = p.stats = true;
    p.slots[kDO] = slot(args.d_o, args.query_heads, args.dim);
    p.slots[kDQ] = slot(args.dq, args.query_heads, args.dim, true);
    p.slots[kDK] = slot(args.dk, args.kv_heads, args.dim, true);
    p.slots[kDV] = slot(args.dv, args.kv_heads, args.dim, true);
    return p;
  }

  // The part of the problem that one call serves: its heads, and its first document where the batch is dense.
  static Problem part(const Problem& whole, const FusedAttentionCall& call, std::int64_t group, bool dense) {
    Problem p = whole;
    p.call = call;
    SlotView& stats = p.slots[kStats];
    stats.token = dense ? 1 : stats.heads;
    stats.head = dense ? call.length : 1;
    stats.sequence = dense ? stats.heads * call.length : 0;
    for (std::int64_t i = 0; i < kSlots; ++i) {
      SlotView& s = p.slots[i];
      if (s.heads == 0) continue;
      if (s.sequence == 0) s.sequence = call.length * s.token;
      const bool of_keys = i == kK || i == kV || i == kDK || i == kDV;
      const std::int64_t first_head = call.first_kv_head * (of_keys ? 1 : group);
      s.heads = call.kv_heads * (of_keys ? 1 : group);
      const std::int64_t elements = first_head * s.head + (dense ? call.first * s.sequence : 0);
      if (s.data != nullptr) s.data = static_cast<const char*>(s.data) + elements * static_cast<std::int64_t>(s.element);
    }
    // A packed [documents, heads, length]: what cuDNN below 9.26 insists on, also where one document's heads are a part.
    if (dense) stats.sequence = stats.heads * call.length;
    return p;
  }

  void open() {
    if (handle_ != nullptr) return;
    if (cudnn_library().handle == nullptr) {
      throw Error(
          ErrorCode::DeviceUnavailable,
          ErrorText{"cuDNN is missing", "model.attention_backend", cudnn_library().problem, "the fused attention is cuDNN's",
                    "install cuDNN 9, or name its file in DELTRON_CUDNN, or set model.attention_backend: local"});
    }
    check(cudnnCreate(&handle_), "start");
  }

  const Plan& plan(const Problem& p) {
    const Key key = key_of(p);
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second;
    open();
    return plans_.emplace(key, build(p)).first->second;
  }

  Plan build(const Problem& p) {
    Plan plan;
    plan.graph = std::make_unique<fe::graph::Graph>();
    fe::graph::Graph& graph = *plan.graph;
    graph.set_io_data_type(p.dtype == DType::BF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const FusedAttentionCall& call = p.call;
    const auto describe = [&](Tensor_attributes& tensor, Slot slot) {
      const SlotView& s = p.slots[slot];
      tensor.set_uid(uid(slot)).set_dim({call.batch, s.heads, call.length, s.dim}).set_stride({s.sequence, s.head, s.token, 1});
      if (slot == kStats) tensor.set_data_type(fe::DataType_t::FLOAT);
      if (call.ragged) {
        tensor.set_ragged_offset(graph.tensor(Tensor_attributes()
                                                  .set_uid(kOffsetUid + slot)
                                                  .set_dim({call.batch + 1, 1, 1, 1})
                                                  .set_stride({1, 1, 1, 1})
                                                  .set_data_type(fe::DataType_t::INT64)));
      }
    };
    const auto input = [&](Slot slot) {
      Tensor_attributes tensor;
      describe(tensor, slot);
      return graph.tensor(tensor);
    };
    const auto output = [&](const TensorPtr& tensor, Slot slot) {
      describe(*tensor, slot);
      tensor->set_output(true);
    };
    const auto length = [&](std::int64_t which) {
      return graph.tensor(Tensor_attributes()
                              .set_uid(kLengthUid + which)
                              .set_dim({call.batch, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT32));
    };
    const auto settle = [&](auto& options) {
      options.set_attn_scale(static_cast<float>(p.scale));
      options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
      if (call.ragged) options.set_padding_mask(true).set_seq_len_q(length(0)).set_seq_len_kv(length(1));
    };
    const TensorPtr q = input(kQ), k = input(kK), v = input(kV);
    if (p.backward) {
      fe::graph::SDPA_backward_attributes options;
      settle(options);
      options.set_deterministic_algorithm(true);
      const TensorPtr o = input(kO), d_o = input(kDO), stats = input(kStats);
      const auto gradients = graph.sdpa_backward(q, k, v, o, d_o, stats, options);
      output(gradients[0], kDQ);
      output(gradients[1], kDK);
      output(gradients[2], kDV);
    } else {
      fe::graph::SDPA_attributes options;
      settle(options);
      options.set_generate_stats(p.stats);
      const auto results = graph.sdpa(q, k, v, options);
      output(results[0], kO);
      if (p.stats) output(results[1], kStats);
    }
    check(graph.build(handle_, {fe::HeurMode_t::A}), p.backward ? "no plan for this backward" : "no plan for this forward");
    check(graph.get_workspace_size(plan.workspace), "workspace");
    return plan;
  }

  template <class Args>
  std::int64_t most_workspace(const Problem& whole, const Args& args, bool backward) {
    const FusedAttentionSchedule schedule = fused_attention_schedule(args.documents, args.query_heads, args.kv_heads, backward);
    std::int64_t most = 0;
    for (const FusedAttentionCall& call : schedule.calls) {
      const Problem p = part(whole, call, args.query_heads / args.kv_heads, schedule.dense);
      most = std::max(most, kAlignment + fused_places_bytes(call) + plan(p).workspace);
    }
    return most;
  }

  template <class Args>
  void run(const Problem& whole, const Args& args, bool backward, void* stream) {
    const FusedAttentionSchedule schedule = fused_attention_schedule(args.documents, args.query_heads, args.kv_heads, backward);
    open();
    check(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream)), "stream");
    const auto start = reinterpret_cast<std::uintptr_t>(args.workspace.data);
    char* const space = reinterpret_cast<char*>((start + kAlignment - 1) / kAlignment * kAlignment);
    for (const FusedAttentionCall& call : schedule.calls) {
      const Problem p = part(whole, call, args.query_heads / args.kv_heads, schedule.dense);
      const Plan& chosen = plan(p);
      DELTRON_CHECK_GE(args.workspace.bytes, kAlignment + fused_places_bytes(call) + chosen.workspace,
                       "fused attention: workspace");
      std::unordered_map<std::int64_t, void*> pointers;
      const auto used = [&](std::int64_t slot) { return p.slots[slot].heads > 0 && (slot != kStats || p.stats); };
      for (std::int64_t i = 0; i < kSlots; ++i) {
        if (used(i)) pointers[uid(i)] = const_cast<void*>(p.slots[i].data);
      }
      if (call.ragged) {
        AttentionPlacesArgs places;
        places.documents = args.documents;
        places.tokens = args.tokens;
        places.call = call;
        for (std::int64_t i = 0; i < kSlots; ++i) places.strides[i] = p.slots[i].token;
        places.lengths = reinterpret_cast<std::int32_t*>(space);
        places.offsets = reinterpret_cast<std::int64_t*>(space + (call.batch * 4 + kAlignment - 1) / kAlignment * kAlignment);
        attention_places(places, stream);
        pointers[kLengthUid] = pointers[kLengthUid + 1] = places.lengths;
        for (std::int64_t i = 0; i < kSlots; ++i) {
          if (used(i)) pointers[kOffsetUid + i] = places.offsets + i * (call.batch + 1);
        }
      }
      char* const rest = space + fused_places_bytes(call);
      // Heads above 128 channels behind a document's end: cuDNN multiplies what it never wrote by zero, NaN included.
      const bool padded = call.ragged || call.length % 128 != 0;
      if (backward && padded && args.dim > kFusedNarrowDim && chosen.workspace > 0) {
        check_status(static_cast<int>(
                         cudaMemsetAsync(rest, 0, static_cast<std::size_t>(chosen.workspace), static_cast<cudaStream_t>(stream))),
                     "attention workspace");
      }
      check(chosen.graph->execute(handle_, pointers, rest), "launch");
    }
  }

  cudnnHandle_t handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

}  // namespace

FusedAttentionInfo fused_attention_info() {
  const CudnnLibrary& library = cudnn_library();
  return {true, library.handle != nullptr, library.path, library.version, library.problem, library.number};
}

std::shared_ptr<FusedAttention> make_fused_attention() { return std::make_shared<CudnnAttention>(); }

}  // namespace deltron::kernels::cuda
