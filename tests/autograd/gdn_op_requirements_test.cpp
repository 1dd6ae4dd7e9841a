// The demands on the public operations gated_delta_rule and gated_delta_rule_2 (docs/gdn.md section 14), one named test each, R01 to R26.
// Where another file tests a demand more widely, the test here is short and says the essence.
#include <limits>
#include <set>

#include "src/autograd/functions_gdn2.h"
#include "src/autograd/recompute.h"
#include "src/base/file.h"
#include "tests/autograd/op_requirements_support.h"

namespace deltron {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): a test file
using Tensors = std::vector<Tensor>;

// R1: each rule is an operation of its own with its own options. What is given selects nothing: the declared form does.
TEST(OpRequirements, R01_no_mode_follows_from_which_tensors_are_given) {
  static_assert(!std::is_same_v<GatedDeltaRuleOptions, GatedDeltaRule2Options>);
  OpCase c;
  Op op(c, DType::F32);
  op.in1.A_log = op.tensor({c.Hv}, DType::F32, 0.1);  // raw gates are declared, not guessed from A_log
  op.in1.dt_bias = op.in1.A_log;
  EXPECT_TRUE(contains(message_of([&] { op.run(); }, ErrorCode::InvalidOpInput), {"A_log is given", "gate form activated"}));
  OpCase raw;
  raw.raw = true;
  Op other(raw, DType::F32);
  other.in1.A_log = Tensor();
  EXPECT_TRUE(contains(message_of([&] { other.run(); }, ErrorCode::InvalidOpInput), {"A_log is missing"}));
}

// R2: every field has an effect or is refused. The structured bindings name all fields: one more and this file does not compile.
TEST(OpRequirements, R02_every_option_has_an_effect_or_is_refused) {
  {
    const auto [key_heads, value_heads, key_dim, value_dim, gate_heads, gate_form, allow_neg_eigval, use_qk_l2norm, scale, output_final_state,
                layout] = GatedDeltaRuleOptions{};
    EXPECT_EQ(key_heads + value_heads + key_dim + value_dim, 0) << "sizes have no default: they are declared";
    EXPECT_EQ(gate_heads, GateHeads::Values);
    EXPECT_EQ(gate_form, kernels::GateForm::Activated);
    EXPECT_FALSE(allow_neg_eigval || use_qk_l2norm || output_final_state);
    EXPECT_EQ(scale, 0);
    EXPECT_EQ(layout, TensorLayout::Thd);
  }
  {
    const auto [key_heads, value_heads, key_dim, value_dim, gate_heads, gate_form, allow_neg_eigval, use_qk_l2norm, scale, output_final_state,
                layout] = GatedDeltaRule2Options{};
    EXPECT_EQ(key_heads + value_heads + key_dim + value_dim, 0);
    EXPECT_EQ(gate_heads, GateHeads::Keys);
    EXPECT_EQ(gate_form, kernels::GateForm::Activated);
    EXPECT_FALSE(allow_neg_eigval || use_qk_l2norm || output_final_state);
    EXPECT_EQ(scale, 0);
    EXPECT_EQ(layout, TensorLayout::Thd);
  }
  for (const bool second : {false, true}) {
    OpCase c;
    c.second = second;
    c.raw = true;
    const auto out_with = [&](const std::function<void(Op&)>& change) {
      Op op(c, DType::F32);
      change(op);
      return bits_of(op.ctx, op.run().out);
    };
    const auto plain = out_with([](Op&) {});
    EXPECT_EQ(out_with([](Op&) {}), plain);
    EXPECT_NE(out_with([](Op& op) { op.each([](auto& o) { o.allow_neg_eigval = true; }); }), plain);
    EXPECT_NE(out_with([](Op& op) { op.each([](auto& o) { o.use_qk_l2norm = false; }); }), plain);
    EXPECT_NE(out_with([](Op& op) { op.each([](auto& o) { o.scale = 0.7; }); }), plain);
    const auto refused = [&](const std::function<void(Op&)>& change, const std::string& part) {
      Op op(c, DType::F32);
      change(op);
      EXPECT_TRUE(contains(message_of([&] { op.run(); }, ErrorCode::InvalidOpInput), {part}));
    };
    refused([](Op& op) { op.each([](auto& o) { o.key_heads = 4; }); }, "shape of q");
    refused([](Op& op) { op.each([](auto& o) { o.value_heads = 2; }); }, "shape of v");
    refused([](Op& op) { op.each([](auto& o) { o.key_dim = 7; }); }, "shape of q");
    refused([](Op& op) { op.each([](auto& o) { o.value_dim = 7; }); }, "shape of v");
    refused([](Op& op) { op.each([](auto& o) { o.gate_form = kernels::GateForm::Activated; }); }, "A_log is given");
    refused([](Op& op) { op.each([](auto& o) { o.layout = TensorLayout::Bshd; }); }, "documents of unequal lengths");
    refused([](Op& op) { op.each([](auto& o) { o.scale = -1; }); }, "scale");
    refused([](Op& op) { op.each([](auto& o) { o.scale = std::numeric_limits<double>::quiet_NaN(); }); }, "scale");
    refused([](Op& op) { op.each([&](auto& o) { o.gate_heads = op.c.second ? GateHeads::Values : GateHeads::Keys; }); },
            second ? "shape of A_log" : "gate heads");
    Op with_state(c, DType::F32), without(c, DType::F32);
    with_state.each([](auto& o) { o.output_final_state = true; });
    EXPECT_TRUE(with_state.run().final_state.has_value());
    EXPECT_FALSE(without.run().final_state.has_value());
  }
}

