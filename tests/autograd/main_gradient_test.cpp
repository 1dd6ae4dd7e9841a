// Main gradients: every parameter of a program adds straight into its buffer; micro-batches sum up.
#include "tests/autograd/test_nodes.h"

namespace deltron {
namespace {

using test::backward_of;
using test::contains;
using test::gradient_of;
using test::message_of;
using test::small_context;

struct WithMain {
  std::vector<Tensor> leaves, main;
  WithMain(Context& ctx, const test::Program& program) {
    for (const Tensor& value : program.values) {
      main.push_back(Tensor::zeros(ctx, value.shape(), compute_dtype(value.dtype()), "main", MemoryTag::MainGradients));
      leaves.push_back(make_leaf(value, "w", main.back()));
    }
  }
};

TEST(MainGradients, hold_what_plain_gradients_hold_and_plain_ones_stay_empty) {
  for (DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    Context ctx(small_context());
    const test::Program program(ctx, dtype);
    const WithMain with(ctx, program);
    backward_of(ctx, program.loss(ctx, with.leaves));
    const std::vector<Tensor> plain = program.leaves();
    backward_of(ctx, program.loss(ctx, plain));
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_FALSE(gradient_of(with.leaves[i]).defined());
      EXPECT_GE(leaf_of(with.leaves[i])->accumulations, 1);
      // A plain bf16 gradient is rounded to bf16; main gradients are not.
      const double limit = dtype == DType::F64 ? 1e-13 : dtype == DType::F32 ? 1e-5 : 1e-2;
      EXPECT_LE(test::relative_difference(to_doubles(ctx, gradient_of(plain[i])), to_doubles(ctx, with.main[i])), limit)
          << dtype_name(dtype) << " parameter " << i;
      EXPECT_GT(test::largest(to_doubles(ctx, with.main[i])), 0.0) << "parameter " << i;
    }
  }
}

TEST(MainGradients, two_micro_batches_sum_up) {
  Context ctx(small_context());
  const test::Program first(ctx, DType::F32);
  test::Program second = first;  // the same weights, other tokens
  second.ids = first.labels;
  {
    std::vector<std::int32_t> tokens;
    for (std::int64_t t = 0; t < test::Program::T; ++t) tokens.push_back(static_cast<std::int32_t>((t * t + 3) % test::Program::vocab));
    second.ids = test::int_tensor(ctx, tokens);
  }
  const WithMain both(ctx, first), one(ctx, first), two(ctx, first);
  backward_of(ctx, first.loss(ctx, both.leaves));
  backward_of(ctx, second.loss(ctx, both.leaves));
  backward_of(ctx, first.loss(ctx, one.leaves));
  backward_of(ctx, second.loss(ctx, two.leaves));
  for (std::size_t i = 0; i < both.main.size(); ++i) {
    std::vector<double> sum = to_doubles(ctx, one.main[i]);
    const std::vector<double> other = to_doubles(ctx, two.main[i]);
    for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += other[j];
    EXPECT_LE(test::relative_difference(to_doubles(ctx, both.main[i]), sum), 1e-6) << "parameter " << i;
    EXPECT_EQ(leaf_of(both.leaves[i])->accumulations, 2 * leaf_of(one.leaves[i])->accumulations);
  }
}

TEST(MainGradients, stale_ones_are_written_over_and_get_the_bits_of_zeroed_ones) {
  for (DType dtype : {DType::F64, DType::F32, DType::BF16}) {
    Context ctx(small_context());
    const test::Program program(ctx, dtype);
    const WithMain zeroed(ctx, program), stale(ctx, program);
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      if (micro_batch != 1) {  // a step of two micro-batches, one of one
        for (std::size_t i = 0; i < stale.main.size(); ++i) {
          from_doubles(ctx, zeroed.main[i], std::vector<double>(static_cast<std::size_t>(zeroed.main[i].count()), 0.0));
          from_doubles(ctx, stale.main[i], std::vector<double>(static_cast<std::size_t>(stale.main[i].count()), std::nan("")));
          leaf_of(stale.leaves[i])->stale = true;
        }
      }
      backward_of(ctx, program.loss(ctx, zeroed.leaves));
      backward_of(ctx, program.loss(ctx, stale.leaves));
      int replaced = 0;
      for (std::size_t i = 0; i < stale.main.size(); ++i) {
        EXPECT_EQ(test::bits_of(ctx, stale.main[i]), test::bits_of(ctx, zeroed.main[i])) << dtype_name(dtype) << " parameter " << i;
        EXPECT_FALSE(leaf_of(stale.leaves[i])->stale);
        replaced += leaf_of(stale.leaves[i])->replaced;
      }
      EXPECT_GT(replaced, 0);
      EXPECT_LT(replaced, static_cast<int>(stale.main.size()));
    }
  }
}

TEST(MainGradients, a_bf16_weight_collects_in_fp32_what_bf16_would_lose) {
  Context ctx(small_context());
  const Tensor main = Tensor::zeros(ctx, {1, 1}, DType::F32, "main"), w = make_leaf(make_tensor(ctx, {1, 1}, DType::BF16, {1}, "w"), "w", main);
  for (int i = 0; i < 1000; ++i) {
    const Tensor x = make_tensor(ctx, {1, 1}, DType::BF16, {1}, "x");
    backward_of(ctx, linear(ctx, x, w, "y"));
  }
  EXPECT_EQ(to_doubles(ctx, main)[0], 1000) << "bf16 stops counting at 256";
}

TEST(MainGradients, of_the_wrong_type_are_refused) {
  Context ctx(small_context());
  const Tensor x = test::random_tensor(ctx, {3, 4}, DType::F32, 1), w = test::random_tensor(ctx, {2, 4}, DType::F32, 2);
  const Tensor main = Tensor::zeros(ctx, {4}, DType::F64, "wrong main");
  const Tensor gamma = make_leaf(test::random_tensor(ctx, {4}, DType::F32, 3), "gamma", main);
  const Tensor y = norm_linear(ctx, x, gamma, {}, {w}, {"y"})[0];
  EXPECT_TRUE(contains(message_of([&] { backward_of(ctx, y); }), {"wrong main"}));
}

}  // namespace
}  // namespace deltron
