// Small recorded operations whose backward leaves a trace, and a program that uses every differentiable function once.
#pragma once

#include <functional>

#include "src/autograd/engine.h"
#include "src/autograd/functions_attention.h"
#include "src/autograd/functions_gated_norm.h"
#include "src/autograd/functions_gdn.h"
#include "src/tensor/ops.h"
#include "tests/support/core_test.h"

namespace deltron::test {

using Trace = std::vector<std::string>;

class TracedNode : public Node {
 public:
  using Node::Node;
  std::function<void(Context&, BackwardCall&)> run;
  std::vector<SavedTensor> saved;
  Trace* trace = nullptr;
  bool optional_outputs = false;
  bool output_is_optional(int) const override { return optional_outputs; }
  void backward(Context& ctx, BackwardCall& call) override {
    if (trace != nullptr) trace->push_back(name());
    run(ctx, call);
  }
  void release() override {
    for (SavedTensor& tensor : saved) tensor.release();
  }
};

inline Tensor times(Context& ctx, const Tensor& x, double factor, const char* name) {
  const Tensor y = Tensor::zeros(ctx, x.shape(), x.dtype(), name);
  accumulate(ctx, x, y, factor);
  return y;
}

// y = factor x; keeps x although it does not need it, so that tests see what is saved.
inline Tensor scaled(Context& ctx, const Tensor& x, double factor, const char* name, Trace* trace = nullptr) {
  const Tensor y = times(ctx, x, factor, name);
  if (!GraphRecorder::wanted(ctx, {x})) return y;
  auto node = std::make_shared<TracedNode>(name);
  node->trace = trace;
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  node->saved.emplace_back(ctx, x, std::string(name) + ".x");
  TracedNode* self = node.get();
  node->run = [factor, self](Context& c, BackwardCall& call) {
    self->saved[0].get();
    call.set_gradient(0, times(c, call.output_gradient(0), factor, "gradient"));
  };
  return recorder.output(y);
}

// y = sum of all; hands its gradient on to each of them.
inline Tensor sum_of(Context& ctx, const std::vector<Tensor>& parts, const char* name, Trace* trace = nullptr) {
  const Tensor y = Tensor::zeros(ctx, parts[0].shape(), parts[0].dtype(), name);
  for (const Tensor& part : parts) accumulate(ctx, part, y);
  if (!GraphRecorder::wanted(ctx, parts)) return y;
  auto node = std::make_shared<TracedNode>(name);
  node->trace = trace;
  GraphRecorder recorder(ctx, node);
  for (const Tensor& part : parts) recorder.input(part, "part");
  const int count = static_cast<int>(parts.size());
  node->run = [count](Context&, BackwardCall& call) {
    for (int i = 0; i < count; ++i) call.set_gradient(i, call.output_gradient(0));
  };
  return recorder.output(y);
}

inline Tensor ones_like(Context& ctx, const Tensor& tensor) {
  const Tensor ones = Tensor::empty(ctx, tensor.shape(), tensor.dtype(), "seed");
  fill(ctx, ones, 1);
  return ones;
}
inline void backward_of(Context& ctx, const Tensor& root) { backward(ctx, {root}, {ones_like(ctx, root)}); }
inline Tensor gradient_of(const Tensor& leaf) { return leaf_of(leaf)->gradient; }

inline LayoutPtr layout_of(Context& ctx, const std::vector<std::int64_t>& cu_seqlens) {
  return std::make_shared<const SequenceLayout>(ctx, cu_seqlens, cu_seqlens.back());
}

// One softmax layer, one GDN mixer and an MLP, written with the functions alone.
struct Program {
  static constexpr std::int64_t T = 70, h = 8, H = 2, G = 1, D = 6, Hk = 1, Hv = 2, K = 4, V = 3, F = 5, vocab = 11;
  std::vector<Tensor> values;  // parameters
  Tensor ids, labels;
  LayoutPtr layout;

  Program(Context& ctx, DType dtype) {
    const DType stable = compute_dtype(dtype);
    const std::vector<std::pair<Shape, DType>> shapes = {
        {{vocab, h}, dtype}, {{h}, dtype}, {{2 * H * D + 2 * G * D, h}, dtype}, {{D}, dtype}, {{h, H * D}, dtype},
        {{h}, dtype}, {{2 * Hk * K + Hv * V, h}, dtype}, {{Hv * V + 2 * Hv, h}, dtype}, {{2 * Hk * K + Hv * V, 3}, dtype}, {{Hv}, stable},
        {{Hv}, stable}, {{V}, stable}, {{h, Hv * V}, dtype}, {{h}, dtype}, {{2 * F, h}, dtype}, {{h, F}, dtype}};
    std::uint64_t seed = 100;
    for (const auto& [shape, type] : shapes) {
      values.push_back(make_tensor(ctx, shape, type, random_values(shape_count(shape), seed++, 0.4, shape.size() == 1 ? 0.8 : 0.0), "weight",
                                   MemoryTag::Weights));
    }
    std::vector<std::int32_t> tokens, next;
    for (std::int64_t t = 0; t < T; ++t) {
      tokens.push_back(static_cast<std::int32_t>((t * 7 + t / 5) % vocab));
      next.push_back(t % 9 == 8 ? -1 : static_cast<std::int32_t>((t * 5 + 1) % vocab));
    }
    ids = int_tensor(ctx, tokens);
    labels = int_tensor(ctx, next, "labels");
    layout = layout_of(ctx, {0, 1, 66, 70});
  }