// R3: initial_state is an input like the others in a replayed region; an input that gets no gradient is an error.
TEST(OpRequirements, R03_every_differentiable_input_is_a_slot_of_a_replayed_region_and_must_receive_a_gradient) {
  for (const bool second : {false, true}) {
    OpCase c;
    c.second = c.raw = c.initial = true;
    c.second = second;
    Op op(c, DType::F64);
    const Tensor out = recompute(op.ctx, "rule", [&](const Tensors& in) { return Tensors{op.run_with(in).out}; }, op.leaves())[0];
    backward_of(op.ctx, out);
    for (const Tensor& leaf : op.leaves()) EXPECT_TRUE(gradient_of(leaf).defined()) << leaf.name();
  }
  OpCase c;
  Op op(c, DType::F64);
  // A region that does not read one of its inputs: found, not passed over as a zero.
  const Tensor out = recompute(op.ctx, "rule", [&](const Tensors& in) {
    Tensors used = in;
    used[4] = op.leaves()[4].detached();
    return Tensors{op.run_with(used).out};
  }, op.leaves())[0];
  EXPECT_TRUE(contains(message_of([&] { backward_of(op.ctx, out); }), {"received no gradient"}));
}

TEST(OpRequirements, R04_gradient_of_initial_state_with_and_without_recompute) {
  for (const bool second : {false, true}) {
    std::vector<std::vector<std::uint64_t>> bits[2];
    for (const bool replayed : {false, true}) {
      OpCase c;
      c.second = second;
      c.initial = c.final_state = true;
      Op op(c, DType::F64);
      const auto region = [&](const Tensors& in) {
        const GatedDeltaRuleResult result = op.run_with(in);
        return Tensors{result.out, *result.final_state};
      };
      const Tensors results = replayed ? recompute(op.ctx, "rule", region, op.leaves()) : region(op.leaves());
      backward(op.ctx, results, {random_tensor(op.ctx, results[0].shape(), DType::F64, 70), random_tensor(op.ctx, results[1].shape(), DType::F64, 71)});
      const Tensor state = gradient_of(op.leaves().back());
      EXPECT_GT(largest(to_doubles(op.ctx, state)), 0);
      for (const Tensor& leaf : op.leaves()) bits[replayed].push_back(bits_of(op.ctx, gradient_of(leaf)));
    }
    EXPECT_EQ(bits[0], bits[1]);
  }
}

