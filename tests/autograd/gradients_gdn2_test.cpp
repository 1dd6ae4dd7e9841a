// Gradients of gated delta rule 2 against finite differences in fp64: more than one chunk and sub-block, ragged documents, strided
// inputs, grouped heads with shared gates and with their own, raw and activated gates, states in and out; and the input checks.
#include "src/autograd/functions_gdn2.h"
#include "tests/autograd/gradient_harness.h"

namespace deltron {
namespace {

using test::check_gradients;
using test::contains;
using test::layout_of;
using test::message_of;
using test::small_context;
using Tensors = std::vector<Tensor>;

struct RuleCase {
  std::int64_t T = 75, Hk = 1, Hv = 2, K = 5, V = 3;
  GateHeads gate_heads = GateHeads::Keys;
  bool raw = false, neg_eigval = false, l2 = true, initial = false, final_used = false, out_used = true, strided = false;
  double scale = 0;
  std::int64_t gates() const { return gate_heads == GateHeads::Keys ? Hk : Hv; }
};

void check_rule(const RuleCase& c) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 1, 1, c.T - 5, c.T});
  GatedDeltaRule2Options options;
  options.key_heads = c.Hk;
  options.value_heads = c.Hv;
  options.key_dim = c.K;
  options.value_dim = c.V;
  options.gate_heads = c.gate_heads;
  options.gate_form = c.raw ? kernels::GateForm::Raw : kernels::GateForm::Activated;
  options.allow_neg_eigval = c.neg_eigval;
  options.use_qk_l2norm = c.l2;
  options.scale = c.scale;
  options.output_final_state = c.final_used;
  const double size = c.l2 ? 1.0 : 0.35;
  const std::int64_t dq = c.Hk * c.K, dv = c.Hv * c.V, dg = c.gates() * c.K;
  std::vector<test::Input> inputs;
  if (c.strided) {
    inputs = {{"qkv", {c.T, 2 * dq + dv}, size}, {"gates", {c.T, 2 * dg + dv}, 0.1}};
  } else {
    inputs = {{"q", {c.T, c.Hk, c.K}, size},
              {"k", {c.T, c.Hk, c.K}, size},
              {"v", {c.T, c.Hv, c.V}},
              {"decay", {c.T, c.gates(), c.K}, 0.05, c.raw ? -2.0 : -0.3},
              {"b", {c.T, c.gates(), c.K}, 0.1, c.raw ? 0.0 : 0.6},
              {"w", {c.T, c.Hv, c.V}, 0.1, c.raw ? 0.0 : 0.6}};
  }
  const std::size_t gates_end = inputs.size();
  if (c.raw) {
    inputs.push_back({"A_log", {c.gates()}, 0.3});
    inputs.push_back({"dt_bias", {dg}, 0.3});
  }
  if (c.initial) inputs.push_back({"initial_state", {4, c.Hv, c.K, c.V}});
  check_gradients(ctx, inputs, [&](const Tensors& in) {
    GatedDeltaRule2Inputs rule;
    if (c.strided) {
      const Tensors qkv = split(ctx, in[0], {{dq, c.Hk}, {dq, c.Hk}, {dv, c.Hv}}, "qkv");
      const Tensors gates = split(ctx, in[1], {{dg, c.gates()}, {dg, c.gates()}, {dv, c.Hv}}, "gates");
      rule = {qkv[0], qkv[1], qkv[2], gates[0], gates[1], gates[2], {}, {}, {}};
    } else {
      rule = {in[0], in[1], in[2], in[3], in[4], in[5], {}, {}, {}};
    }
    std::size_t next = gates_end;
    if (c.raw) {
      rule.A_log = in[next++];
      rule.dt_bias = in[next++];
    }
    if (c.initial) rule.initial_state = in[next++];
    const GatedDeltaRuleResult result = gated_delta_rule_2(ctx, rule, layout, options, "rule");
    Tensors used;
    if (c.out_used) used.push_back(result.out);
    if (c.final_used) used.push_back(*result.final_state);
    return used;
  });
}

