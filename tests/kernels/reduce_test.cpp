// kernels/reduce: fixed blocks, non-finite counts, fp64 sums, the clipping factor.
#include "kernels/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "src/base/thread_pool.h"
#include "tests/support/head_buffer.h"
#include "tests/support/kernel_test.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using kernels::kNormBlock;
using test::HeadBuffer;
using test::random_values;

struct Norm {
  std::vector<double> partials;
  std::vector<std::int64_t> nonfinite;
};

Norm squared_norm(DType dtype, const std::vector<double>& values, int threads) {
  ThreadPool pool(threads, false);
  const std::int64_t count = static_cast<std::int64_t>(values.size());
  const HeadBuffer x = HeadBuffer(dtype, count, 1, 1, 0).set(values);
  const std::size_t blocks = static_cast<std::size_t>((count + kNormBlock - 1) / kNormBlock);
  Norm norm{std::vector<double>(blocks + 1, -7), std::vector<std::int64_t>(blocks + 1, -7)};
  under_test::squared_norm({count, x.view().data, dtype, norm.partials.data(), norm.nonfinite.data()},
                           {DeviceKind::Cpu, nullptr, &pool});
  EXPECT_EQ(norm.partials.back(), -7);
  EXPECT_EQ(norm.nonfinite.back(), -7);
  norm.partials.pop_back();
  norm.nonfinite.pop_back();
  return norm;
}

class Reduce : public test::KernelTest {};

const DType kDTypes[] = {DType::F32, DType::F64, DType::BF16};

TEST_P(Reduce, squared_norm_has_one_exact_partial_a_block) {
  for (DType dtype : kDTypes) {
    for (std::int64_t count : std::vector<std::int64_t>{1, 7, 33, 1000, kNormBlock, kNormBlock + 1, 2 * kNormBlock + 77}) {
      const std::vector<double> values = random_values(dtype, count, 3);
      const Norm norm = squared_norm(dtype, values, 2);
      for (std::size_t block = 0; block < norm.partials.size(); ++block) {
        double expected = 0;
        const std::int64_t begin = static_cast<std::int64_t>(block) * kNormBlock, end = std::min(count, begin + kNormBlock);
        for (std::int64_t i = begin; i < end; ++i) {
          expected += values[static_cast<std::size_t>(i)] * values[static_cast<std::size_t>(i)];
        }
        EXPECT_NEAR(norm.partials[block], expected, 1e-12 * expected) << count;
        EXPECT_EQ(norm.nonfinite[block], 0);
      }
      EXPECT_EQ(norm.partials, squared_norm(dtype, values, 1).partials);
      EXPECT_EQ(norm.partials, squared_norm(dtype, values, 3).partials);
    }
  }
}

TEST_P(Reduce, nonfinite_values_are_counted_in_their_block) {
  for (DType dtype : kDTypes) {
    std::vector<double> values(static_cast<std::size_t>(kNormBlock + 100), 1.0);
    values[3] = std::numeric_limits<double>::quiet_NaN();
    values[1000] = std::numeric_limits<double>::infinity();
    values[static_cast<std::size_t>(kNormBlock) + 99] = -std::numeric_limits<double>::infinity();
    const Norm norm = squared_norm(dtype, values, 2);
    EXPECT_EQ(norm.nonfinite, (std::vector<std::int64_t>{2, 1}));
    EXPECT_FALSE(std::isfinite(norm.partials[0]));
    EXPECT_FALSE(std::isfinite(norm.partials[1]));
  }
}

TEST_P(Reduce, sum_is_formed_in_fp64) {
  for (DType dtype : kDTypes) {
    ThreadPool pool(2, false);
    for (std::int64_t count : {0, 1, 1023, 1024, 1025, 5000}) {
      const std::vector<double> values = random_values(dtype, count, 5);
      const HeadBuffer x = HeadBuffer(dtype, count, 1, 1, 0).set(values);
      const auto result = std::make_unique<double>(-1);
      double expected = 0;
      for (double value : values) expected += value;
      under_test::sum({count, x.view().data, dtype, result.get()}, {DeviceKind::Cpu, nullptr, &pool});
      EXPECT_NEAR(*result, expected, 1e-10) << count;
    }
  }
}

DELTRON_EVERY_TARGET(Reduce);

TEST(OrderedSum, adds_in_ascending_order) {
  ThreadPool pool(1, false);
  const std::vector<double> x = {1e17, 1.0, -1e17, 1.0};  // any other order gives another number
  const auto result = std::make_unique<double>(0);
  under_test::ordered_sum({4, x.data(), result.get()}, {DeviceKind::Cpu, nullptr, &pool});
  EXPECT_EQ(*result, ((1e17 + 1.0) + -1e17) + 1.0);
}

TEST(ClipScale, scales_down_only_and_flags_what_is_not_finite) {
  ThreadPool pool(1, false);
  const StreamHandle stream{DeviceKind::Cpu, nullptr, &pool};
  struct Row {
    double squared, clip, scale, norm;
    int flag;
  };
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const Row& row : {Row{4, 1, 1 / (2 + 1e-6), 2, 0}, Row{0.25, 1, 1, 0.5, 0}, Row{100, 0, 1, 10, 0}, Row{0, 1, 1, 0, 0},
                         Row{inf, 1, 0, inf, 1}, Row{nan, 1, nan, nan, 1}}) {
    const auto squared = std::make_unique<double>(row.squared), scale = std::make_unique<double>(-1), norm = std::make_unique<double>(-1);
    const auto flag = std::make_unique<std::int32_t>(0);
    under_test::clip_scale({squared.get(), row.clip, scale.get(), norm.get(), flag.get()}, stream);
    if (std::isnan(row.scale)) {
      EXPECT_TRUE(std::isnan(*scale) && std::isnan(*norm));
    } else {
      EXPECT_EQ(*scale, row.scale);
      EXPECT_EQ(*norm, row.norm);
    }
    EXPECT_EQ(*flag, row.flag);
  }
}

TEST(ClipScale, the_flag_is_sticky) {
  ThreadPool pool(1, false);
  const auto squared = std::make_unique<double>(1), scale = std::make_unique<double>(0), norm = std::make_unique<double>(0);
  const auto flag = std::make_unique<std::int32_t>(1);
  under_test::clip_scale({squared.get(), 1, scale.get(), norm.get(), flag.get()}, {DeviceKind::Cpu, nullptr, &pool});
  EXPECT_EQ(*flag, 1);
}

}  // namespace
}  // namespace deltron
