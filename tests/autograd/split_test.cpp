// Splitting: gradients of pieces land in slots of one gradient without copies; fan-in, nesting and unused pieces.
#include "tests/autograd/test_nodes.h"

namespace deltron {
namespace {

using test::backward_of;
using test::contains;
using test::gradient_of;
using test::message_of;
using test::random_tensor;
using test::scaled;
using test::small_context;

struct Fixture {
  Context ctx{small_context()};
  Tensor x = make_leaf(random_tensor(ctx, {5, 12}, DType::F64, 1), "x");
  Tensor inner = scaled(ctx, x, 1, "inner");  // not a leaf, so that its gradient has a hook
  Tensor w3 = make_leaf(random_tensor(ctx, {2, 3}, DType::F64, 2), "w3"), w4 = make_leaf(random_tensor(ctx, {2, 4}, DType::F64, 3), "w4"),
         w5 = make_leaf(random_tensor(ctx, {2, 5}, DType::F64, 4), "w5");
};

// The gradient of rows of ones through y = part w^T.
std::vector<double> column_sums(Context& ctx, const Tensor& w) {
  const std::vector<double> values = to_doubles(ctx, w);
  const auto width = static_cast<std::size_t>(w.size(1));
  std::vector<double> sums(width, 0.0);
  for (std::size_t i = 0; i < values.size(); ++i) sums[i % width] += values[i];
  return sums;
}

TEST(Split, pieces_are_views_and_cover_the_whole) {
  Fixture f;
  const std::vector<Tensor> parts = split(f.ctx, f.inner, {{4, 2}, {3, 0}, {5, 0}}, "split");
  EXPECT_EQ(parts[0].shape(), (Shape{5, 2, 2}));
  EXPECT_EQ(parts[1].shape(), (Shape{5, 3}));
  for (const Tensor& part : parts) EXPECT_EQ(part.storage(), f.inner.storage());
  EXPECT_EQ(parts[2].offset(), 7);
  EXPECT_TRUE(contains(message_of([&] { split(f.ctx, f.inner, {{4, 2}, {3, 0}}, "gates.split"); }), {"gates.split", "7", "[5,12]"}));
}

TEST(Split, gradients_are_written_into_slots_of_one_tensor_without_copies) {
  Fixture f;
  const std::vector<Tensor> parts = split(f.ctx, f.inner, {{4, 0}, {3, 0}, {5, 0}}, "split");
  std::vector<const double*> slots;
  const double* base = nullptr;
  for (const Tensor& part : parts) {
    add_gradient_hook(part, [&](const Tensor& gradient) {
      EXPECT_EQ(gradient.stride(0), 12);
      slots.push_back(gradient.data_as<double>());
    });
  }
  add_gradient_hook(f.inner, [&](const Tensor& gradient) {
    EXPECT_TRUE(gradient.is_contiguous());
    base = gradient.data_as<double>();
  });
  const std::vector<Tensor> roots = {linear(f.ctx, parts[0], f.w4, "a"), linear(f.ctx, parts[1], f.w3, "b"), linear(f.ctx, parts[2], f.w5, "c")};
  std::vector<Tensor> seeds;
  for (const Tensor& root : roots) seeds.push_back(test::ones_like(f.ctx, root));
  const std::int64_t before = f.ctx.memory()->stats().by_tag[static_cast<std::size_t>(MemoryTag::Activations)];
  f.ctx.memory()->reset_peak();
  backward(f.ctx, roots, seeds);
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[0], base);
  EXPECT_EQ(slots[1], base + 4);
  EXPECT_EQ(slots[2], base + 7);
  // Three weight gradients, the whole gradient and the gradient that `inner` hands to x; no piece has memory of its own.
  const std::int64_t peak = f.ctx.memory()->stats().peak_by_tag[static_cast<std::size_t>(MemoryTag::Activations)];
  EXPECT_LE(peak - before, 3 * 512 + 2 * Allocator::rounded(5 * 12 * 8));
  std::vector<double> row = column_sums(f.ctx, f.w4), expected;
  for (double value : column_sums(f.ctx, f.w3)) row.push_back(value);
  for (double value : column_sums(f.ctx, f.w5)) row.push_back(value);
  for (int t = 0; t < 5; ++t) expected.insert(expected.end(), row.begin(), row.end());
  EXPECT_LE(test::relative_difference(to_doubles(f.ctx, gradient_of(f.x)), expected), 1e-14);
}

TEST(Split, a_piece_used_twice_gets_the_sum_and_one_used_by_strangers_is_copied_in) {
  Fixture f;
  const std::vector<Tensor> parts = split(f.ctx, f.inner, {{4, 0}, {3, 0}, {5, 0}}, "split");
  const Tensor a = linear(f.ctx, parts[0], f.w4, "a"), b = linear(f.ctx, parts[1], f.w3, "b"), c = linear(f.ctx, parts[2], f.w5, "c");
  const Tensor again = linear(f.ctx, parts[1], f.w3, "again");             // both want the slot
  const Tensor stranger = scaled(f.ctx, parts[2], 10, "stranger");         // brings memory of its own
  const std::vector<Tensor> roots = {a, b, c, again, stranger};
  std::vector<Tensor> seeds;
  for (const Tensor& root : roots) seeds.push_back(test::ones_like(f.ctx, root));
  backward(f.ctx, roots, seeds);
  std::vector<double> row = column_sums(f.ctx, f.w4), expected;
  for (double value : column_sums(f.ctx, f.w3)) row.push_back(2 * value);
  for (double value : column_sums(f.ctx, f.w5)) row.push_back(value + 10);
  for (int t = 0; t < 5; ++t) expected.insert(expected.end(), row.begin(), row.end());
  EXPECT_LE(test::relative_difference(to_doubles(f.ctx, gradient_of(f.x)), expected), 1e-14);
}

TEST(Split, pieces_as_heads_take_gradients_of_strangers_too) {
  Fixture f;
  const std::vector<Tensor> parts = split(f.ctx, f.inner, {{6, 3}, {6, 2}}, "split");
  const auto handed_on = [&](const Tensor& part, double value) {  // a node whose gradient is a fresh [T,H,D] tensor
    auto node = std::make_shared<test::TracedNode>("heads");
    GraphRecorder recorder(f.ctx, node);
    recorder.input(part, "x");
    const Shape shape = part.shape();
    node->run = [shape, value](Context& c, BackwardCall& call) {
      const Tensor gradient = Tensor::empty(c, shape, DType::F64, "gradient");
      fill(c, gradient, value);
      call.set_gradient(0, gradient);
    };
    return recorder.output(Tensor::zeros(f.ctx, {1}, DType::F64, "y"));
  };
  const std::vector<Tensor> roots = {handed_on(parts[0], 2), handed_on(parts[0], 3), handed_on(parts[1], 7)};
  std::vector<Tensor> seeds(3, Tensor::zeros(f.ctx, {1}, DType::F64, "seed"));
  backward(f.ctx, roots, seeds);
  std::vector<double> expected;
  for (int i = 0; i < 60; ++i) expected.push_back(i % 12 < 6 ? 5 : 7);
  EXPECT_EQ(to_doubles(f.ctx, gradient_of(f.x)), expected);
}

TEST(Split, a_split_of_a_piece_writes_into_the_outermost_gradient) {
  Fixture f;
  const std::vector<Tensor> outer = split(f.ctx, f.inner, {{5, 0}, {7, 0}}, "outer");
  const std::vector<Tensor> nested = split(f.ctx, outer[1], {{3, 0}, {4, 0}}, "nested");
  const double* base = nullptr;
  std::vector<const double*> slots;
  for (const Tensor& part : {nested[0], nested[1], outer[1]}) {
    add_gradient_hook(part, [&](const Tensor& gradient) { slots.push_back(gradient.data_as<double>()); });
  }
  add_gradient_hook(f.inner, [&](const Tensor& gradient) { base = gradient.data_as<double>(); });
  const std::vector<Tensor> roots = {linear(f.ctx, outer[0], f.w5, "a"), linear(f.ctx, nested[0], f.w3, "b"), linear(f.ctx, nested[1], f.w4, "c")};
  std::vector<Tensor> seeds;
  for (const Tensor& root : roots) seeds.push_back(test::ones_like(f.ctx, root));
  backward(f.ctx, roots, seeds);
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_EQ(slots[0], base + 5);
  EXPECT_EQ(slots[1], base + 8);
  EXPECT_EQ(slots[2], base + 5);
  std::vector<double> row = column_sums(f.ctx, f.w5), expected;
  for (double value : column_sums(f.ctx, f.w3)) row.push_back(value);
  for (double value : column_sums(f.ctx, f.w4)) row.push_back(value);
  for (int t = 0; t < 5; ++t) expected.insert(expected.end(), row.begin(), row.end());
  EXPECT_LE(test::relative_difference(to_doubles(f.ctx, gradient_of(f.x)), expected), 1e-14);
}

TEST(Split, a_tensor_split_and_also_used_whole_gets_both_gradients) {
  Fixture f;
  const std::vector<Tensor> parts = split(f.ctx, f.inner, {{5, 0}, {3, 0}, {4, 0}}, "split");
  const std::vector<Tensor> roots = {linear(f.ctx, parts[0], f.w5, "a"), linear(f.ctx, parts[1], f.w3, "b"), linear(f.ctx, parts[2], f.w4, "c"),
                                     scaled(f.ctx, f.inner, 100, "whole")};
  std::vector<Tensor> seeds;
  for (const Tensor& root : roots) seeds.push_back(test::ones_like(f.ctx, root));
  backward(f.ctx, roots, seeds);
  std::vector<double> row = column_sums(f.ctx, f.w5), expected;
  for (double value : column_sums(f.ctx, f.w3)) row.push_back(value);
  for (double value : column_sums(f.ctx, f.w4)) row.push_back(value);
  for (double& value : row) value += 100;
  for (int t = 0; t < 5; ++t) expected.insert(expected.end(), row.begin(), row.end());
  EXPECT_LE(test::relative_difference(to_doubles(f.ctx, gradient_of(f.x)), expected), 1e-14);
}

TEST(Split, an_unused_piece_is_an_error_that_names_the_split) {
  Fixture f;
  ScopeGuard scope(f.ctx, 9, "gdn_in_proj");
  const std::vector<Tensor> parts = split(f.ctx, f.inner, {{5, 0}, {3, 0}, {4, 0}}, "gdn.gates.split");
  const Tensor a = linear(f.ctx, parts[0], f.w5, "a"), c = linear(f.ctx, parts[2], f.w4, "c");
  const std::string message =
      message_of([&] { backward(f.ctx, {a, c}, {test::ones_like(f.ctx, a), test::ones_like(f.ctx, c)}); });
  EXPECT_TRUE(contains(message, {"output 1", "gdn.gates.split", "layer 9", "no gradient"}));
}

TEST(Split, of_a_leaf_puts_the_slots_into_the_leafs_gradient) {
  Context ctx(small_context());
  const Tensor x = make_leaf(random_tensor(ctx, {5, 8}, DType::F64, 1), "x");
  const Tensor w = make_leaf(random_tensor(ctx, {2, 4}, DType::F64, 3), "w");
  const std::vector<Tensor> parts = split(ctx, x, {{4, 0}, {4, 0}}, "split");
  const double* slot = nullptr;
  add_gradient_hook(parts[1], [&](const Tensor& gradient) { slot = gradient.data_as<double>(); });
  const Tensor a = linear(ctx, parts[0], w, "a"), b = linear(ctx, parts[1], w, "b");
  backward(ctx, {a, b}, {test::ones_like(ctx, a), test::ones_like(ctx, b)});
  EXPECT_EQ(slot, gradient_of(x).data_as<double>() + 4);
}

}  // namespace
}  // namespace deltron
