// Either delta rule on device memory alone: inputs that repeat by token and by document, calls on any run of tokens, so that one pass
// can be set against pieces. For sizes at which tests/support/delta_rule_runner.h would need too much of the host.
#pragma once

#include <map>

#include "tests/kernels/gpu/device_array.h"

namespace deltron::test {

struct RuleShape {
  std::int64_t key_heads = 1, value_heads = 2, key_dim = 64, value_dim = 64;
  DType dtype = DType::BF16;
  double decay = 0.05;  // g lies in (-2 decay, 0)
};

struct RuleOutputs {
  std::map<std::string, DeviceArray> of_tokens;  // [tokens, ...]
  DeviceArray final_state, d_initial_state;      // [documents, Hv, K, V] fp32; empty: not wanted
};

// The second rule: key gates of as many heads as the values.
template <bool kSecond>
class RuleOnDevice {
 public:
  using Forward = std::conditional_t<kSecond, kernels::GatedDeltaRule2ForwardArgs, kernels::GatedDeltaRuleForwardArgs>;
  using Backward = std::conditional_t<kSecond, kernels::GatedDeltaRule2BackwardArgs, kernels::GatedDeltaRuleBackwardArgs>;

  // Inputs of `tokens` tokens, the same every `period`; states of `documents` documents, the same every `state_period` (0: no states).
  RuleOnDevice(const RuleShape& shape, std::int64_t tokens, std::int64_t period, std::int64_t documents = 0, std::int64_t state_period = 0)
      : shape_(shape), tokens_(tokens) {
    std::uint64_t seed = kSecond ? 500 : 400;
    for (const auto& [name, row] : rows()) {
      const bool decay = name == "decay", gate = name == "beta" || name == "erase" || name == "write";
      DeviceArray array(type_of(name), tokens * row);
      TestRandom random(seed++);
      array.repeat(decay ? random.values(period * row, shape.decay, -shape.decay) : gate ? random.values(period * row, 0.5, 0.5) : random.values(period * row));
      inputs_.emplace(name, std::move(array));
    }
    if (state_period == 0) return;
    for (DeviceArray* state : {&initial_state, &d_final_state}) {
      *state = DeviceArray(DType::F32, documents * state_count());
      state->repeat(TestRandom(seed++).values(state_period * state_count()));
    }
  }
  DeviceArray initial_state, d_final_state;

  std::int64_t state_count() const { return shape_.value_heads * shape_.key_dim * shape_.value_dim; }
  RuleOutputs outputs(std::int64_t documents, bool states = true) const {
    RuleOutputs out;
    for (const auto& [name, row] : rows()) {
      out.of_tokens.emplace(name == "d_o" ? "o" : "d_" + name, DeviceArray(output_type(name), tokens_ * row));
    }
    if (!states) return out;
    out.final_state = DeviceArray(DType::F32, documents * state_count());
    out.d_initial_state = DeviceArray(DType::F32, documents * state_count());
    return out;
  }

  // Tokens from `first` on; `offsets` count from there. Null states: none.
  void forward(const std::vector<std::int64_t>& offsets, const RuleOutputs& out, std::int64_t first = 0, const char* initial = nullptr,
               char* final = nullptr) {
    Forward args = shared<Forward>(first, offsets);
    args.initial_state = initial, args.final_state = final;
    args.o = mutable_view(out.of_tokens.at("o"), "d_o", first);
    const StreamHandle stream = device_stream();
    if constexpr (kSecond) {
      forward_kernel = kernels::cuda::gated_delta_rule_2_kernel_name(args);
      launch(args, kernels::cuda::gated_delta_rule_2_forward_workspace_bytes(args, stream), &kernels::cuda::gated_delta_rule_2_forward);
    } else {
      forward_kernel = kernels::cuda::gated_delta_rule_kernel_name(args);
      launch(args, kernels::cuda::gated_delta_rule_forward_workspace_bytes(args, stream), &kernels::cuda::gated_delta_rule_forward);
    }
  }
  void backward(const std::vector<std::int64_t>& offsets, const RuleOutputs& out, std::int64_t first = 0, const char* initial = nullptr,
                const char* d_final = nullptr, char* d_initial = nullptr) {
    Backward args = shared<Backward>(first, offsets);
    args.initial_state = initial, args.d_final_state = d_final, args.d_initial_state = d_initial;
    args.d_o = view("d_o", first);
    const auto slot = [&](const char* name) { return mutable_view(out.of_tokens.at(std::string("d_") + name), name, first); };
    args.dq = slot("q"), args.dk = slot("k"), args.dv = slot("v"), args.d_decay = slot("decay");
    args.d_gate_dtype = gate_gradient();
    const StreamHandle stream = device_stream();
    if constexpr (kSecond) {
      args.d_erase = slot("erase"), args.d_write = slot("write");
      backward_kernel = kernels::cuda::gated_delta_rule_2_kernel_name(args);
      launch(args, kernels::cuda::gated_delta_rule_2_backward_workspace_bytes(args, stream), &kernels::cuda::gated_delta_rule_2_backward);
    } else {
      args.d_beta = slot("beta");
      backward_kernel = kernels::cuda::gated_delta_rule_kernel_name(args);
      launch(args, kernels::cuda::gated_delta_rule_backward_workspace_bytes(args, stream), &kernels::cuda::gated_delta_rule_backward);
    }
  }
  // Both, with all states.
  void both(const std::vector<std::int64_t>& offsets, const RuleOutputs& out) {
    const bool states = initial_state.count() > 0;
    forward(offsets, out, 0, states ? initial_state.data() : nullptr, states ? out.final_state.data() : nullptr);
    backward(offsets, out, 0, states ? initial_state.data() : nullptr, states ? d_final_state.data() : nullptr,
             states ? out.d_initial_state.data() : nullptr);
  }
  std::string forward_kernel, backward_kernel;

