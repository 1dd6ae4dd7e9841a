// What the offload tests run: layers of a GDN mixer written with the functions alone, each with the groups `gdn_qkv` and
// `gdn_core_attn`, as src/nn places them, and iterations of micro-batches that give losses and gradients bit by bit.
#pragma once

#include <functional>

#include "src/autograd/offload.h"
#include "src/autograd/recompute.h"
#include "tests/autograd/test_nodes.h"

namespace deltron::test {

using Bits = std::vector<std::vector<std::uint64_t>>;

struct OffloadModel {
  static constexpr std::int64_t T = 70, h = 8, Hk = 1, Hv = 2, K = 4, V = 4, vocab = 11;
  static constexpr std::int64_t qkv_width = 2 * Hk * K + Hv * V;
  static constexpr std::int64_t kThreshold = 512;  // elements: qkv and prepared (1120) are above, statistics (140) below
  int layers;
  bool recompute_qkv = false;      // gdn_qkv as a discard-output region
  std::vector<Tensor> values;      // parameters: embedding, final norm, then seven a layer
  std::vector<Tensor> ids, labels; // by micro-batch
  LayoutPtr layout;
  // Called on the core output before the commits of every layer, and after them with the result.
  std::function<void(int layer, const Tensor& qkv)> after_commit;

  OffloadModel(Context& ctx, DType dtype, int layer_count = 3, int micro_batches = 2) : layers(layer_count) {
    const DType stable = compute_dtype(dtype);
    std::vector<std::pair<Shape, DType>> shapes = {{{vocab, h}, dtype}, {{h}, dtype}};
    for (int layer = 0; layer < layers; ++layer) {
      for (const auto& shape : std::vector<std::pair<Shape, DType>>{{{h}, dtype}, {{qkv_width, h}, dtype}, {{Hv * V + 2 * Hv, h}, dtype},
                                                                    {{qkv_width, 3}, dtype}, {{Hv}, stable}, {{Hv}, stable},
                                                                    {{V}, stable}, {{h, Hv * V}, dtype}}) {
        shapes.push_back(shape);
      }
    }
    std::uint64_t seed = 900;
    for (const auto& [shape, type] : shapes) {
      values.push_back(make_tensor(ctx, shape, type, random_values(shape_count(shape), seed++, 0.4, shape.size() == 1 ? 0.8 : 0.0), "weight",
                                   MemoryTag::Weights));
    }
    for (int batch = 0; batch < micro_batches; ++batch) {
      std::vector<std::int32_t> tokens, next;
      for (std::int64_t t = 0; t < T; ++t) {
        tokens.push_back(static_cast<std::int32_t>((t * 7 + t / 5 + 3 * batch) % vocab));
        next.push_back(static_cast<std::int32_t>((t * 5 + 1 + batch) % vocab));
      }
      ids.push_back(int_tensor(ctx, tokens));
      labels.push_back(int_tensor(ctx, next, "labels"));
    }
    layout = layout_of(ctx, {0, 1, 66, 70});
  }

