// The two fusions as differentiable functions: gradients in fp64, what they save, agreement with the unfused path, and every demand on
// their inputs with its own message, on every forward and from metadata alone.
#include <set>

#include "src/autograd/functions_gated_norm.h"
#include "src/autograd/functions_gdn2.h"
#include "src/autograd/functions_gdn_fused.h"
#include "src/autograd/recompute.h"
#include "tests/autograd/gradient_harness.h"
#include "tests/support/compare.h"

namespace deltron {
namespace {

using kernels::PreRuleGates;
using test::check_gradients;
using test::contains;
using test::layout_of;
using test::message_of;
using test::small_context;
using Tensors = std::vector<Tensor>;

GdnPreRuleOptions sizes(PreRuleGates gates, bool neg_eigval = false) {
  GdnPreRuleOptions options;
  options.gates = gates;
  options.key_heads = 2, options.value_heads = 4, options.key_dim = 3, options.value_dim = 2;
  options.allow_neg_eigval = neg_eigval;
  return options;
}
constexpr std::int64_t kChannels = 20;  // 2 Dq + Dv
std::int64_t gate_width(PreRuleGates gates) { return gates == PreRuleGates::Heads ? 16 : 28; }
std::int64_t rates(PreRuleGates gates) { return gates == PreRuleGates::Heads ? 4 : 2; }
std::int64_t biases(PreRuleGates gates) { return gates == PreRuleGates::Heads ? 4 : 6; }

Tensors results(const GdnPreRuleResult& made) {
  Tensors all = {made.prepared, made.decay, made.strength};
  if (made.write.defined()) all.push_back(made.write);
  return all;
}

TEST(FusedPreparation, gradients_of_every_input_and_one_whole_gradient_of_the_gates) {
  for (const PreRuleGates gates : {PreRuleGates::Heads, PreRuleGates::Channels}) {
    Context ctx(small_context());
    const LayoutPtr layout = layout_of(ctx, {0, 1, 1, 3, 11});
    for (std::int64_t taps : {1, 4}) {
      GdnPreRuleOptions options = sizes(gates, taps == 4);
      options.epsilon = 1e-4;
      check_gradients(ctx,
                      {{"qkv", {11, kChannels}}, {"gates", {11, gate_width(gates)}}, {"conv", {kChannels, taps}, 0.7},
                       {"A_log", {rates(gates)}, 0.3}, {"dt_bias", {biases(gates)}, 0.3}, {"x", {11, 8}}, {"weight", {2}, 0.3, 0.8}},
                      [&](const Tensors& in) {
                        const GdnPreRuleResult made = gdn_pre_rule(ctx, {in[0], in[1], in[2], in[3], in[4]}, layout, options, "pre");
                        Tensors all = results(made);
                        all.push_back(gdn_gated_output_norm(ctx, in[5], made.z, in[6], {false, 1e-5}, "norm"));  // z: a slot of the same gradient
                        return all;
                      });
    }
  }
}

TEST(FusedPreparation, saves_its_inputs_and_nothing_else) {
  for (const PreRuleGates gates : {PreRuleGates::Heads, PreRuleGates::Channels}) {
    Context ctx(small_context());
    const auto leaf = [&](const Shape& shape, DType dtype, const char* name) { return make_leaf(test::random_tensor(ctx, shape, dtype, 1, 0.3, name), name); };
    const std::int64_t T = 40;
    const GdnPreRuleInputs in = {leaf({T, kChannels}, DType::BF16, "qkv"), leaf({T, gate_width(gates)}, DType::BF16, "gates"),
                                 leaf({kChannels, 4}, DType::BF16, "conv"), leaf({rates(gates)}, DType::F32, "A_log"),
                                 leaf({biases(gates)}, DType::F32, "dt_bias")};
    const GdnPreRuleResult made = gdn_pre_rule(ctx, in, layout_of(ctx, {0, T}), sizes(gates), "pre");
    EXPECT_EQ(ctx.memory()->stats().saved,
              2 * T * (kChannels + gate_width(gates)) + 2 * 4 * kChannels + 4 * (rates(gates) + biases(gates)));
    EXPECT_EQ(made.z.storage(), in.gates.storage()) << "the gate is a view, not a copy";
    EXPECT_FALSE(made.z.is_contiguous());
  }
}

// The mixer from the projection to the normed core output, both ways; results and gradients of qkv, gates, conv, A_log, dt_bias, weight.
std::vector<std::vector<double>> mixer(DType dtype, PreRuleGates gates, bool fused, bool fused_norm) {
  Context ctx(small_context(2));
  const bool heads = gates == PreRuleGates::Heads;
  const std::int64_t T = 75, Hk = 2, Hv = 4, K = 16, V = 12, dq = Hk * K, dv = Hv * V, channels = 2 * dq + dv;
  GdnPreRuleOptions o = sizes(gates, true);
  o.key_dim = K, o.value_dim = V;
  const LayoutPtr layout = layout_of(ctx, {0, 1, 1, 70, T});
  std::uint64_t seed = 3;
  const auto leaf = [&](const Shape& shape, DType type, const char* name, double scale, double shift = 0) {
    // Every run starts from numbers that bf16 holds.
    const std::vector<double> values = to_doubles(ctx, test::random_tensor(ctx, shape, DType::BF16, seed++, scale, name, shift));
    return make_leaf(make_tensor(ctx, shape, type, values, name), name);
  };
  const DType stable = compute_dtype(dtype);
  const Tensors in = {leaf({T, channels}, dtype, "qkv", 1),
                      leaf({T, heads ? dv + 2 * Hv : 2 * dv + 2 * dq}, dtype, "gates", 1),
                      leaf({channels, 4}, dtype, "conv", 0.5),
                      leaf({heads ? Hv : Hk}, stable, "A_log", 0.3),
                      leaf({heads ? Hv : dq}, stable, "dt_bias", 0.3),
                      leaf({V}, stable, "weight", 0.2, 1)};
  Tensor prepared;
  Tensors ready;  // z, decay, strength, write
  if (fused) {
    const GdnPreRuleResult made = gdn_pre_rule(ctx, {in[0], in[1], in[2], in[3], in[4]}, layout, o, "pre");
    prepared = made.prepared;
    ready = {made.z, made.decay, made.strength, made.write};
  } else {
    prepared = gdn_qkv_prep(ctx, in[0], in[2], layout, {.key_heads = Hk, .value_heads = Hv, .key_dim = K, .value_dim = V}, "prep");
    if (heads) {
      const Tensors parts = split(ctx, in[1], {{dv, Hv}, {Hv, 0}, {Hv, 0}}, "split");
      ready = {parts[0], parts[2], parts[1], {}};
    } else {
      ready = split(ctx, in[1], {{dv, Hv}, {dq, Hk}, {dq, Hk}, {dv, Hv}}, "split");
    }
  }
  const Tensors qkv = split(ctx, prepared, {{dq, Hk}, {dq, Hk}, {dv, Hv}}, "split");
  const auto declare = [&](auto options) {
    options.key_heads = Hk, options.value_heads = Hv, options.key_dim = K, options.value_dim = V;
    options.gate_form = fused ? kernels::GateForm::Activated : kernels::GateForm::Raw;
    options.allow_neg_eigval = !fused;
    return options;
  };
  const Tensor A_log = fused ? Tensor() : in[3], dt_bias = fused ? Tensor() : in[4];
  Tensor core;
  if (heads) {
    core = gated_delta_rule(ctx, {qkv[0], qkv[1], qkv[2], ready[1], ready[2], A_log, dt_bias, {}}, layout, declare(GatedDeltaRuleOptions{}), "rule").out;
  } else {
    core = gated_delta_rule_2(ctx, {qkv[0], qkv[1], qkv[2], ready[1], ready[2], ready[3], A_log, dt_bias, {}}, layout,
                              declare(GatedDeltaRule2Options{}), "rule")
               .out;
  }
  // An epsilon of the outputs' size: no row that happens to be small drowns the others in its own rounding.
  const NormOptions norm{false, 0.1};
  const Tensor y = fused_norm ? gdn_gated_output_norm(ctx, core, ready[0], in[5], norm, "norm")
                              : gated_rms_norm(ctx, core, gate_copy(ctx, ready[0], "copy"), in[5], norm, "norm");
  std::vector<std::vector<double>> values = {to_doubles(ctx, y)};
  backward(ctx, {y}, {test::random_tensor(ctx, y.shape(), dtype, 99)});
  for (const Tensor& tensor : in) values.push_back(to_doubles(ctx, test::gradient_of(tensor)));
  return values;
}

TEST(Fusions, agree_with_the_unfused_path_within_rounding) {
  for (const PreRuleGates gates : {PreRuleGates::Heads, PreRuleGates::Channels}) {
    const auto exact = mixer(DType::F64, gates, false, false);
    for (const auto& [dtype, limit] : {std::pair{DType::F64, 1e-12}, std::pair{DType::F32, 2e-6}, std::pair{DType::BF16, 2.5e-2}}) {
      const auto plain = mixer(dtype, gates, false, false), fused = mixer(dtype, gates, true, true);
      for (std::size_t i = 0; i < plain.size(); ++i) {
        const double error = test::error_ratio(fused[i], exact[i]), unfused = test::error_ratio(plain[i], exact[i]);
        EXPECT_LE(test::error_ratio(fused[i], plain[i]), limit) << dtype_name(dtype) << " " << i;
        EXPECT_LE(error, dtype == DType::F64 ? limit : 2.5 * unfused + 1e-7) << dtype_name(dtype) << " " << i;
      }
    }
  }
}

TEST(Fusions, the_output_norm_alone_changes_no_bit_in_fp32_nor_of_any_forward) {
  for (const PreRuleGates gates : {PreRuleGates::Heads, PreRuleGates::Channels}) {
    EXPECT_EQ(mixer(DType::F32, gates, false, true), mixer(DType::F32, gates, false, false));
    const auto plain = mixer(DType::BF16, gates, false, false), fused = mixer(DType::BF16, gates, false, true);
    EXPECT_EQ(fused[0], plain[0]);
    for (std::size_t i = 1; i < plain.size(); ++i) EXPECT_LE(test::error_ratio(fused[i], plain[i]), 6e-3) << i;
  }
}

// Batch first, sequence first, heads outermost: the same numbers from views of the same memory.
TEST(FusedOutputNorm, reads_x_and_gate_of_any_strides_in_place) {
  const std::int64_t B = 2, S = 5, H = 3, V = 4;
  std::vector<std::vector<double>> seen[2];
  for (bool sequence_first : {false, true}) {
    Context ctx(small_context());
    const std::vector<double> x = test::random_values(B * S * H * V, 1), gate = test::random_values(B * S * H * V, 2);
    // Memory [S,B,..] or [B,S,..], with eight more columns behind the gate.
    const auto place = [&](const std::vector<double>& values, std::int64_t extra, const char* name) {
      const std::int64_t width = H * V + extra;
      std::vector<double> memory(static_cast<std::size_t>(B * S * width), 1e3);
      for (std::int64_t b = 0; b < B; ++b) {
        for (std::int64_t s = 0; s < S; ++s) {
          for (std::int64_t i = 0; i < H * V; ++i)
            memory[(sequence_first ? s * B + b : b * S + s) * width + i] = values[(b * S + s) * H * V + i];
        }
      }
      const Tensor flat = make_tensor(ctx, {B * S * width}, DType::F64, memory, name);
      const std::vector<std::int64_t> strides = {sequence_first ? width : S * width, sequence_first ? B * width : width, V, 1};
      return make_leaf(Tensor(flat.storage(), DType::F64, {B, S, H, V}, strides, 0), name);
    };
    const Tensor tx = place(x, 0, "x"), tg = place(gate, 8, "gate"), w = make_leaf(test::random_tensor(ctx, {V}, DType::F64, 3), "w");
    const Tensor y = gdn_gated_output_norm(ctx, tx, tg, w, {}, "norm");
    EXPECT_TRUE(y.is_contiguous());
    backward(ctx, {y}, {test::random_tensor(ctx, {B, S, H, V}, DType::F64, 4)});
    EXPECT_TRUE(test::gradient_of(tx).is_contiguous());
    for (const Tensor& t : {y, test::gradient_of(tx), test::gradient_of(tg), test::gradient_of(w)}) seen[sequence_first].push_back(to_doubles(ctx, t));
  }
  EXPECT_EQ(seen[0], seen[1]);
}

// ---- Demands ----

struct PreRuleRow {
  std::function<void(GdnPreRuleInputs&, GdnPreRuleOptions&, LayoutPtr&)> spoil;
  std::vector<std::string> parts;
};

TEST(FusedPreparation, every_demand_has_its_own_message) {
  Context ctx(small_context()), meta(small_context(1, DeviceKind::Meta));
  const auto tensor = [&](const Shape& shape, DType dtype = DType::F32) { return Tensor::zeros(ctx, shape, dtype, "t"); };
  const LayoutPtr good_layout = layout_of(ctx, {0, 2, 6});
  const GdnPreRuleOptions good = sizes(PreRuleGates::Heads);
  const GdnPreRuleInputs fine = {tensor({6, 20}), tensor({6, 16}), tensor({20, 4}), tensor({4}), tensor({4})};
  const auto transposed_weight = [&] {
    const Tensor t = tensor({4, 20});
    return Tensor(t.storage(), t.dtype(), {20, 4}, {1, 20}, 0);
  };
  const std::vector<PreRuleRow> rows = {
      {[](auto&, auto& o, auto&) { o.value_heads = 3; }, {"head counts", "Hk 2, Hv 3"}},
      {[](auto&, auto& o, auto&) { o.key_dim = 0; }, {"head dims", "K 0"}},
      {[](auto&, auto& o, auto&) { o.epsilon = 0; }, {"epsilon"}},
      {[](auto&, auto&, auto& l) { l = nullptr; }, {"offsets are missing"}},
      {[](auto& i, auto&, auto&) { i.qkv = Tensor(); }, {"qkv is missing"}},
      {[](auto& i, auto&, auto&) { i.gates = Tensor(); }, {"gates is missing"}},
      {[](auto& i, auto&, auto&) { i.conv_weight = Tensor(); }, {"conv_weight is missing"}},
      {[](auto& i, auto&, auto&) { i.A_log = Tensor(); }, {"A_log is missing"}},
      {[](auto& i, auto&, auto&) { i.dt_bias = Tensor(); }, {"dt_bias is missing"}},
      {[&](auto& i, auto&, auto&) { i.gates = Tensor::zeros(meta, {6, 16}, DType::F32, "t"); }, {"device of gates", "meta", "cpu"}},
      {[&](auto&, auto&, auto& l) { l = layout_of(ctx, {0, 0}); }, {"no tokens"}},
      {[&](auto& i, auto&, auto&) { i.qkv = tensor({6, 5, 4}); }, {"rank of qkv", "[6,5,4]"}},
      {[&](auto& i, auto&, auto&) { i.qkv = tensor({5, 20}); }, {"tokens of qkv", "5", "end at 6"}},
      {[&](auto& i, auto&, auto&) { i.gates = tensor({7, 16}); }, {"tokens of gates", "7"}},
      {[&](auto& i, auto&, auto&) { i.qkv = tensor({6, 21}); }, {"width of qkv", "21", "20"}},
      {[](auto&, auto& o, auto&) { o.gates = PreRuleGates::Channels; }, {"width of gates", "16", "28"}},
      {[&](auto& i, auto&, auto&) {
         const Tensor t = tensor({20, 6});
         i.qkv = Tensor(t.storage(), t.dtype(), {6, 20}, {1, 6}, 0);
       },
       {"last dimension of qkv"}},
      {[&](auto& i, auto&, auto&) { i.qkv = tensor({6, 20}, DType::F16); }, {"dtype of qkv", "fp16"}},
      {[&](auto& i, auto&, auto&) { i.gates = tensor({6, 16}, DType::BF16); }, {"dtype of gates", "bf16, not fp32"}},
      {[&](auto& i, auto&, auto&) { i.conv_weight = tensor({20, 4, 1}); }, {"rank of conv_weight"}},
      {[&](auto& i, auto&, auto&) { i.conv_weight = tensor({19, 4}); }, {"channels of conv_weight", "19"}},
      {[&](auto& i, auto&, auto&) { i.conv_weight = tensor({20, 17}); }, {"taps of conv_weight", "17"}},
      {[&](auto& i, auto&, auto&) { i.conv_weight = tensor({20, 4}, DType::F64); }, {"dtype of conv_weight", "fp64 beside fp32"}},
      {[&](auto& i, auto&, auto&) { i.conv_weight = transposed_weight(); }, {"conv_weight is not contiguous"}},
      {[&](auto& i, auto&, auto&) { i.A_log = tensor({2}); }, {"shape of A_log", "[2]", "[4]"}},
      {[&](auto& i, auto&, auto&) { i.dt_bias = tensor({6}); }, {"shape of dt_bias", "[6]", "[4]"}},
      {[&](auto& i, auto&, auto&) { i.A_log = tensor({4}, DType::BF16); }, {"dtype of A_log", "bf16"}},
      {[&](auto& i, auto&, auto&) { i.dt_bias = tensor({4}, DType::F64); }, {"dtype of dt_bias", "fp64"}},
  };
  gdn_pre_rule(ctx, fine, good_layout, good, "pre");
  std::set<std::string> messages;
  for (const PreRuleRow& row : rows) {
    GdnPreRuleInputs inputs = fine;
    GdnPreRuleOptions options = good;
    LayoutPtr layout = good_layout;
    row.spoil(inputs, options, layout);
    const std::string message = message_of([&] { gdn_pre_rule(ctx, inputs, layout, options, "pre"); }, ErrorCode::InvalidOpInput);
    EXPECT_TRUE(contains(message, row.parts));
    messages.insert(message);
  }
  EXPECT_EQ(messages.size(), rows.size());
}

struct NormRow {
  std::function<void(Tensor& x, Tensor& gate, Tensor& weight, NormOptions&)> spoil;
  std::vector<std::string> parts;
};

TEST(FusedOutputNorm, every_demand_has_its_own_message) {
  Context ctx(small_context()), meta(small_context(1, DeviceKind::Meta));
  const auto tensor = [&](const Shape& shape, DType dtype = DType::F32) { return Tensor::zeros(ctx, shape, dtype, "t"); };
  const auto turned = [&](const Shape& shape) {  // last dimension not contiguous
    const Tensor t = tensor(shape);
    return Tensor(t.storage(), t.dtype(), shape, {shape[1] * shape[2], 1, shape[1]}, 0);
  };
  const std::vector<NormRow> rows = {
      {[](auto& x, auto&, auto&, auto&) { x = Tensor(); }, {"x is missing"}},
      {[](auto&, auto& g, auto&, auto&) { g = Tensor(); }, {"gate is missing"}},
      {[](auto&, auto&, auto& w, auto&) { w = Tensor(); }, {"weight is missing"}},
      {[&](auto& x, auto&, auto&, auto&) { x = Tensor::zeros(meta, {6, 4, 2}, DType::F32, "t"); }, {"device of x", "meta"}},
      {[&](auto&, auto& g, auto&, auto&) { g = Tensor::zeros(meta, {6, 4, 2}, DType::F32, "t"); }, {"device of gate", "meta"}},
      {[&](auto&, auto&, auto& w, auto&) { w = Tensor::zeros(meta, {2}, DType::F32, "t"); }, {"device of weight", "meta"}},
      {[&](auto&, auto& g, auto&, auto&) { g = tensor({6, 8}); }, {"rank of gate", "[6,8]"}},
      {[&](auto& x, auto& g, auto&, auto&) { x = g = tensor({0, 4, 2}); }, {"gate is empty"}},
      {[&](auto& x, auto&, auto&, auto&) { x = tensor({6, 4, 3}); }, {"shapes of x and gate", "[6,4,3], [6,4,2]"}},
      {[&](auto& x, auto&, auto&, auto&) { x = turned({6, 4, 2}); }, {"last dimension of x"}},
      {[&](auto&, auto& g, auto&, auto&) { g = turned({6, 4, 2}); }, {"last dimension of gate"}},
      {[&](auto& x, auto&, auto&, auto&) { x = tensor({6, 4, 2}, DType::F16); }, {"dtype of x", "fp16"}},
      {[&](auto&, auto& g, auto&, auto&) { g = tensor({6, 4, 2}, DType::BF16); }, {"dtype of gate", "bf16, not fp32"}},
      {[&](auto&, auto&, auto& w, auto&) { w = tensor({4}); }, {"shape of weight", "[4]", "[2]"}},
      {[&](auto&, auto&, auto& w, auto&) {
         const Tensor t = tensor({4});
         w = Tensor(t.storage(), t.dtype(), {2}, {2}, 0);
       },
       {"weight is not contiguous"}},
      {[&](auto&, auto&, auto& w, auto&) { w = tensor({2}, DType::F64); }, {"dtype of weight", "fp64 beside fp32"}},
      {[](auto&, auto&, auto&, auto& n) { n.epsilon = 0; }, {"epsilon"}},
  };
  std::set<std::string> messages;
  for (const NormRow& row : rows) {
    Tensor x = tensor({6, 4, 2}), gate = tensor({6, 4, 2}), weight = tensor({2});
    NormOptions norm;
    gdn_gated_output_norm(ctx, x, gate, weight, norm, "norm");
    row.spoil(x, gate, weight, norm);
    const std::string message = message_of([&] { gdn_gated_output_norm(ctx, x, gate, weight, norm, "norm"); }, ErrorCode::InvalidOpInput);
    EXPECT_TRUE(contains(message, row.parts));
    messages.insert(message);
  }
  EXPECT_EQ(messages.size(), rows.size());
}

// A replay is a forward like any other: what the region gives it in backward is looked at again.
TEST(Fusions, demands_are_checked_again_when_a_region_is_replayed) {
  Context ctx(small_context());
  const Tensor x = make_leaf(test::random_tensor(ctx, {6, 8}, DType::F32, 1), "x"), gate = test::random_tensor(ctx, {6, 4, 2}, DType::F32, 2);
  const Tensor weight = test::random_tensor(ctx, {2}, DType::F32, 3);
  int calls = 0;
  const auto region = [&](const Tensors& in) {
    return Tensors{gdn_gated_output_norm(ctx, in[0], ++calls == 1 ? gate : gate.slice(0, 0, 5), weight, {}, "norm")};
  };
  const Tensor y = recompute(ctx, "gdn_norm_out", region, {x})[0];
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(contains(message_of([&] { test::backward_of(ctx, y); }, ErrorCode::InvalidOpInput), {"shapes of x and gate"}));
  EXPECT_EQ(calls, 2);
}

// No value is read: on meta there are none.
TEST(Fusions, run_on_meta_where_only_metadata_exists) {
  Context ctx(small_context(1, DeviceKind::Meta));
  const auto tensor = [&](const Shape& shape) { return make_leaf(Tensor::empty(ctx, shape, DType::F32, "t"), "t"); };
  const GdnPreRuleInputs fine = {tensor({6, 20}), tensor({6, 16}), tensor({20, 4}), tensor({4}), tensor({4})};
  const GdnPreRuleResult made = gdn_pre_rule(ctx, fine, layout_of(ctx, {0, 2, 6}), sizes(PreRuleGates::Heads), "pre");
  const Tensor y = gdn_gated_output_norm(ctx, tensor({6, 8}), made.z, tensor({2}), {}, "norm");
  EXPECT_EQ(y.shape(), (Shape{6, 8}));
  EXPECT_THROW(gdn_gated_output_norm(ctx, tensor({6, 7}), made.z, tensor({2}), {}, "norm"), Error);
}

}  // namespace
}  // namespace deltron
