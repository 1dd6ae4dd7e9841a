// Gradients of the Gated DeltaNet functions against finite differences in fp64: more than one chunk, ragged documents, strided inputs,
// grouped heads, raw and activated gates, states in and out; and the rule's input checks.
#include "tests/autograd/gradient_harness.h"

namespace deltron {
namespace {

using test::check_gradients;
using test::contains;
using test::layout_of;
using test::message_of;
using test::small_context;
using Tensors = std::vector<Tensor>;

TEST(GdnGradients, qkv_prep_with_and_without_l2_norm) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 1, 1, 3, 11});  // shorter than the kernel, empty, longer
  for (bool l2 : {false, true}) {
    for (std::int64_t kernel : {1, 3, 4}) {
      const QkvPrepOptions options{.key_heads = 2, .value_heads = 4, .key_dim = 3, .value_dim = 2, .use_qk_l2norm = l2, .epsilon = 1e-4};
      check_gradients(ctx, {{"qkv", {11, 20}}, {"conv", {20, kernel}, 0.7}}, [&](const Tensors& in) {
        return Tensors{gdn_qkv_prep(ctx, in[0], in[1], layout, options, "prep")};
      });
    }
  }
}

TEST(GdnGradients, qkv_prep_works_in_place_on_a_gradient_of_its_own_and_on_a_copy_of_a_shared_one) {
  std::vector<std::uint64_t> bits[2];
  std::int64_t allocations[2];
  for (int shared : {0, 1}) {
    Context ctx(small_context());
    const QkvPrepOptions options{.key_heads = 1, .value_heads = 1, .key_dim = 3, .value_dim = 2};
    const Tensor qkv = make_leaf(test::random_tensor(ctx, {9, 8}, DType::F64, 1), "qkv"), conv = test::random_tensor(ctx, {8, 3}, DType::F64, 2);
    const Tensor y = gdn_qkv_prep(ctx, qkv, conv, layout_of(ctx, {0, 9}), options, "prep");
    Tensor held;
    std::vector<double> before;
    add_gradient_hook(y, [&](const Tensor& gradient) {
      before = to_doubles(ctx, gradient);
      if (shared == 1) held = gradient;
    });
    const Tensor root = test::scaled(ctx, y, 2, "root");
    const Tensor seed = test::random_tensor(ctx, {9, 8}, DType::F64, 3);
    const std::int64_t start = ctx.memory()->stats().allocations;
    backward(ctx, {root}, {seed});
    allocations[shared] = ctx.memory()->stats().allocations - start;
    bits[shared] = test::bits_of(ctx, test::gradient_of(qkv));
    if (shared == 1) {
      EXPECT_EQ(to_doubles(ctx, held), before);
    }
  }
  EXPECT_EQ(bits[0], bits[1]);
  EXPECT_EQ(allocations[1], allocations[0] + 1);
}

TEST(GdnGradients, gated_rms_norm_with_a_strided_gate) {
  Context ctx(small_context());
  for (bool zero_centered : {false, true}) {
    check_gradients(ctx, {{"x", {7, 6}}, {"gates", {7, 10}}, {"weight", {3}, 0.3, 0.8}, {"w", {2, 4}}}, [&](const Tensors& in) {
      const Tensors parts = split(ctx, in[1], {{6, 2}, {4, 0}}, "split");
      return Tensors{gated_rms_norm(ctx, in[0], parts[0], in[2], {zero_centered, 1e-5}, "norm"), linear(ctx, parts[1], in[3], "rest")};
    });
  }
}

struct RuleCase {
  std::int64_t T = 75, Hk = 1, Hv = 2, K = 5, V = 3;
  bool raw = false, neg_eigval = false, l2 = true, initial = false, final_used = false, out_used = true, strided = false;
  double scale = 0;
};