TEST(OpRequirements, R05_reduced_precision_that_is_not_supported_raises) {
  for (const bool second : {false, true}) {
    for (const DType dtype : {DType::F16, DType::I32, DType::U8}) {
      OpCase c;
      c.second = second;
      Op op(c, dtype);
      EXPECT_TRUE(contains(message_of([&] { op.run(); }, ErrorCode::InvalidOpInput), {"dtype of q", dtype_name(dtype)}));
    }
  }
}

// R6: memory scope and gradient mode are what they were, whichever way a call ends.
TEST(OpRequirements, R06_one_bracket_around_every_path_also_the_one_that_throws) {
  OpCase c;
  Op op(c, DType::F32);
  ScopeGuard outer(op.ctx, 3, "outer");
  const bool grad = op.ctx.slot<AutogradState>().grad_enabled;
  const auto unchanged = [&] {
    EXPECT_STREQ(op.ctx.scope().region, "outer");
    EXPECT_EQ(op.ctx.scope().layer, 3);
    EXPECT_EQ(op.ctx.slot<AutogradState>().grad_enabled, grad);
    EXPECT_TRUE(op.ctx.slot<AutogradState>().saved_hooks.empty());
  };
  const Tensor out = recompute(op.ctx, "rule", [&](const Tensors& in) { return Tensors{op.run_with(in).out}; }, op.leaves())[0];
  unchanged();
  backward_of(op.ctx, out);
  unchanged();
  const auto broken = [&](const Tensors&) -> Tensors {
    Op bad(c, DType::F32);
    bad.in1.q = Tensor();
    ScopeGuard inner(op.ctx, 4, "inner");
    return {bad.run().out};
  };
  EXPECT_THROW(recompute(op.ctx, "rule", broken, op.leaves()), Error);
  unchanged();
}

TEST(OpRequirements, R07_head_counts_are_declared_and_the_output_width_follows_from_them) {
  for (const bool second : {false, true}) {
    OpCase c;
    c.second = second;
    Op op(c, DType::F32);
    EXPECT_EQ(op.run().out.shape(), (Shape{c.tokens(), c.Hv * c.V}));
    for (const auto& [Hk, Hv] : {std::pair<int, int>{2, 3}, {4, 2}, {0, 4}, {2, 0}, {-1, 4}}) {
      Op wrong(c, DType::F32);
      wrong.each([&, keys = Hk, values = Hv](auto& o) { o.key_heads = keys, o.value_heads = values; });
      EXPECT_TRUE(contains(message_of([&] { wrong.run(); }, ErrorCode::InvalidOpInput), {"head counts", "Hk " + std::to_string(Hk)}));
    }
  }
}

// R8: on meta there are no values to read, and everything is checked all the same.
TEST(OpRequirements, R08_forward_and_backward_read_no_value_on_the_host) {
  for (const bool second : {false, true}) {
    OpCase c;
    c.second = second;
    c.initial = c.final_state = true;
    c.device = DeviceKind::Meta;
    Op op(c, DType::BF16);
    const GatedDeltaRuleResult result = op.run();
    backward(op.ctx, {result.out}, {Tensor::empty(op.ctx, result.out.shape(), DType::BF16, "seed")});
    op.in1.k = op.in2.k = Tensor::empty(op.ctx, {1, 1, 1}, DType::BF16, "k");
    EXPECT_TRUE(contains(message_of([&] { op.run(); }, ErrorCode::InvalidOpInput), {"shape of k"}));
  }
}

TEST(OpRequirements, R09_dense_offsets_are_made_once_for_a_batch_and_length) {
  Context ctx(small_context());
  const LayoutPtr first = dense_layout(ctx, 3, 8);
  const std::int64_t allocations = ctx.memory()->stats().allocations;
  EXPECT_EQ(dense_layout(ctx, 3, 8), first);
  EXPECT_EQ(ctx.memory()->stats().allocations, allocations);
  EXPECT_NE(dense_layout(ctx, 8, 3), first);
  EXPECT_EQ(first->cu_seqlens(), (std::vector<std::int64_t>{0, 8, 16, 24}));
}

