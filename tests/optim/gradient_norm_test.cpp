// The global gradient norm: its value, its independence of how tensors are cut, clipping as PyTorch does it, and NaN.
#include "src/optim/gradient_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reduce.h"
#include "src/base/rng.h"
#include "src/tensor/context.h"

namespace deltron {
namespace {

std::vector<double> random_values(std::int64_t count, double scale) {
  RngStream random({5, 0, kRngSiteData}, 0);
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(static_cast<float>(scale * random.normal())));
  return values;
}

std::vector<Tensor> cut(Context& ctx, const std::vector<double>& values, const std::vector<std::int64_t>& lengths) {
  std::vector<Tensor> tensors;
  std::int64_t begin = 0;
  for (std::int64_t length : lengths) {
    tensors.push_back(make_tensor(ctx, {length}, DType::F32, {values.begin() + begin, values.begin() + begin + length}, "gradient"));
    begin += length;
  }
  EXPECT_EQ(begin, static_cast<std::int64_t>(values.size()));
  return tensors;
}

double norm_of(Context& ctx, const std::vector<Tensor>& gradients) {
  GradientNorm norm(ctx, gradients);
  norm.compute(ctx, 1.0);
  return norm.norm(ctx);
}

TEST(GradientNorm, does_not_depend_on_how_the_gradients_are_cut) {
  Context ctx({.threads = 2});
  const std::int64_t block = kernels::kNormBlock, count = 3 * block + 1000;
  const std::vector<double> values = random_values(count, 0.01);
  long double exact = 0;
  for (double value : values) exact += static_cast<long double>(value) * static_cast<long double>(value);
  const auto expected = static_cast<double>(std::sqrt(exact));
  const double whole = norm_of(ctx, cut(ctx, values, {count}));
  EXPECT_NEAR(whole, expected, 1e-13 * expected);
  // Cuts at block borders (where shards end) keep every bit; others keep all but the last.
  EXPECT_EQ(norm_of(ctx, cut(ctx, values, {block, 2 * block, 1000})), whole);
  EXPECT_EQ(norm_of(ctx, cut(ctx, values, {2 * block, block + 1000})), whole);
  EXPECT_NEAR(norm_of(ctx, cut(ctx, values, {7, block, 100, 2 * block + 893})), whole, 1e-13 * expected);
}

TEST(GradientNorm, is_the_same_for_any_number_of_threads) {
  const std::vector<double> values = random_values(2 * kernels::kNormBlock + 77, 3.0);
  const std::vector<std::int64_t> lengths = {500, 2 * kernels::kNormBlock - 500 + 77};
  Context one({.threads = 1}), two({.threads = 2});
  EXPECT_EQ(norm_of(one, cut(one, values, lengths)), norm_of(two, cut(two, values, lengths)));
}

TEST(GradientNorm, clips_like_pytorch) {
  Context ctx({.threads = 1});
  const std::vector<Tensor> gradients = {make_tensor(ctx, {1}, DType::F32, {3.0}, "a"), make_tensor(ctx, {2, 1}, DType::F32, {0.0, 4.0}, "b")};
  GradientNorm norm(ctx, gradients);
  struct Row {
    double clip, scale;
  };
  for (const Row& row : {Row{1.0, 1.0 / (5.0 + 1e-6)}, Row{2.5, 2.5 / (5.0 + 1e-6)}, Row{5.0, 5.0 / (5.0 + 1e-6)}, Row{5.1, 1.0}, Row{0.0, 1.0}}) {
    norm.compute(ctx, row.clip);
    EXPECT_DOUBLE_EQ(*norm.scale(), row.scale) << "clip " << row.clip;
    EXPECT_DOUBLE_EQ(norm.norm(ctx), 5.0);
  }
  GradientNorm::Reading reading;
  norm.read_later(ctx, reading).wait();
  const std::vector<double> each = norm.norms(reading);
  ASSERT_EQ(each.size(), 2U);
  EXPECT_DOUBLE_EQ(each[0], 3.0);
  EXPECT_DOUBLE_EQ(each[1], 4.0);
}

TEST(GradientNorm, a_gradient_of_zeros_is_not_scaled) {
  Context ctx({.threads = 1});
  GradientNorm norm(ctx, {Tensor::zeros(ctx, {4}, DType::F32, "zeros")});
  norm.compute(ctx, 1.0);
  EXPECT_EQ(norm.norm(ctx), 0.0);
  EXPECT_EQ(*norm.scale(), 1.0);
  EXPECT_FALSE(norm.nonfinite(ctx));
}

TEST(GradientNorm, a_watched_value_that_is_not_finite_raises_the_flag_and_no_other_does) {
  Context ctx({.threads = 1});
  GradientNorm norm(ctx, {make_tensor(ctx, {2}, DType::F32, {1, 2}, "good")});
  for (const double value : {0.0, -0.0, -3.5, 1e30, 1e150}) {
    norm.watch(ctx, make_tensor(ctx, {1}, DType::F64, {value}, "loss"));
    norm.compute(ctx, 1.0);
    EXPECT_FALSE(norm.nonfinite(ctx)) << value;
  }
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    norm.watch(ctx, make_tensor(ctx, {1}, DType::F64, {value}, "loss"));
    norm.compute(ctx, 1.0);
    EXPECT_TRUE(norm.nonfinite(ctx)) << value;
    EXPECT_DOUBLE_EQ(norm.norm(ctx), std::sqrt(5.0)) << "the norm is that of the gradients";
    norm.clear_flag(ctx);
  }
}

TEST(GradientNorm, names_the_first_gradient_with_a_bad_value_and_the_flag_is_sticky) {
  Context ctx({.threads = 2});
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  std::vector<double> values = random_values(kernels::kNormBlock + 10, 1.0);
  values[static_cast<std::size_t>(kernels::kNormBlock) + 3] = nan;
  values[5] = -infinity;
  const Tensor bad = make_tensor(ctx, {kernels::kNormBlock + 10}, DType::F32, values, "bad");
  const std::vector<Tensor> gradients = {make_tensor(ctx, {2}, DType::F32, {1, 2}, "good"), bad, make_tensor(ctx, {1}, DType::F32, {nan}, "too")};
  GradientNorm norm(ctx, gradients);
  EXPECT_EQ(norm.find_nonfinite(ctx).index, -1);
  norm.compute(ctx, 1.0);
  EXPECT_TRUE(norm.nonfinite(ctx));
  const GradientNorm::Culprit culprit = norm.find_nonfinite(ctx);
  EXPECT_EQ(culprit.index, 1);
  EXPECT_EQ(culprit.bad, 2);
  EXPECT_EQ(culprit.count, kernels::kNormBlock + 10);
  from_doubles(ctx, bad, random_values(kernels::kNormBlock + 10, 1.0));
  from_doubles(ctx, gradients[2], {1.0});
  norm.compute(ctx, 1.0);
  EXPECT_TRUE(std::isfinite(norm.norm(ctx)));
  EXPECT_TRUE(norm.nonfinite(ctx)) << "the flag stays until someone clears it";
  norm.clear_flag(ctx);
  EXPECT_FALSE(norm.nonfinite(ctx));
}

}  // namespace
}  // namespace deltron