// Keys of moderate length and decays that matter; with the L2 norm inside the rule lengths are free.
void check_rule(const RuleCase& c) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 1, 1, c.T - 5, c.T});
  GatedDeltaRuleOptions options;
  options.key_heads = c.Hk;
  options.value_heads = c.Hv;
  options.key_dim = c.K;
  options.value_dim = c.V;
  options.gate_form = c.raw ? kernels::GateForm::Raw : kernels::GateForm::Activated;
  options.allow_neg_eigval = c.neg_eigval;
  options.use_qk_l2norm = c.l2;
  options.scale = c.scale;
  options.output_final_state = c.final_used;
  const double size = c.l2 ? 1.0 : 0.35;
  std::vector<test::Input> inputs;
  if (c.strided) {
    inputs = {{"qkv", {c.T, 2 * c.Hk * c.K + c.Hv * c.V}, size}, {"gates", {c.T, 2 * c.Hv}, 0.1, c.raw ? 0.0 : 0.0}};
  } else {
    inputs = {{"q", {c.T, c.Hk, c.K}, size}, {"k", {c.T, c.Hk, c.K}, size}, {"v", {c.T, c.Hv, c.V}},
              {"decay", {c.T, c.Hv}, 0.05, c.raw ? -2.0 : -0.3}, {"beta", {c.T, c.Hv}, 0.1, c.raw ? 0.0 : 0.6}};
  }
  const std::size_t gates_end = inputs.size();
  if (c.raw) {
    inputs.push_back({"A_log", {c.Hv}, 0.3});
    inputs.push_back({"dt_bias", {c.Hv}, 0.3});
  }
  if (c.initial) inputs.push_back({"initial_state", {4, c.Hv, c.K, c.V}});
  check_gradients(ctx, inputs, [&](const Tensors& in) {
    GatedDeltaRuleInputs rule;
    if (c.strided) {
      const Tensors qkv = split(ctx, in[0], {{c.Hk * c.K, c.Hk}, {c.Hk * c.K, c.Hk}, {c.Hv * c.V, c.Hv}}, "qkv");
      const Tensors gates = split(ctx, in[1], {{c.Hv, 0}, {c.Hv, 0}}, "gates");
      rule = {qkv[0], qkv[1], qkv[2], gates[0], gates[1], {}, {}, {}};
    } else {
      rule = {in[0], in[1], in[2], in[3], in[4], {}, {}, {}};
    }
    std::size_t next = gates_end;
    if (c.raw) {
      rule.A_log = in[next++];
      rule.dt_bias = in[next++];
    }
    if (c.initial) rule.initial_state = in[next++];
    const GatedDeltaRuleResult result = gated_delta_rule(ctx, rule, layout, options, "rule");
    Tensors used;
    if (c.out_used) used.push_back(result.out);
    if (c.final_used) used.push_back(*result.final_state);
    return used;
  });
}

TEST(GdnGradients, rule_with_activated_gates) { check_rule({}); }
TEST(GdnGradients, rule_with_activated_gates_lengths_free_and_a_scale) { check_rule({.l2 = false, .scale = 0.8}); }
TEST(GdnGradients, rule_with_raw_gates) { check_rule({.raw = true}); }
TEST(GdnGradients, rule_with_raw_gates_and_negative_eigenvalues) { check_rule({.raw = true, .neg_eigval = true}); }
TEST(GdnGradients, rule_with_more_value_heads_a_key_head) { check_rule({.Hk = 2, .Hv = 6, .raw = true}); }
TEST(GdnGradients, rule_with_equal_heads_and_wide_values) { check_rule({.Hk = 2, .Hv = 2, .K = 3, .V = 9}); }
TEST(GdnGradients, rule_reading_strided_pieces) { check_rule({.Hk = 2, .Hv = 4, .raw = true, .l2 = false, .strided = true}); }
TEST(GdnGradients, rule_from_an_initial_state) { check_rule({.initial = true}); }
TEST(GdnGradients, rule_from_an_initial_to_a_used_final_state) { check_rule({.raw = true, .initial = true, .final_used = true}); }
TEST(GdnGradients, rule_with_only_its_final_state_used) { check_rule({.initial = true, .final_used = true, .out_used = false}); }
TEST(GdnGradients, rule_over_three_chunks) { check_rule({.T = 140, .Hv = 1, .K = 3, .V = 2, .raw = true}); }

TEST(GdnGradients, an_asked_final_state_that_nobody_uses_changes_no_gradient) {
  std::vector<std::vector<std::uint64_t>> bits;
  for (bool asked : {false, true}) {
    Context ctx(small_context());
    GatedDeltaRuleOptions options;
    options.key_heads = options.value_heads = 1;
    options.key_dim = options.value_dim = 4;
    options.output_final_state = asked;
    const Tensor q = make_leaf(test::random_tensor(ctx, {70, 1, 4}, DType::F64, 1, 0.4), "q");
    const Tensor gates = test::random_tensor(ctx, {70, 1}, DType::F64, 2, 0.05, "gates", 0.3);
    const Tensor decay = test::random_tensor(ctx, {70, 1}, DType::F64, 3, 0.05, "decay", -0.3);
    const GatedDeltaRuleResult result = gated_delta_rule(ctx, {q, q, q, decay, gates, {}, {}, {}}, layout_of(ctx, {0, 70}), options, "rule");
    EXPECT_EQ(result.final_state.has_value(), asked);
    test::backward_of(ctx, result.out);
    bits.push_back(test::bits_of(ctx, test::gradient_of(q)));
  }
  EXPECT_EQ(bits[0], bits[1]);
}