TEST(OpRequirements, R10_offsets_are_validated_once_on_the_host_when_they_are_made) {
  Context ctx(small_context());
  const auto message = [&](const std::vector<std::int64_t>& offsets) {
    return message_of([&] { SequenceLayout(ctx, offsets, 6); }, ErrorCode::InvalidOffsets);
  };
  EXPECT_TRUE(contains(message({1, 6}), {"does not start at 0", "1"}));
  EXPECT_TRUE(contains(message({0, 4, 3, 6}), {"decreases", "offset 2 is 3 after 4"}));
  EXPECT_TRUE(contains(message({0, 5}), {"last offset 5, tokens 6"}));
  EXPECT_TRUE(contains(message({0}), {"no document"}));
  EXPECT_NO_THROW(SequenceLayout(ctx, {0, 0, 6, 6}, 6)) << "empty documents are legal";
}

// R11: q, k, v and gates are judged against the one offsets object, so that there is nothing to compare in pairs.
TEST(OpRequirements, R11_one_offsets_object_serves_all_inputs) {
  OpCase c;
  Op op(c, DType::F32);
  const LayoutPtr shorter = layout_of(op.ctx, {0, 3});
  EXPECT_TRUE(contains(message_of([&] { gated_delta_rule(op.ctx, op.in1, shorter, op.o1, "rule"); }, ErrorCode::InvalidOpInput),
                       {"shape of q", "[" + std::to_string(c.tokens()) + ",2,5]", "[3,2,5]"}));
  EXPECT_TRUE(contains(message_of([&] { gated_delta_rule(op.ctx, op.in1, nullptr, op.o1, "rule"); }, ErrorCode::InvalidOpInput),
                       {"offsets are missing"}));
}

TEST(OpRequirements, R12_which_kernel_serves_a_call_is_a_pure_question) {
  const std::string first = kernels::cpu::gated_delta_rule_kernel_name(), second = kernels::cpu::gated_delta_rule_2_kernel_name();
  OpCase c;
  Op(c, DType::F32).run();
  EXPECT_EQ(kernels::cpu::gated_delta_rule_kernel_name(), first);
  EXPECT_EQ(kernels::cpu::gated_delta_rule_2_kernel_name(), second);
  EXPECT_NE(first.find(instruction_set()), std::string::npos) << first;
}

// R13: the CPU form is part of every build, so nothing here may be passed over: no test of this file is ever left out.
TEST(OpRequirements, R13_the_tests_run_wherever_the_project_is_built) {
  const std::string text = read_file(std::string(DELTRON_SOURCE_DIR) + "/tests/autograd/gdn_op_requirements_test.cpp");
  EXPECT_EQ(text.find(std::string("GTEST_") + "SKIP"), std::string::npos);
  EXPECT_EQ(text.find(std::string("DISABLED") + "_"), std::string::npos);
  for (int number = 1; number <= 26; ++number) {
    const std::string name = std::string("OpRequirements, R") + (number < 10 ? "0" : "") + std::to_string(number) + "_";
    EXPECT_NE(text.find(name), std::string::npos) << name;
  }
  EXPECT_STRNE(kernels::cpu::gated_delta_rule_kernel_name(), "");
}

TEST(OpRequirements, R14_two_pieces_with_the_state_carried_over_are_one_call) {
  for (const bool second : {false, true}) {
    for (const std::int64_t cut : {1, 63, 64, 65, 100}) {
      OpCase c;
      c.second = second;
      c.offsets = {0, 150};
      c.initial = c.final_state = true;
      Op op(c, DType::F64);
      const GatedDeltaRuleResult whole = op.run();
      const GatedDeltaRuleResult one = op.run_piece(0, cut, op.state()), two = op.run_piece(cut, 150 - cut, *one.final_state);
      std::vector<double> out = to_doubles(op.ctx, one.out);
      const std::vector<double> rest = to_doubles(op.ctx, two.out);
      out.insert(out.end(), rest.begin(), rest.end());
      EXPECT_LE(relative_difference(out, to_doubles(op.ctx, whole.out)), 1e-12) << cut;
      EXPECT_LE(relative_difference(to_doubles(op.ctx, *two.final_state), to_doubles(op.ctx, *whole.final_state)), 1e-12) << cut;
    }
  }
}

