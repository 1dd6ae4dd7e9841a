// The engine: order of nodes, fan-in, hooks, what it refuses, re-entrance, and memory that comes back.
#include "src/autograd/engine.h"

#include "tests/autograd/test_nodes.h"

namespace deltron {
namespace {

using test::backward_of;
using test::contains;
using test::gradient_of;
using test::message_of;
using test::scaled;
using test::small_context;
using test::sum_of;
using test::Trace;

Tensor leaf(Context& ctx, std::vector<double> values, const char* name = "x") {
  const auto count = static_cast<std::int64_t>(values.size());
  return make_leaf(make_tensor(ctx, {count}, DType::F64, values, name), name);
}

TEST(Engine, among_ready_nodes_the_one_created_last_runs_first) {
  Context ctx(small_context());
  Trace trace;
  const Tensor x = leaf(ctx, {1, 2});
  const Tensor a = scaled(ctx, x, 2, "a", &trace);
  const Tensor b = scaled(ctx, a, 3, "b", &trace);  // a long branch, begun first
  const Tensor c = scaled(ctx, b, 5, "c", &trace);
  const Tensor d = scaled(ctx, a, 7, "d", &trace);  // a short one, created later
  const Tensor e = scaled(ctx, x, 11, "e", &trace);
  const Tensor total = sum_of(ctx, {e, c, d}, "total", &trace);
  backward_of(ctx, total);
  EXPECT_EQ(trace, (Trace{"total", "e", "d", "c", "b", "a"}));
  EXPECT_EQ(to_doubles(ctx, gradient_of(x)), std::vector<double>(2, 2 * (3 * 5 + 7) + 11));
  EXPECT_EQ(leaf_of(x)->accumulations, 2);
}

TEST(Engine, roots_are_walked_together_and_a_root_inside_the_graph_waits_for_its_consumers) {
  Context ctx(small_context());
  Trace trace;
  const Tensor x = leaf(ctx, {1});
  const Tensor a = scaled(ctx, x, 2, "a", &trace), b = scaled(ctx, a, 3, "b", &trace), c = scaled(ctx, x, 5, "c", &trace);
  backward(ctx, {a, c, b}, {test::ones_like(ctx, a), test::ones_like(ctx, c), test::ones_like(ctx, b)});
  EXPECT_EQ(trace, (Trace{"c", "b", "a"}));
  EXPECT_EQ(to_doubles(ctx, gradient_of(x)), std::vector<double>{5 + 2 * (3 + 1)});
}

TEST(Engine, fan_in_is_summed_in_the_order_of_creation_to_the_bit) {
  Context ctx(small_context());
  const Tensor x = leaf(ctx, {1});
  const Tensor y = scaled(ctx, x, 1, "y");
  // ((1e16 - 1e16) + 1) = 1; from the other end ((1 - 1e16) + 1e16) = 0 in fp64.
  const Tensor total = sum_of(ctx, {scaled(ctx, y, 1e16, "c1"), scaled(ctx, y, -1e16, "c2"), scaled(ctx, y, 1, "c3")}, "total");
  backward_of(ctx, total);
  EXPECT_EQ(to_doubles(ctx, gradient_of(x)), std::vector<double>{1});
}

TEST(Engine, fan_in_of_many_takes_the_order_of_consumers_not_of_their_use) {
  Context ctx(small_context());
  const std::vector<double> factors = test::random_values(6, 3, 1e3);
  const Tensor x = leaf(ctx, {1});
  const Tensor y = scaled(ctx, x, 1, "y");
  std::vector<Tensor> parts;
  for (double factor : factors) parts.push_back(scaled(ctx, y, factor, "part"));
  backward_of(ctx, sum_of(ctx, {parts[3], parts[0], parts[5], parts[1], parts[4], parts[2]}, "total"));
  double expected = factors[0];
  for (std::size_t i = 1; i < factors.size(); ++i) expected += factors[i];
  EXPECT_EQ(to_doubles(ctx, gradient_of(x)), std::vector<double>{expected});
}

TEST(Engine, a_root_gradient_is_the_last_summand) {
  Context ctx(small_context());
  const Tensor x = leaf(ctx, {1});
  const Tensor y = scaled(ctx, x, 1, "y");
  const Tensor a = scaled(ctx, y, 1e16, "a"), b = scaled(ctx, y, -1e16, "b");
  backward(ctx, {y, a, b}, {test::ones_like(ctx, y), test::ones_like(ctx, a), test::ones_like(ctx, b)});
  EXPECT_EQ(to_doubles(ctx, gradient_of(x)), std::vector<double>{1});
}

TEST(Engine, summing_never_writes_into_memory_that_somebody_else_holds) {
  Context ctx(small_context());
  const Tensor x = leaf(ctx, {1, 1});
  const Tensor y = scaled(ctx, x, 1, "y");
  const Tensor a = sum_of(ctx, {y}, "a"), b = sum_of(ctx, {y}, "b"), c = sum_of(ctx, {y, y}, "c");
  const Tensor seed = make_tensor(ctx, {2}, DType::F64, {1, 2}, "seed");  // handed on by all of them
  std::vector<double> seen;
  add_gradient_hook(c, [&](const Tensor& gradient) { seen = to_doubles(ctx, gradient); });
  backward(ctx, {a, b, c}, {seed, seed, seed});
  EXPECT_EQ(to_doubles(ctx, seed), (std::vector<double>{1, 2}));
  EXPECT_EQ(seen, (std::vector<double>{1, 2}));
  EXPECT_EQ(to_doubles(ctx, gradient_of(x)), (std::vector<double>{4, 8}));
}

TEST(Engine, hooks_run_first_in_first_out_on_the_finished_gradient_before_its_producer) {
  Context ctx(small_context());
  Trace trace;
  const Tensor x = leaf(ctx, {1});
  const Tensor y = scaled(ctx, x, 2, "y", &trace);
  std::vector<double> seen;
  for (const char* name : {"hook 1", "hook 2", "hook 3"}) {
    add_gradient_hook(y, [&trace, &seen, &ctx, name](const Tensor& gradient) {
      trace.push_back(name);
      seen.push_back(to_doubles(ctx, gradient)[0]);
    });
  }
  const Tensor total = sum_of(ctx, {scaled(ctx, y, 3, "a", &trace), scaled(ctx, y, 4, "b", &trace)}, "total", &trace);
  backward_of(ctx, total);
  EXPECT_EQ(trace, (Trace{"total", "b", "a", "hook 1", "hook 2", "hook 3", "y"}));
  EXPECT_EQ(seen, std::vector<double>(3, 7));
}

TEST(Engine, a_hook_may_register_hooks_and_is_dropped_with_what_it_holds_once_it_ran) {
  Context ctx(small_context());
  const Tensor x = leaf(ctx, {1});
  const Tensor y = scaled(ctx, x, 2, "y");
  auto held = std::make_shared<int>(0);
  add_gradient_hook(y, [held, y](const Tensor&) {
    ++*held;
    add_gradient_hook(y, [](const Tensor&) {});
  });
  backward_of(ctx, y);
  EXPECT_EQ(*held, 1);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Engine, hooks_belong_on_recorded_results) {
  Context ctx(small_context());
  const Tensor x = leaf(ctx, {1}), plain = Tensor::zeros(ctx, {1}, DType::F64, "plain");
  EXPECT_TRUE(contains(message_of([&] { add_gradient_hook(x, [](const Tensor&) {}); }), {"'x'"}));
  EXPECT_TRUE(contains(message_of([&] { add_gradient_hook(plain, [](const Tensor&) {}); }), {"'plain'"}));
  EXPECT_TRUE(contains(message_of([&] { leaf_of(plain); }), {"'plain'"}));
}

TEST(Engine, a_differentiable_input_without_a_gradient_is_an_error_that_names_it) {
  Context ctx(small_context());
  const Tensor x = leaf(ctx, {1}), w = leaf(ctx, {2}, "w");
  ScopeGuard scope(ctx, 4, "mlp");
  auto node = std::make_shared<test::TracedNode>("forgetful");
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  recorder.input(w, "weight");
  node->run = [](Context&, BackwardCall& call) { call.set_gradient(0, call.output_gradient(0)); };
  const Tensor y = recorder.output(Tensor::zeros(ctx, {1}, DType::F64, "y"));
  EXPECT_TRUE(contains(message_of([&] { backward_of(ctx, y); }), {"'weight'", "'forgetful'", "layer 4", "no gradient"}));
}

TEST(Engine, a_gradient_set_twice_or_of_the_wrong_shape_or_dtype_is_an_error) {
  Context ctx(small_context());
  const auto run = [&](const std::function<void(Context&, BackwardCall&)>& body) {
    const Tensor x = leaf(ctx, {1});
    const Tensor y = scaled(ctx, x, 1, "inner");
    auto node = std::make_shared<test::TracedNode>("wrong");
    GraphRecorder recorder(ctx, node);
    recorder.input(y, "x");
    node->run = body;
    const Tensor z = recorder.output(Tensor::zeros(ctx, {1}, DType::F64, "z"));
    return message_of([&] { backward_of(ctx, z); });
  };
  EXPECT_TRUE(contains(run([](Context&, BackwardCall& call) {
                         call.set_gradient(0, call.output_gradient(0));
                         call.set_gradient(0, call.output_gradient(0));
                       }),
                       {"set twice"}));
  EXPECT_TRUE(contains(run([](Context& c, BackwardCall& call) { call.set_gradient(0, Tensor::zeros(c, {2}, DType::F64, "g")); }),
                       {"'inner'", "[2]", "[1]"}));
  EXPECT_TRUE(contains(run([](Context& c, BackwardCall& call) { call.set_gradient(0, Tensor::zeros(c, {1}, DType::F32, "g")); }), {"'inner'"}));
  EXPECT_TRUE(contains(run([](Context&, BackwardCall& call) { call.set_gradient(0, Tensor()); }), {"'x'"}));
}

TEST(Engine, roots_are_checked) {
  Context ctx(small_context());
  const Tensor x = leaf(ctx, {1}), plain = Tensor::zeros(ctx, {1}, DType::F64, "plain");
  const Tensor y = scaled(ctx, x, 1, "y");
  EXPECT_TRUE(contains(message_of([&] { backward_of(ctx, plain); }), {"'plain'"}));
  EXPECT_TRUE(contains(message_of([&] { backward(ctx, {y}, {Tensor::zeros(ctx, {2}, DType::F64, "g")}); }), {"[2]", "[1]"}));
  EXPECT_TRUE(contains(message_of([&] { backward(ctx, {y}, {Tensor::zeros(ctx, {1}, DType::F32, "g")}); }), {"'y'"}));
  EXPECT_TRUE(contains(message_of([&] { backward(ctx, {y}, {}); }), {"one gradient a root"}));
}

TEST(Engine, backward_twice_over_one_graph_is_an_error_even_where_nothing_was_saved) {
  Context ctx(small_context());
  const Tensor x = leaf(ctx, {1, 2});
  const Tensor kept = scaled(ctx, x, 2, "kept"), light = sum_of(ctx, {x}, "light");
  for (const Tensor& root : {kept, light}) {
    backward_of(ctx, root);
    EXPECT_TRUE(contains(message_of([&] { backward_of(ctx, root); }), {"twice", root.name()}));
  }
  const Tensor on_top = scaled(ctx, kept, 2, "on_top");
  EXPECT_TRUE(contains(message_of([&] { backward_of(ctx, on_top); }), {"twice", "kept"}));
}

TEST(Engine, outputs_without_a_gradient_need_to_be_optional) {
  Context ctx(small_context());
  for (bool optional : {true, false}) {
    const Tensor x = leaf(ctx, {1});
    auto node = std::make_shared<test::TracedNode>("two results");
    node->optional_outputs = optional;
    GraphRecorder recorder(ctx, node);
    recorder.input(x, "x");
    bool second_given = false;
    node->run = [&](Context&, BackwardCall& call) {
      EXPECT_FALSE(call.output_gradient(0).defined());
      second_given = call.output_gradient(1).defined();
      call.set_gradient(0, call.output_gradient(1));
    };
    recorder.output(Tensor::zeros(ctx, {3}, DType::F64, "first"));
    const Tensor second = recorder.output(Tensor::zeros(ctx, {1}, DType::F64, "second"));
    if (optional) {
      backward_of(ctx, second);
      EXPECT_TRUE(second_given);
    } else {
      EXPECT_TRUE(contains(message_of([&] { backward_of(ctx, second); }), {"output 0", "'two results'"}));
    }
  }
}

TEST(Engine, a_backward_may_run_another_graph) {
  Context ctx(small_context());
  const Tensor x = leaf(ctx, {3});
  Trace trace;
  auto node = std::make_shared<test::TracedNode>("outer");
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  node->run = [&](Context& c, BackwardCall& call) {
    EXPECT_FALSE(c.slot<AutogradState>().grad_enabled);
    GradModeGuard replay(c, true);
    const Tensor inner = make_leaf(x, "inner");
    const Tensor y = scaled(c, scaled(c, inner, 2, "inner a", &trace), 5, "inner b", &trace);
    backward(c, {y}, {call.output_gradient(0)});
    call.set_gradient(0, gradient_of(inner));
  };
  const Tensor y = recorder.output(test::times(ctx, x, 10, "y"));
  backward_of(ctx, scaled(ctx, y, 7, "after", &trace));
  EXPECT_EQ(trace, (Trace{"after", "inner b", "inner a"}));
  EXPECT_EQ(to_doubles(ctx, gradient_of(x)), std::vector<double>{70});
  EXPECT_TRUE(ctx.slot<AutogradState>().grad_enabled);
}

TEST(Engine, gradients_are_counted_under_the_layer_and_region_of_the_forward) {
  Context ctx(small_context());
  const Tensor x = leaf(ctx, std::vector<double>(1000, 1.0));
  Tensor y;
  {
    ScopeGuard scope(ctx, 6, "mlp");
    y = scaled(ctx, x, 2, "y");
  }
  const Tensor seed = test::ones_like(ctx, y);
  backward(ctx, {y}, {seed});
  y = Tensor();
  std::int64_t bytes = 0;
  for (const ScopeBytes& row : ctx.memory()->activations_by_scope()) {
    if (row.layer == 6 && row.region == "mlp") bytes = row.bytes;
  }
  EXPECT_EQ(bytes, Allocator::rounded(8000)) << "the gradient of x, made by the backward of layer 6";
}

TEST(Engine, memory_is_back_at_its_level_after_backward_run_after_run) {
  for (DType dtype : {DType::F32, DType::F64, DType::BF16}) {
    Context ctx(small_context());
    const test::Program program(ctx, dtype);
    std::int64_t allocations = 0, peak = 0;
    const std::int64_t before = ctx.memory()->stats().current;
    for (int run = 0; run < 3; ++run) {
      ctx.memory()->reset_peak();
      const std::int64_t start = ctx.memory()->stats().allocations;
      program.bits(ctx);
      const MemoryStats stats = ctx.memory()->stats();
      EXPECT_EQ(stats.current, before);
      EXPECT_EQ(stats.saved, 0);
      EXPECT_TRUE(ctx.memory()->saved_storages().empty());
      if (run > 0) {
        EXPECT_EQ(stats.allocations - start, allocations);
        EXPECT_EQ(stats.peak, peak) << "peaks repeat";
      }
      allocations = stats.allocations - start;
      peak = stats.peak;
    }
  }
}

TEST(Engine, a_graph_that_never_runs_backward_leaves_nothing_behind) {
  Context ctx(small_context());
  const test::Program program(ctx, DType::F32);
  const std::int64_t before = ctx.memory()->stats().current;
  {
    const Tensor loss = program.loss(ctx, program.leaves());
    EXPECT_GT(ctx.memory()->stats().saved, 0);
  }
  EXPECT_EQ(ctx.memory()->stats().current, before);
  EXPECT_EQ(ctx.memory()->stats().saved, 0);
}

TEST(Engine, a_failed_backward_leaves_no_memory_behind) {
  Context ctx(small_context());
  const test::Program program(ctx, DType::F32);
  const std::int64_t before = ctx.memory()->stats().current;
  {
    const Tensor loss = program.loss(ctx, program.leaves());
    for (const Tensor& value : program.values) value.storage()->bump_version();
    message_of([&] { backward_of(ctx, loss); });
    EXPECT_TRUE(ctx.slot<AutogradState>().grad_enabled);
  }
  EXPECT_EQ(ctx.memory()->stats().current, before);
  EXPECT_EQ(ctx.memory()->stats().saved, 0);
}

TEST(Engine, meta_runs_the_same_graph_and_counts_the_same_bytes) {
  const auto run = [](DeviceKind device) {
    Context ctx(small_context(2, device));
    const test::Program program(ctx, DType::BF16);
    const std::vector<Tensor> w = program.leaves();
    const Tensor loss = program.loss(ctx, w);
    const std::int64_t saved = ctx.memory()->stats().saved;
    backward_of(ctx, loss);
    MemoryStats stats = ctx.memory()->stats();
    EXPECT_GT(saved, 0);
    stats.cached = 0;
    return stats;
  };
  const MemoryStats cpu = run(DeviceKind::Cpu), meta = run(DeviceKind::Meta);
  EXPECT_EQ(meta.current, cpu.current);
  EXPECT_EQ(meta.peak, cpu.peak);
  EXPECT_EQ(meta.by_tag, cpu.by_tag);
  EXPECT_EQ(meta.by_tag_at_peak, cpu.by_tag_at_peak);
  EXPECT_EQ(meta.peak_by_tag, cpu.peak_by_tag);
  EXPECT_EQ(meta.peak_saved, cpu.peak_saved);
  EXPECT_EQ(meta.allocations, cpu.allocations);
}

}  // namespace
}  // namespace deltron