TEST(Gdn2Gradients, rule_with_activated_gates) { check_rule({}); }
TEST(Gdn2Gradients, rule_with_activated_gates_lengths_free_and_a_scale) { check_rule({.l2 = false, .scale = 0.8}); }
TEST(Gdn2Gradients, rule_with_raw_gates) { check_rule({.raw = true}); }
TEST(Gdn2Gradients, rule_with_raw_gates_and_negative_eigenvalues) { check_rule({.raw = true, .neg_eigval = true}); }
TEST(Gdn2Gradients, rule_with_more_value_heads_a_key_head) { check_rule({.Hk = 2, .Hv = 6, .raw = true}); }
TEST(Gdn2Gradients, rule_with_gates_of_their_own_a_value_head) {
  check_rule({.Hk = 2, .Hv = 4, .gate_heads = GateHeads::Values, .raw = true});
}
TEST(Gdn2Gradients, rule_reading_strided_pieces) { check_rule({.Hk = 2, .Hv = 4, .raw = true, .l2 = false, .strided = true}); }
TEST(Gdn2Gradients, rule_from_an_initial_to_a_used_final_state) { check_rule({.raw = true, .initial = true, .final_used = true}); }
TEST(Gdn2Gradients, rule_with_only_its_final_state_used) { check_rule({.initial = true, .final_used = true, .out_used = false}); }
TEST(Gdn2Gradients, rule_over_three_chunks) { check_rule({.T = 140, .Hv = 1, .K = 3, .V = 2, .raw = true}); }

TEST(Gdn2Rule, gates_of_several_types_get_gradients_of_their_own_types) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 20});
  GatedDeltaRule2Options options;
  options.key_heads = options.value_heads = 1;
  options.key_dim = options.value_dim = 4;
  const auto leaf = [&](const char* name, DType dtype, double shift) {
    return make_leaf(test::random_tensor(ctx, {20, 1, 4}, dtype, 7, 0.1, name, shift), name);
  };
  const GatedDeltaRule2Inputs in = {leaf("q", DType::BF16, 0.3),
                                    leaf("k", DType::BF16, 0.3),
                                    leaf("v", DType::BF16, 0.3),
                                    leaf("g", DType::F32, -0.3),
                                    leaf("b", DType::BF16, 0.5),
                                    leaf("w", DType::BF16, 0.5),
                                    {},
                                    {},
                                    {}};
  const Tensor out = gated_delta_rule_2(ctx, in, layout, options, "rule").out;
  backward(ctx, {out}, {test::random_tensor(ctx, {20, 4}, DType::BF16, 9)});
  EXPECT_EQ(test::gradient_of(in.decay).dtype(), DType::F32);
  EXPECT_EQ(test::gradient_of(in.b).dtype(), DType::BF16);
  EXPECT_GT(test::largest(to_doubles(ctx, test::gradient_of(in.w))), 0);
}

TEST(Gdn2Rule, keeps_its_inputs_and_nothing_else) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 70});
  GatedDeltaRule2Options options;
  options.key_heads = options.value_heads = 1;
  options.key_dim = options.value_dim = 4;
  const auto leaf = [&](const char* name) {
    return make_leaf(test::random_tensor(ctx, {70, 1, 4}, DType::F32, 7, 0.1, name), name);
  };
  const GatedDeltaRule2Inputs in = {leaf("q"), leaf("k"), leaf("v"), leaf("g"), leaf("b"), leaf("w"), {}, {}, {}};
  const GatedDeltaRuleResult result = gated_delta_rule_2(ctx, in, layout, options, "rule");
  EXPECT_EQ(ctx.memory()->stats().saved, 6 * 70 * 4 * 4);
}