 private:
  std::vector<std::pair<std::string, std::int64_t>> rows() const {
    const std::int64_t keys = shape_.key_heads * shape_.key_dim, values = shape_.value_heads * shape_.value_dim;
    std::vector<std::pair<std::string, std::int64_t>> all = {{"q", keys}, {"k", keys}, {"v", values}, {"d_o", values}};
    if (kSecond) {
      const std::int64_t gates = shape_.value_heads * shape_.key_dim;
      all.insert(all.end(), {{"decay", gates}, {"erase", gates}, {"write", values}});
    } else {
      all.insert(all.end(), {{"decay", shape_.value_heads}, {"beta", shape_.value_heads}});
    }
    return all;
  }
  static bool is_gate(const std::string& name) { return name == "decay" || name == "beta" || name == "erase" || name == "write"; }
  DType type_of(const std::string& name) const { return name == "decay" || name == "beta" ? DType::F32 : shape_.dtype; }
  DType gate_gradient() const { return kSecond ? shape_.dtype : DType::F32; }
  DType output_type(const std::string& name) const { return is_gate(name) ? gate_gradient() : shape_.dtype; }

  template <class View>
  View placed(const DeviceArray& array, const std::string& name, std::int64_t first) const {
    View view{};
    for (const auto& [known, row] : rows()) {
      if (known != name) continue;
      view.data = array.at(first * row);
      view.token_stride = row;
      view.head_stride = name == "beta" || (!kSecond && name == "decay") ? 1
                         : name == "v" || name == "d_o" || name == "write" ? shape_.value_dim
                                                                            : shape_.key_dim;
    }
    return view;
  }
  kernels::HeadView view(const std::string& name, std::int64_t first) const { return placed<kernels::HeadView>(inputs_.at(name), name, first); }
  kernels::MutableHeadView mutable_view(const DeviceArray& array, const std::string& name, std::int64_t first) const {
    return placed<kernels::MutableHeadView>(array, name, first);
  }

  template <class Args>
  Args shared(std::int64_t first, const std::vector<std::int64_t>& offsets) {
    if (offsets_ != offsets) {
      offsets_ = offsets;
      device_offsets_ = DeviceArray(DType::I64, static_cast<std::int64_t>(offsets.size()));
      std::vector<char> bytes(offsets.size() * 8);
      std::memcpy(bytes.data(), offsets.data(), bytes.size());
      device_offsets_.repeat(bytes);
    }
    Args args;
    args.tokens = offsets.back(), args.key_heads = shape_.key_heads, args.value_heads = shape_.value_heads;
    args.key_dim = shape_.key_dim, args.value_dim = shape_.value_dim, args.dtype = shape_.dtype;
    args.documents = {static_cast<std::int64_t>(offsets.size()) - 1, reinterpret_cast<const std::int64_t*>(device_offsets_.data()), offsets_.data()};
    args.q = view("q", first), args.k = view("k", first), args.v = view("v", first), args.decay = view("decay", first);
    args.use_qk_l2norm = true, args.scale = 1 / std::sqrt(static_cast<double>(shape_.key_dim));
    if constexpr (kSecond) {
      args.gate_heads = shape_.value_heads;
      args.erase = view("erase", first), args.write = view("write", first), args.erase_dtype = args.write_dtype = shape_.dtype;
    } else {
      args.beta = view("beta", first);
    }
    return args;
  }
  // Forward's and backward's workspaces are kept from launch to launch, but never what they held; one that is large goes first.
  template <class Args>
  void launch(Args& args, std::int64_t bytes, void (*kernel)(const Args&, const StreamHandle&)) {
    DeviceArray& workspace = workspaces_[std::is_same_v<Args, Forward> ? 0 : 1];
    constexpr std::int64_t kLarge = std::int64_t{1} << 30;
    for (DeviceArray& one : workspaces_) {
      if (one.count() > kLarge) one = DeviceArray();
    }
    if (const std::int64_t needed = std::max<std::int64_t>(bytes, 1); workspace.count() != needed) {
      workspace = DeviceArray();
      workspace = DeviceArray(DType::U8, needed);
    }
    workspace.spoil();
    args.workspace = {workspace.data(), bytes};
    kernel(args, device_stream());
    finish("delta rule");
    EXPECT_TRUE(workspace.untouched()) << "around the workspace";
  }

  RuleShape shape_;
  std::int64_t tokens_;
  std::map<std::string, DeviceArray> inputs_;
  std::vector<std::int64_t> offsets_;
  DeviceArray device_offsets_, workspaces_[2];
};

// `documents` documents whose lengths repeat.
inline std::vector<std::int64_t> repeated_offsets(const std::vector<std::int64_t>& lengths, std::int64_t documents) {
  std::vector<std::int64_t> offsets = {0};
  for (std::int64_t d = 0; d < documents; ++d) offsets.push_back(offsets.back() + lengths[static_cast<std::size_t>(d) % lengths.size()]);
  return offsets;
}

}  // namespace deltron::test
