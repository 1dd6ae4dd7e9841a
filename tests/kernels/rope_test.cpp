// kernels/rope: against the definition in fp64, the inverse, views, aliasing, threads.
#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "src/base/thread_pool.h"
#include "tests/support/head_buffer.h"
#include "tests/support/kernel_test.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using test::error_ratio;
using test::HeadBuffer;
using test::random_values;

struct Case {
  DType dtype;
  std::int64_t tokens, heads, dim, rotary_dim, gap;
  std::int32_t first_position;
};

std::vector<std::int32_t> positions(const Case& c) {
  std::vector<std::int32_t> list;
  for (std::int64_t t = 0; t < c.tokens; ++t) list.push_back(c.first_position + static_cast<std::int32_t>(t * 3 % 50));  // restarts
  return list;
}

std::vector<double> reference(const Case& c, const std::vector<double>& x, double theta, double direction) {
  std::vector<double> y = x;
  const std::vector<std::int32_t> place = positions(c);
  const std::int64_t pairs = c.rotary_dim / 2;
  for (std::int64_t row = 0; row < c.tokens * c.heads; ++row) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle =
          direction * place[row / c.heads] * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(c.rotary_dim));
      const double low = x[row * c.dim + i], high = x[row * c.dim + i + pairs];
      y[row * c.dim + i] = low * std::cos(angle) - high * std::sin(angle);
      y[row * c.dim + i + pairs] = high * std::cos(angle) + low * std::sin(angle);
    }
  }
  return y;
}

void turn(const Case& c, const HeadBuffer& x, HeadBuffer& y, bool inverse, int threads) {
  ThreadPool pool(threads, false);
  const std::vector<std::int32_t> place = positions(c);
  kernels::RopeArgs args;
  args.tokens = c.tokens, args.heads = c.heads, args.dim = c.dim, args.rotary_dim = c.rotary_dim, args.theta = 1e6;
  args.dtype = c.dtype, args.positions = place.data(), args.x = x.view(), args.y = y.view(), args.inverse = inverse;
  under_test::rope(args, {DeviceKind::Cpu, nullptr, &pool});
}

const Case kCases[] = {Case{DType::F32, 130, 3, 64, 16, 0, 0},          Case{DType::F64, 70, 2, 10, 6, 3, 0},
                       Case{DType::BF16, 65, 2, 33, 32, 1, 5},          Case{DType::F32, 5, 1, 2, 2, 7, 0},
                       Case{DType::F64, 40, 2, 128, 128, 0, 1'000'000},  // far beyond the polynomials' range
                       Case{DType::F32, 40, 1, 34, 34, 1, 262'000},     Case{DType::F32, 3, 2, 8, 0, 0, 0}};

class Rope : public test::KernelTest {};

TEST_P(Rope, equals_the_definition_both_ways) {
  for (const Case& c : kCases) {
    const std::vector<double> values = random_values(c.dtype, c.tokens * c.heads * c.dim, 1);
    const HeadBuffer x = HeadBuffer(c.dtype, c.tokens, c.heads, c.dim, c.gap).set(values);
    for (bool inverse : {false, true}) {
      HeadBuffer y(c.dtype, c.tokens, c.heads, c.dim, c.gap + 2);
      turn(c, x, y, inverse, 2);
      const std::vector<double> expected = reference(c, values, 1e6, inverse ? -1 : 1);
      EXPECT_LT(error_ratio(y.get(), expected), c.dtype == DType::F64 ? 1e-9 : c.dtype == DType::F32 ? 3e-7 : 3e-3);
      EXPECT_TRUE(y.guards_intact());
      HeadBuffer in_place = HeadBuffer(c.dtype, c.tokens, c.heads, c.dim, c.gap).set(values);
      turn(c, in_place, in_place, inverse, 3);
      EXPECT_EQ(in_place.get(), y.get());
      EXPECT_TRUE(in_place.guards_intact());
      HeadBuffer alone(c.dtype, c.tokens, c.heads, c.dim, 0);
      turn(c, x, alone, inverse, 1);
      EXPECT_EQ(alone.get(), y.get());
    }
  }
}

TEST_P(Rope, inverse_is_the_transpose) {  // <rope(x), z> = <x, inverse(z)>: what the backward needs
  for (const Case& c : kCases) {
    if (c.dtype == DType::BF16) continue;
    const std::vector<double> a = random_values(c.dtype, c.tokens * c.heads * c.dim, 1),
                              b = random_values(c.dtype, c.tokens * c.heads * c.dim, 2);
    const HeadBuffer x = HeadBuffer(c.dtype, c.tokens, c.heads, c.dim, 0).set(a),
                     z = HeadBuffer(c.dtype, c.tokens, c.heads, c.dim, 0).set(b);
    HeadBuffer turned(c.dtype, c.tokens, c.heads, c.dim, 0), back(c.dtype, c.tokens, c.heads, c.dim, 0);
    turn(c, x, turned, false, 2);
    turn(c, z, back, true, 2);
    const std::vector<double> u = turned.get(), w = back.get();
    double left = 0, right = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      left += u[i] * b[i];
      right += a[i] * w[i];
    }
    EXPECT_NEAR(left, right, c.dtype == DType::F64 ? 1e-9 : 1e-3);
  }
}

DELTRON_EVERY_TARGET(Rope);

TEST(RopePositions, scores_depend_on_distance_alone) {
  const Case near{DType::F64, 1, 1, 32, 32, 0, 3}, far{DType::F64, 1, 1, 32, 32, 0, 1003};
  const Case near_key{DType::F64, 1, 1, 32, 32, 0, 1}, far_key{DType::F64, 1, 1, 32, 32, 0, 1001};
  const auto turned = [](const Case& c, std::uint64_t stream) {
    HeadBuffer x = HeadBuffer(c.dtype, 1, 1, 32, 0).set(random_values(c.dtype, 32, stream));
    turn(c, x, x, false, 1);
    return x.get();
  };
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  EXPECT_NEAR(dot(turned(near, 1), turned(near_key, 2)), dot(turned(far, 1), turned(far_key, 2)), 1e-10);
}

}  // namespace
}  // namespace deltron