TEST(GdnGradients, gates_of_two_types_get_gradients_of_their_own_types) {
  std::vector<std::vector<double>> gradients[2];
  for (int mixed : {0, 1}) {
    Context ctx(small_context());
    GatedDeltaRuleOptions options;
    options.key_heads = options.value_heads = 1;
    options.key_dim = options.value_dim = 4;
    const Tensor q = test::random_tensor(ctx, {70, 1, 4}, DType::F32, 1, 0.4);
    const std::vector<double> rounded = to_doubles(ctx, test::random_tensor(ctx, {70, 1}, DType::BF16, 2, 0.05, "beta", 0.3));
    const DType type = mixed == 1 ? DType::BF16 : DType::F32;
    const Tensor beta = make_leaf(make_tensor(ctx, {70, 1}, type, rounded, "beta"), "beta");
    const Tensor decay = make_leaf(test::random_tensor(ctx, {70, 1}, DType::F32, 3, 0.05, "decay", -0.3), "decay");
    test::backward_of(ctx, gated_delta_rule(ctx, {q, q, q, decay, beta, {}, {}, {}}, layout_of(ctx, {0, 70}), options, "rule").out);
    EXPECT_EQ(test::gradient_of(beta).dtype(), type);
    for (const Tensor& leaf : {decay, beta}) gradients[mixed].push_back(to_doubles(ctx, test::gradient_of(leaf)));
  }
  EXPECT_EQ(gradients[0][0], gradients[1][0]);
  EXPECT_LE(test::relative_difference(gradients[1][1], gradients[0][1]), 1.0 / 256);
}

TEST(GatedDeltaRule, every_input_fault_has_its_own_message) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 2, 6});
  const auto tensor = [&](const Shape& shape, DType dtype = DType::F32) { return Tensor::zeros(ctx, shape, dtype, "t"); };
  GatedDeltaRuleOptions good;
  good.key_heads = 2;
  good.value_heads = 4;
  good.key_dim = 3;
  good.value_dim = 5;
  const GatedDeltaRuleInputs fine = {tensor({6, 2, 3}), tensor({6, 2, 3}), tensor({6, 4, 5}), tensor({6, 4}), tensor({6, 4}), {}, {}, {}};
  gated_delta_rule(ctx, fine, layout, good, "rule");
  struct Row {
    std::function<void(GatedDeltaRuleInputs&, GatedDeltaRuleOptions&)> spoil;
    std::vector<std::string> parts;
  };
  const std::vector<Row> rows = {
      {[](auto&, auto& o) { o.value_heads = 3; }, {"head counts", "Hk 2, Hv 3"}},
      {[](auto&, auto& o) { o.key_heads = 0; }, {"head counts", "Hk 0"}},
      {[](auto& i, auto&) { i.q = Tensor(); }, {"q is missing"}},
      {[&](auto& i, auto&) { i.q = tensor({5, 2, 3}); }, {"shape of q", "[5,2,3]", "[6,2,3]"}},
      {[&](auto& i, auto&) { i.k = tensor({6, 2, 4}); }, {"shape of k", "[6,2,4]"}},
      {[&](auto& i, auto&) { i.v = tensor({6, 2, 5}); }, {"shape of v", "[6,2,5]"}},
      {[&](auto& i, auto&) { i.decay = tensor({6, 2}); }, {"shape of decay", "[6,2]"}},
      {[&](auto& i, auto&) { i.beta = Tensor(); }, {"beta is missing"}},
      {[&](auto& i, auto&) { i.k = tensor({6, 2, 3}, DType::BF16); }, {"dtypes of q, k, v"}},
      {[&](auto& i, auto&) { i.A_log = tensor({4}); }, {"A_log is given"}},
      {[](auto&, auto& o) { o.allow_neg_eigval = true; }, {"allow_neg_eigval"}},
      {[&](auto&, auto& o) { o.gate_form = kernels::GateForm::Raw; }, {"A_log is missing"}},
      {[&](auto& i, auto& o) {
         o.gate_form = kernels::GateForm::Raw;
         i.A_log = tensor({4});
         i.dt_bias = tensor({2});
       },
       {"shape of dt_bias", "[2]"}},
      {[&](auto& i, auto& o) {
         o.gate_form = kernels::GateForm::Raw;
         i.A_log = tensor({4}, DType::BF16);
         i.dt_bias = tensor({4}, DType::BF16);
       },
       {"dtype of A_log"}},
      {[&](auto& i, auto&) { i.initial_state = tensor({1, 4, 3, 5}); }, {"shape of initial_state", "[1,4,3,5]", "[2,4,3,5]"}},
      {[&](auto& i, auto&) { i.initial_state = tensor({2, 4, 3, 5}, DType::BF16); }, {"dtype of initial_state"}},
  };
  for (const Row& row : rows) {
    GatedDeltaRuleInputs inputs = fine;
    GatedDeltaRuleOptions options = good;
    row.spoil(inputs, options);
    EXPECT_TRUE(contains(message_of([&] { gated_delta_rule(ctx, inputs, layout, options, "rule"); }, ErrorCode::InvalidOpInput), row.parts));
  }
}

}  // namespace
}  // namespace deltron