TEST(Gdn2Rule, inputs_that_do_not_match_the_options_are_refused_each_in_its_own_words) {
  Context ctx(small_context());
  const LayoutPtr layout = layout_of(ctx, {0, 2, 6});
  const auto tensor = [&](Shape shape, DType dtype = DType::F32) { return Tensor::zeros(ctx, shape, dtype, "t"); };
  GatedDeltaRule2Options good;
  good.key_heads = 2;
  good.value_heads = 4;
  good.key_dim = 3;
  good.value_dim = 5;
  const GatedDeltaRule2Inputs fine = {
      tensor({6, 2, 3}), tensor({6, 2, 3}), tensor({6, 4, 5}), tensor({6, 2, 3}), tensor({6, 2, 3}), tensor({6, 4, 5}), {}, {}, {}};
  gated_delta_rule_2(ctx, fine, layout, good, "rule");
  struct Row {
    std::function<void(GatedDeltaRule2Inputs&, GatedDeltaRule2Options&)> spoil;
    std::vector<std::string> parts;
  };
  const auto raw = [](GatedDeltaRule2Options& o) { o.gate_form = kernels::GateForm::Raw; };
  const std::vector<Row> rows = {
      {[](auto&, auto& o) { o.value_heads = 3; }, {"head counts", "Hk 2, Hv 3"}},
      {[](auto& i, auto&) { i.q = Tensor(); }, {"q is missing"}},
      {[&](auto& i, auto&) {
         i.q = tensor({5, 2, 3});
       },
       {"shape of q", "[5,2,3]", "[6,2,3]"}},
      {[&](auto& i, auto&) {
         i.k = tensor({6, 2, 4});
       },
       {"shape of k", "[6,2,4]"}},
      {[&](auto& i, auto&) {
         i.v = tensor({6, 2, 5});
       },
       {"shape of v", "[6,2,5]"}},
      {[&](auto& i, auto&) {
         i.decay = tensor({6, 4, 3});
       },
       {"shape of decay", "[6,4,3]", "[6,2,3]"}},
      {[](auto&, auto& o) { o.gate_heads = GateHeads::Values; }, {"shape of decay", "[6,2,3]", "[6,4,3]"}},
      {[&](auto& i, auto&) {
         i.b = tensor({6, 2, 5});
       },
       {"shape of b", "[6,2,5]"}},
      {[](auto& i, auto&) { i.w = Tensor(); }, {"w is missing"}},
      {[&](auto& i, auto&) {
         i.w = tensor({6, 4, 3});
       },
       {"shape of w", "[6,4,3]"}},
      {[&](auto& i, auto&) {
         i.v = tensor({6, 4, 5}, DType::BF16);
       },
       {"dtypes of q, k, v"}},
      {[&](auto& i, auto&) { i.A_log = tensor({2}); }, {"A_log is given"}},
      {[](auto&, auto& o) { o.allow_neg_eigval = true; }, {"allow_neg_eigval"}},
      {[&](auto&, auto& o) { raw(o); }, {"A_log is missing"}},
      {[&](auto& i, auto& o) {
         raw(o);
         i.A_log = tensor({2});
         i.dt_bias = tensor({2});
       },
       {"shape of dt_bias", "[2]", "[6]"}},
      {[&](auto& i, auto& o) {
         raw(o);
         i.A_log = tensor({2}, DType::BF16);
         i.dt_bias = tensor({6}, DType::BF16);
       },
       {"dtype of A_log"}},
      {[&](auto& i, auto&) {
         i.initial_state = tensor({1, 4, 3, 5});
       },
       {"shape of initial_state", "[1,4,3,5]", "[2,4,3,5]"}},
      {[&](auto& i, auto&) {
         i.initial_state = tensor({2, 4, 3, 5}, DType::BF16);
       },
       {"dtype of initial_state"}},
  };
  for (const Row& row : rows) {
    GatedDeltaRule2Inputs inputs = fine;
    GatedDeltaRule2Options options = good;
    row.spoil(inputs, options);
    EXPECT_TRUE(contains(message_of([&] { gated_delta_rule_2(ctx, inputs, layout, options, "rule"); }, ErrorCode::InvalidOpInput),
                         row.parts));
  }
}

}  // namespace
}  // namespace deltron