TEST(OpRequirements, R15_ragged_and_empty_documents_give_what_each_gives_alone) {
  for (const bool second : {false, true}) {
    OpCase c;
    c.second = second;
    c.offsets = {0, 0, 1, 66, 66, 130, 167};
    c.initial = c.final_state = true;
    Op op(c, DType::F32);
    const GatedDeltaRuleResult all = op.run();
    for (std::size_t n = 0; n + 1 < c.offsets.size(); ++n) {
      const std::int64_t begin = c.offsets[n], length = c.offsets[n + 1] - begin;
      const Tensor state = op.state().slice(0, static_cast<std::int64_t>(n), 1), last = all.final_state->slice(0, static_cast<std::int64_t>(n), 1);
      if (length == 0) {
        EXPECT_EQ(bits_of(op.ctx, last), bits_of(op.ctx, state)) << "an empty document hands its state on";
        continue;
      }
      const GatedDeltaRuleResult alone = op.run_piece(begin, length, state);
      EXPECT_EQ(bits_of(op.ctx, alone.out), bits_of(op.ctx, all.out.slice(0, begin, length)));
      EXPECT_EQ(bits_of(op.ctx, *alone.final_state), bits_of(op.ctx, last));
    }
  }
}

TEST(OpRequirements, R16_every_dtype_is_right_or_refused) {
  for (const bool second : {false, true}) {
    OpCase c;
    c.second = second;
    c.initial = c.final_state = true;
    for (const DType dtype : {DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I64, DType::U8, DType::U16, DType::Bool}) {
      Op op(c, dtype);
      if (dtype == DType::F32 || dtype == DType::F64 || dtype == DType::BF16) {
        const double limit = dtype == DType::F64 ? 1e-12 : dtype == DType::F32 ? 2e-6 : 6e-3;
        op.compare_with_reference(limit);
      } else {
        EXPECT_TRUE(contains(message_of([&] { op.run(); }, ErrorCode::InvalidOpInput), {"dtype of q", dtype_name(dtype)}));
      }
    }
    // Gates and parameters have their own rules.
    for (const DType wrong : {DType::F64, DType::F16}) {
      Op gates(c, DType::F32);
      gates.in1.decay = gates.in2.decay = gates.tensor(gates.gate_shape(), wrong, 0.1);
      EXPECT_TRUE(contains(message_of([&] { gates.run(); }, ErrorCode::InvalidOpInput), {"dtype of decay", dtype_name(wrong)}));
      Op state(c, DType::F32);
      state.in1.initial_state = state.in2.initial_state = state.tensor(state.state().shape(), wrong, 0.1);
      EXPECT_TRUE(contains(message_of([&] { state.run(); }, ErrorCode::InvalidOpInput), {"dtype of initial_state", dtype_name(wrong)}));
    }
  }
}