  Tensor layer(Context& ctx, const Tensor& x, const std::vector<Tensor>& w, int index) const {
    ScopeGuard scope(ctx, index, "gdn");
    const auto p = [&](int i) { return w[static_cast<std::size_t>(2 + 8 * index + i)]; };
    const std::vector<Tensor> in = norm_linear(ctx, x, p(0), {}, {p(1), p(2)}, {"gdn.qkv", "gdn.gates"});
    const std::vector<Tensor> gates = split(ctx, in[1], {{Hv * V, Hv}, {Hv, 0}, {Hv, 0}}, "gdn.gates.split");
    const Tensor qkv = offload_group_start(ctx, in[0], "gdn_qkv");
    const auto prepare = [conv = p(3), this, &ctx](const std::vector<Tensor>& inputs) {
      const QkvPrepOptions options{.key_heads = Hk, .value_heads = Hv, .key_dim = K, .value_dim = V};
      return std::vector<Tensor>{gdn_qkv_prep(ctx, inputs[0], conv, layout, options, "gdn.prep")};
    };
    DiscardOutputRegion preparation("gdn_qkv");
    Tensor prepared;
    {
      OffloadCapture capture(ctx, "gdn_qkv");
      prepared = recompute_qkv ? preparation.run(ctx, prepare, {qkv})[0] : prepare({qkv})[0];
    }
    prepared = offload_group_start(ctx, prepared, "gdn_core_attn");
    Tensor core;
    {
      OffloadCapture capture(ctx, "gdn_core_attn");
      const std::vector<Tensor> heads = split(ctx, prepared, {{Hk * K, Hk}, {Hk * K, Hk}, {Hv * V, Hv}}, "gdn.qkv.split");
      GatedDeltaRuleOptions rule;
      rule.key_heads = Hk;
      rule.value_heads = Hv;
      rule.key_dim = K;
      rule.value_dim = V;
      rule.gate_form = kernels::GateForm::Raw;
      core = gated_delta_rule(ctx, {heads[0], heads[1], heads[2], gates[2], gates[1], p(4), p(5), {}}, layout, rule, "gdn.rule").out;
    }
    if (recompute_qkv) preparation.discard_output_and_register_recompute(core);
    core = offload_group_commit(ctx, core, "gdn_core_attn", {prepared});
    core = offload_group_commit(ctx, core, "gdn_qkv", {qkv});
    if (after_commit) after_commit(index, qkv);
    const Tensor mixed = linear(ctx, gated_rms_norm(ctx, core, gates[0], p(6), {}, "gdn.norm"), p(7), "gdn.out_proj");
    return dropout_add(ctx, mixed, x, layout, {5, static_cast<std::uint32_t>(index), kRngSiteHiddenDropoutMixer}, 0.1, "residual");
  }

  Tensor loss(Context& ctx, const std::vector<Tensor>& w, int micro_batch) const {
    const auto batch = static_cast<std::size_t>(micro_batch);
    Tensor x = embedding(ctx, ids[batch], w[0], w[0].dtype(), "embedding");
    for (int index = 0; index < layers; ++index) x = layer(ctx, x, w, index);
    return cross_entropy(ctx, norm_linear(ctx, x, w[1], {}, {w[0]}, {"logits"})[0], labels[batch], 1.0 / T);
  }

  std::vector<Tensor> leaves() const {
    std::vector<Tensor> result;
    for (std::size_t i = 0; i < values.size(); ++i) result.push_back(make_leaf(values[i], "w" + std::to_string(i)));
    return result;
  }

  // Forward and backward of every micro-batch in turn; losses, then the gradients of all parameters.
  Bits iteration(Context& ctx) const {
    OffloadManager& manager = ctx.slot<OffloadManager>();
    const std::vector<Tensor> w = leaves();
    Bits bits;
    for (std::size_t batch = 0; batch < ids.size(); ++batch) {
      manager.begin_micro_batch(ctx);
      const Tensor result = loss(ctx, w, static_cast<int>(batch));
      bits.push_back(bits_of(ctx, result));
      backward_of(ctx, result);
    }
    for (const Tensor& leaf : w) bits.push_back(bits_of(ctx, gradient_of(leaf)));
    return bits;
  }
  Bits evaluation(Context& ctx) const {
    GradModeGuard off(ctx, false);
    ctx.slot<OffloadManager>().begin_micro_batch(ctx);
    return {bits_of(ctx, loss(ctx, leaves(), 0))};
  }
};

inline OffloadOptions offload_options(std::vector<std::string> modules, double fraction = 1.0) {
  OffloadOptions options;
  options.modules = std::move(modules);
  options.min_offloaded_tensor_size = OffloadModel::kThreshold;
  options.activation_offload_fraction = fraction;
  return options;
}

// A context with its model and its manager.
struct OffloadRun {
  Context ctx;
  OffloadModel model;
  explicit OffloadRun(const OffloadOptions& options, DType dtype = DType::F32, int layers = 3, int micro_batches = 2)
      : ctx(small_context()), model(ctx, dtype, layers, micro_batches) {
    manager().configure(ctx, options);
  }
  OffloadManager& manager() { return ctx.slot<OffloadManager>(); }
  Bits iteration() {
    Bits bits = model.iteration(ctx);
    EXPECT_EQ(manager().pool().in_use, 0) << "every buffer is back before reset";
    manager().reset(ctx);
    return bits;
  }
};

// The same without offload.
inline Bits plain_bits(DType dtype = DType::F32, int layers = 3, int micro_batches = 2) {
  Context ctx(small_context());
  return OffloadModel(ctx, dtype, layers, micro_batches).iteration(ctx);
}

}  // namespace deltron::test