  Tensor loss(Context& ctx, const std::vector<Tensor>& w) const {
    const NormOptions plain, zero{true, 1e-6};
    Tensor x = embedding(ctx, ids, w[0], w[0].dtype(), "embedding");
    const Tensor qkv = norm_linear(ctx, x, w[1], plain, {w[2]}, {"attn.qkv"})[0];
    const std::vector<Tensor> parts = split(ctx, qkv, {{H * D, H}, {H * D, 0}, {G * D, G}, {G * D, G}}, "attn.split");
    HeadPrepOptions prep;
    prep.norm = true;
    prep.rotary_dim = 4;
    const Tensor q = prepare_heads(ctx, parts[0], w[3], layout, prep, "attn.q"), k = prepare_heads(ctx, parts[2], w[3], layout, prep, "attn.k");
    AttentionOptions options;
    options.drop_probability = 0.1;
    options.site = {5, 0, kRngSiteAttentionDropout};
    const Tensor core = sigmoid_gate(ctx, attention(ctx, q, k, parts[3], layout, options, "attn.core"), parts[1], "attn.gate");
    x = dropout_add(ctx, linear(ctx, core, w[4], "attn.proj"), x, layout, {5, 0, kRngSiteHiddenDropoutMixer}, 0.1, "residual");
    const std::vector<Tensor> in = norm_linear(ctx, x, w[5], zero, {w[6], w[7]}, {"gdn.qkv", "gdn.gates"});
    const std::vector<Tensor> gates = split(ctx, in[1], {{Hv * V, Hv}, {Hv, 0}, {Hv, 0}}, "gdn.gates.split");
    const Tensor prepared = gdn_qkv_prep(ctx, in[0], w[8], layout, {.key_heads = Hk, .value_heads = Hv, .key_dim = K, .value_dim = V}, "gdn.prep");
    const std::vector<Tensor> heads = split(ctx, prepared, {{Hk * K, Hk}, {Hk * K, Hk}, {Hv * V, Hv}}, "gdn.qkv.split");
    GatedDeltaRuleOptions rule;
    rule.key_heads = Hk;
    rule.value_heads = Hv;
    rule.key_dim = K;
    rule.value_dim = V;
    rule.gate_form = kernels::GateForm::Raw;
    const Tensor out = gated_delta_rule(ctx, {heads[0], heads[1], heads[2], gates[2], gates[1], w[9], w[10], {}}, layout, rule, "gdn.rule").out;
    const Tensor mixed = linear(ctx, gated_rms_norm(ctx, out, gates[0], w[11], plain, "gdn.norm"), w[12], "gdn.out_proj");
    x = dropout_add(ctx, mixed, x, layout, {5, 1, kRngSiteHiddenDropoutMixer}, 0, "residual");
    const Tensor hidden = norm_linear(ctx, x, w[13], plain, {w[14]}, {"mlp.fc1"})[0];
    x = dropout_add(ctx, swiglu_linear(ctx, hidden, w[15], "mlp.fc2"), x, layout, {5, 1, kRngSiteHiddenDropoutMlp}, 0, "residual");
    return cross_entropy(ctx, norm_linear(ctx, x, w[1], plain, {w[0]}, {"logits"})[0], labels, 1.0 / 63);  // the table once more
  }

  std::vector<Tensor> leaves() const {
    std::vector<Tensor> result;
    for (std::size_t i = 0; i < values.size(); ++i) result.push_back(make_leaf(values[i], "w" + std::to_string(i)));
    return result;
  }
  // Loss, then the gradients of all parameters, bit by bit.
  std::vector<std::vector<std::uint64_t>> bits(Context& ctx) const {
    const std::vector<Tensor> w = leaves();
    const Tensor result = loss(ctx, w);
    std::vector<std::vector<std::uint64_t>> all = {bits_of(ctx, result)};
    backward_of(ctx, result);
    for (const Tensor& leaf : w) all.push_back(bits_of(ctx, gradient_of(leaf)));
    return all;
  }
};

}  // namespace deltron::test