// R17: the guards of shapes and forms have their table in gradients_gdn_test.cpp and gradients_gdn2_test.cpp; the rest stands here.
TEST(OpRequirements, R17_every_guard_has_its_own_message) {
  struct Row {
    std::function<void(Op&)> spoil;
    std::vector<std::string> parts;
  };
  Context meta(small_context(1, DeviceKind::Meta));
  const std::vector<Row> rows = {
      {[](Op& op) { op.each([](auto& o) { o.value_heads = 3; }); }, {"head counts"}},
      {[](Op& op) { op.each([](auto& o) { o.key_dim = 0; }); }, {"head dims", "K 0"}},
      {[](Op& op) { op.each([](auto& o) { o.scale = -2; }); }, {"scale", "-2"}},
      {[](Op& op) { op.layout = nullptr; }, {"offsets are missing"}},
      {[](Op& op) { op.in1.v = op.in2.v = Tensor(); }, {"v is missing"}},
      {[](Op& op) { op.in1.v = op.in2.v = op.tensor({1, 4, 3}, DType::F32, 1); }, {"shape of v", "[1,4,3]"}},
      {[&](Op& op) { op.in1.k = op.in2.k = Tensor::empty(meta, op.in1.k.shape(), DType::F32, "k"); }, {"device of k", "meta"}},
      {[](Op& op) {
         const Tensor t = op.tensor({5, op.c.tokens(), 2}, DType::F32, 1);
         op.in1.q = op.in2.q = Tensor(t.storage(), t.dtype(), {op.c.tokens(), 2, 5}, {2, 1, op.c.tokens() * 2}, 0);
       },
       {"last dimension of q"}},
      {[](Op& op) {
         const Tensor t = op.in1.q;
         op.in1.q = op.in2.q = Tensor(t.storage(), t.dtype(), t.shape(), {0, 5, 1}, 0);
       },
       {"q is broadcast"}},
      {[](Op& op) { op.in1.v = op.in2.v = op.tensor(op.in1.v.shape(), DType::BF16, 1); }, {"dtypes of q, k, v"}},
      {[](Op& op) { op.in1.dt_bias = op.in2.dt_bias = op.tensor({4}, DType::F32, 1); }, {"dt_bias is given"}},
      {[](Op& op) { op.each([](auto& o) { o.allow_neg_eigval = true; }); }, {"allow_neg_eigval"}},
      {[](Op& op) { op.each([](auto& o) { o.layout = TensorLayout::Sbhd; }); }, {"documents of unequal lengths", "sbhd"}},
      {[](Op& op) {
         const Tensor t = op.tensor({4, op.c.documents(), 5, 3}, DType::F32, 1);
         op.in1.initial_state = op.in2.initial_state =
             Tensor(t.storage(), t.dtype(), {op.c.documents(), 4, 5, 3}, {15, 15 * op.c.documents(), 3, 1}, 0);
       },
       {"initial_state is not contiguous"}},
  };
  for (const bool second : {false, true}) {
    std::set<std::string> messages;
    for (const Row& row : rows) {
      OpCase c;
      c.second = second;
      Op op(c, DType::F32);
      row.spoil(op);
      const std::string message = message_of([&] { op.run(); }, ErrorCode::InvalidOpInput);
      EXPECT_TRUE(contains(message, row.parts));
      messages.insert(message);
    }
    EXPECT_EQ(messages.size(), rows.size());
  }
}

// R18: offsets that end early (padding behind the documents) and offsets that belong to another buffer differ in values; neighbouring
// faults differ in words.
TEST(OpRequirements, R18_distinct_conditions_have_distinct_messages) {
  Context ctx(small_context());
  std::set<std::string> messages;
  for (const auto& [offsets, tokens] : std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>>{
           {{}, 6}, {{0}, 6}, {{2, 6}, 6}, {{0, 4, 2, 6}, 6}, {{0, 4}, 6}, {{0, 8}, 6}}) {
    messages.insert(message_of([&, cu = offsets, t = tokens] { SequenceLayout(ctx, cu, t); }, ErrorCode::InvalidOffsets));
  }
  EXPECT_EQ(messages.size(), 6u);
}

TEST(OpRequirements, R19_a_lone_or_missing_gate_argument_is_named) {
  const auto message = [](bool second, bool raw, const std::function<void(Op&)>& spoil) {
    OpCase c;
    c.second = second;
    c.raw = raw;
    Op op(c, DType::F32);
    spoil(op);
    return message_of([&] { op.run(); }, ErrorCode::InvalidOpInput);
  };
  for (const bool second : {false, true}) {
    EXPECT_TRUE(contains(message(second, false, [](Op& op) { op.in1.A_log = op.in2.A_log = op.tensor({4}, DType::F32, 1); }), {"A_log is given", "activated"}));
    EXPECT_TRUE(contains(message(second, false, [](Op& op) { op.in1.dt_bias = op.in2.dt_bias = op.tensor({4}, DType::F32, 1); }), {"dt_bias is given", "activated"}));
    EXPECT_TRUE(contains(message(second, true, [](Op& op) { op.in1.dt_bias = op.in2.dt_bias = Tensor(); }), {"dt_bias is missing"}));
    EXPECT_TRUE(contains(message(second, true, [](Op& op) { op.in1.decay = op.in2.decay = Tensor(); }), {"decay is missing"}));
  }
  EXPECT_TRUE(contains(message(false, false, [](Op& op) { op.in1.beta = Tensor(); }), {"beta is missing"}));
  EXPECT_TRUE(contains(message(true, false, [](Op& op) { op.in2.b = Tensor(); }), {"b is missing"}));
  EXPECT_TRUE(contains(message(true, false, [](Op& op) { op.in2.w = Tensor(); }), {"w is missing"}));
}

TEST(OpRequirements, R20_the_result_is_one_struct_with_and_without_a_graph_or_a_replay) {
  static_assert(std::is_same_v<decltype(gated_delta_rule(std::declval<Context&>(), {}, {}, {}, "")), GatedDeltaRuleResult>);
  static_assert(std::is_same_v<decltype(gated_delta_rule_2(std::declval<Context&>(), {}, {}, {}, "")), GatedDeltaRuleResult>);
  for (const bool second : {false, true}) {
    OpCase c;
    c.second = second;
    c.final_state = true;
    Op op(c, DType::F32);
    const GatedDeltaRuleResult recorded = op.run();
    GatedDeltaRuleResult plain, replayed;
    {
      GradModeGuard no_graph(op.ctx, false);
      plain = op.run();
    }
    recompute(op.ctx, "rule", [&](const Tensors& in) {
      replayed = op.run_with(in);
      return Tensors{replayed.out, *replayed.final_state};
    }, op.leaves());
    for (const GatedDeltaRuleResult* other : {&plain, &replayed}) {
      EXPECT_EQ(bits_of(op.ctx, other->out), bits_of(op.ctx, recorded.out));
      EXPECT_EQ(bits_of(op.ctx, *other->final_state), bits_of(op.ctx, *recorded.final_state));
    }
  }
}

// R21: a dense batch is the case of equal lengths, with the same words and the same bits.
TEST(OpRequirements, R21_dense_and_packed_speak_of_the_same_offsets) {
  for (const bool second : {false, true}) {
    OpCase packed;
    packed.second = second;
    packed.offsets = {0, 70, 140};
    OpCase dense = packed;
    dense.layout = TensorLayout::Bshd;
    Op one(packed, DType::F32), other(dense, DType::F32);
    EXPECT_EQ(bits_of(one.ctx, one.run().out), bits_of(other.ctx, other.run().out));
    EXPECT_EQ(dense_layout(one.ctx, 2, 70)->cu_seqlens(), one.layout->cu_seqlens());
  }
}

TEST(OpRequirements, R22_the_public_operations_and_each_of_their_options_are_documented) {
  const std::string page = read_file(std::string(DELTRON_SOURCE_DIR) + "/docs/gdn.md");
  for (const char* word : {"`gated_delta_rule`", "`gated_delta_rule_2`", "`key_heads`", "`value_heads`", "`key_dim`", "`value_dim`", "`gate_heads`",
                           "`gate_form`", "`allow_neg_eigval`", "`use_qk_l2norm`", "`scale`", "`output_final_state`", "`layout`", "`initial_state`"})
    EXPECT_NE(page.find(word), std::string::npos) << word;
}

TEST(OpRequirements, R23_the_l2_norm_comes_first_then_the_scale_on_q) {
  for (const bool second : {false, true}) {
    OpCase c;
    c.second = second;
    Op op(c, DType::F64), longer(c, DType::F64), scaled_op(c, DType::F64);
    op.each([](auto& o) { o.scale = 0.25; });
    longer.each([](auto& o) { o.scale = 0.25; });
    scaled_op.each([](auto& o) { o.scale = 0.5; });
    std::vector<double> q = to_doubles(longer.ctx, longer.in1.q);
    for (double& value : q) value *= 1000;
    longer.in1.q = longer.in2.q = make_tensor(longer.ctx, longer.in1.q.shape(), DType::F64, q, "q");
    const std::vector<double> plain = to_doubles(op.ctx, op.run().out), twice = to_doubles(scaled_op.ctx, scaled_op.run().out);
    // The norm's epsilon is all that a thousandfold q leaves to see.
    EXPECT_LE(relative_difference(to_doubles(longer.ctx, longer.run().out), plain), 1e-5) << "the length of q is normalised away";
    for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_DOUBLE_EQ(twice[i], 2 * plain[i]) << "the scale is not";
  }
}

// R24: forward and every gradient from views of three memory orders, bit by bit; states are [N,Hv,K,V] of the compute type.
TEST(OpRequirements, R24_layouts_bshd_sbhd_and_thd_read_in_place) {
  for (const bool second : {false, true}) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      std::vector<std::vector<double>> results[3];
      for (const TensorLayout layout : {TensorLayout::Thd, TensorLayout::Bshd, TensorLayout::Sbhd}) {
        OpCase c;
        c.second = second;
        c.raw = c.initial = c.final_state = true;
        c.offsets = {0, 70, 140, 210};
        c.layout = layout;
        Op op(c, dtype);
        const std::int64_t before = op.ctx.memory()->stats().saved;
        const GatedDeltaRuleResult result = op.run();
        EXPECT_EQ(result.final_state->shape(), (Shape{3, c.Hv, c.K, c.V}));
        EXPECT_EQ(result.final_state->dtype(), DType::F32);
        EXPECT_TRUE(result.out.is_contiguous());
        if (second) {
          std::int64_t inputs = 0;
          for (const Tensor& leaf : op.leaves()) inputs += leaf.bytes();
          EXPECT_EQ(op.ctx.memory()->stats().saved - before, inputs) << "nothing is transposed into a copy";
        }
        backward(op.ctx, {result.out, *result.final_state},
                 {op.placed({c.Hv * c.V}, dtype, 80, 1, 0, "d_out"), random_tensor(op.ctx, result.final_state->shape(), DType::F32, 81)});
        std::vector<std::vector<double>>& seen = results[static_cast<int>(layout)];
        seen.push_back(op.in_token_order(result.out));
        seen.push_back(to_doubles(op.ctx, *result.final_state));
        for (const Tensor& leaf : op.leaves()) seen.push_back(op.in_token_order(gradient_of(leaf)));
      }
      EXPECT_EQ(results[1], results[0]);
      EXPECT_EQ(results[2], results[0]);
    }
  }
}

TEST(OpRequirements, R25_padding_between_or_behind_documents_is_refused) {
  Context ctx(small_context());
  EXPECT_TRUE(contains(message_of([&] { SequenceLayout(ctx, {0, 3, 5}, 8); }, ErrorCode::InvalidOffsets), {"last offset 5, tokens 8"}));
  // Offsets alone say where documents are: one ends where the next begins, so a gap cannot even be written down.
  const SequenceLayout layout(ctx, {0, 3, 8}, 8);
  std::int64_t covered = 0;
  for (std::size_t n = 0; n + 1 < layout.cu_seqlens().size(); ++n) covered += layout.cu_seqlens()[n + 1] - layout.cu_seqlens()[n];
  EXPECT_EQ(covered, layout.tokens());
}

TEST(OpRequirements, R26_forward_backward_final_state_and_grouped_heads_match_the_sequential_reference) {
  for (const bool second : {false, true}) {
    for (const bool raw : {false, true}) {
      for (const std::int64_t Hk : {1, 2, 4}) {
        OpCase c;
        c.second = second;
        c.raw = raw;
        c.Hk = Hk;
        c.initial = c.final_state = true;
        Op(c, DType::F64).compare_with_reference(1e-12);
        Op(c, DType::F32).compare_with_reference(3e-6);
      }
    }
  }
}

}  // namespace
}  // namespace deltron
