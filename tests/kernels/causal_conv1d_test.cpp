// Causal convolution with SiLU: against the double reference, finite differences, and its own promises (documents, strides, bits).
#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/causal_conv1d.h"
#include "src/base/error.h"
#include "src/base/thread_pool.h"
#include "tests/support/compare.h"
#include "tests/support/reference_gdn_layer.h"
#include "tests/support/strided.h"
#include "tests/support/under_test.h"

namespace deltron::test {
namespace {

using namespace deltron::kernels;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct ConvProblem {
  std::vector<std::int64_t> offsets;
  std::int64_t channels, kernel;
  bool silu = true;
  Values x, weight, dy;
};
struct ConvOutcome {
  Values y, dx, dweight;
  std::vector<char> bits;
  std::int64_t touched = 0;
};

ConvProblem make_conv(const std::vector<std::int64_t>& lengths, std::int64_t channels, std::int64_t kernel, std::uint64_t seed) {
  ConvProblem p{{0}, channels, kernel, true, {}, {}, {}};
  for (std::int64_t length : lengths) p.offsets.push_back(p.offsets.back() + length);
  TestRandom random(seed);
  p.x = random.values(p.offsets.back() * channels, 2);
  p.weight = random.values(channels * kernel);
  p.dy = random.values(p.offsets.back() * channels);
  return p;
}

ConvOutcome run_conv(const ConvProblem& p, DType dtype, DType weight_dtype, int threads, double dweight_before = 0) {
  ThreadPool pool(threads, false);
  StreamHandle stream;
  stream.pool = &pool;
  const std::int64_t T = p.offsets.back(), C = p.channels;
  const DType compute = compute_dtype(dtype);
  Strided x(dtype, T, 1, C, kNan, 2, 3), dy(dtype, T, 1, C, kNan, 1, 0), y(dtype, T, 1, C, -7, 3, 2), dx(dtype, T, 1, C, -7, 0, 5);
  Strided weight(weight_dtype, C, 1, p.kernel, kNan), dweight(compute, C, 1, p.kernel, -7);
  x.write(p.x), dy.write(p.dy), weight.write(p.weight), dweight.write(Values(p.weight.size(), dweight_before));
  CausalConv1dForwardArgs f;
  f.tokens = T, f.channels = C, f.kernel = p.kernel, f.dtype = dtype, f.weight_dtype = weight_dtype, f.silu = p.silu;
  f.documents = Documents{static_cast<std::int64_t>(p.offsets.size()) - 1, p.offsets.data()};
  f.x = x.matrix_view(), f.weight = weight.data(), f.y = y.mutable_matrix_view();
  under_test::causal_conv1d_forward(f, stream);
  CausalConv1dBackwardArgs b;
  b.tokens = T, b.channels = C, b.kernel = p.kernel, b.dtype = dtype, b.weight_dtype = weight_dtype, b.silu = p.silu;
  b.documents = f.documents, b.x = f.x, b.dy = dy.matrix_view(), b.weight = f.weight, b.dx = dx.mutable_matrix_view();
  b.dweight = dweight.data();
  const std::int64_t bytes = under_test::causal_conv1d_backward_workspace_bytes(b, stream);
  std::vector<char> workspace(static_cast<std::size_t>(bytes) + 64, '\xff');
  b.workspace = Workspace{workspace.data(), bytes};
  under_test::causal_conv1d_backward(b, stream);
  ConvOutcome outcome{y.read(), dx.read(), dweight.read(), {}, 0};
  for (const Strided* each : {&x, &dy, &y, &dx, &weight, &dweight}) outcome.touched += each->touched();
  for (std::size_t i = static_cast<std::size_t>(bytes); i < workspace.size(); ++i) outcome.touched += workspace[i] != '\xff';
  for (const Strided* each : {&y, &dx, &dweight})
    outcome.bits.insert(outcome.bits.end(), each->bytes().begin(), each->bytes().end());
  return outcome;
}

const std::vector<std::int64_t> kLengths = {0, 1, 2, 3, 130, 0, 7, 128, 5, 260, 0};

TEST(CausalConv1d, every_kernel_size_and_channel_count_matches_the_reference) {
  std::uint64_t seed = 0;
  for (const std::int64_t channels : {1, 5, 16, 37, 96}) {
    for (const std::int64_t kernel : {1, 2, 3, 4, 7}) {
      for (const DType dtype : {DType::F32, DType::F64, DType::BF16}) {
        for (const bool silu : {true, false}) {
          ConvProblem p = make_conv(kLengths, channels, kernel, ++seed);
          p.silu = silu;
          round_to(dtype, p.x), round_to(dtype, p.dy), round_to(dtype, p.weight);
          const ConvReference expected = reference_causal_conv1d(p.offsets, channels, kernel, silu, p.x, p.weight, p.dy);
          const ConvOutcome ours = run_conv(p, dtype, dtype, 2);
          const double limit = dtype == DType::F64 ? 1e-14 : dtype == DType::F32 ? 1e-6 : 3e-3;
          EXPECT_LE(error_ratio(ours.y, expected.y), limit) << channels << " " << kernel;
          EXPECT_LE(error_ratio(ours.dx, expected.dx), limit) << channels << " " << kernel;
          EXPECT_LE(error_ratio(ours.dweight, expected.dweight), dtype == DType::F64 ? 1e-13 : 1e-5) << channels << " " << kernel;
          EXPECT_EQ(ours.touched, 0);
        }
      }
    }
  }
}

TEST(CausalConv1d, gradients_agree_with_finite_differences_in_fp64) {
  ConvProblem p = make_conv({1, 0, 3, 9}, 3, 4, 50);
  const ConvOutcome r = run_conv(p, DType::F64, DType::F64, 1);
  const auto loss = [&] {
    const Values y = run_conv(p, DType::F64, DType::F64, 1).y;
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * p.dy[i];
    return sum;
  };
  const auto check = [&](Values& values, const Values& gradient) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double kept = values[i];
      values[i] = kept + 1e-5;
      const double up = loss();
      values[i] = kept - 1e-5;
      const double down = loss();
      values[i] = kept;
      EXPECT_NEAR(gradient[i], (up - down) / 2e-5, 1e-8) << i;
    }
  };
  check(p.x, r.dx);
  check(p.weight, r.dweight);
}

// Rows wider than a warp moves at once, documents that end anywhere in a step of four tokens, strips cut by the end of the tokens.
TEST(CausalConv1d, wide_rows_of_four_taps_match_the_reference_and_repeat) {
  std::uint64_t seed = 53;
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{701}, {256, 1, 64, 3, 2, 190, 4, 5, 6, 61, 333}}) {
    for (const std::int64_t channels : {264, 520}) {
      for (const DType dtype : {DType::F32, DType::BF16}) {
        ConvProblem p = make_conv(lengths, channels, 4, ++seed);
        round_to(dtype, p.x), round_to(dtype, p.dy), round_to(dtype, p.weight);
        const ConvReference expected = reference_causal_conv1d(p.offsets, channels, 4, true, p.x, p.weight, p.dy);
        const ConvOutcome ours = run_conv(p, dtype, dtype, 2);
        const double limit = dtype == DType::F32 ? 1e-6 : 3e-3;
        EXPECT_LE(error_ratio(ours.y, expected.y), limit) << channels;
        EXPECT_LE(error_ratio(ours.dx, expected.dx), limit) << channels;
        EXPECT_LE(error_ratio(ours.dweight, expected.dweight), 1e-5) << channels;
        EXPECT_EQ(ours.touched, 0);
        EXPECT_EQ(run_conv(p, dtype, dtype, 1).bits, ours.bits);
      }
    }
  }
}

TEST(CausalConv1d, weight_gradient_is_added_and_may_have_fp32_weights_beside_bf16_tokens) {
  ConvProblem p = make_conv({40, 90}, 6, 4, 51);
  round_to(DType::BF16, p.x), round_to(DType::BF16, p.dy), round_to(DType::F32, p.weight);
  const ConvReference expected = reference_causal_conv1d(p.offsets, 6, 4, true, p.x, p.weight, p.dy);
  Values shifted = run_conv(p, DType::BF16, DType::F32, 2, 2.0).dweight;
  for (double& value : shifted) value -= 2;
  EXPECT_LE(error_ratio(shifted, expected.dweight), 1e-5);
}

TEST(CausalConv1d, bits_depend_on_no_thread_count_and_documents_are_isolated) {
  ConvProblem p = make_conv({200, 3, 150}, 21, 4, 52);
  const ConvOutcome one = run_conv(p, DType::F32, DType::F32, 1);
  for (const int threads : {1, 2, 3}) EXPECT_EQ(run_conv(p, DType::F32, DType::F32, threads).bits, one.bits);
  for (std::int64_t i = 200 * 21; i < 203 * 21; ++i) p.x[i] += 1, p.dy[i] -= 1;
  const ConvOutcome other = run_conv(p, DType::F32, DType::F32, 2);
  for (const auto& [a, b] : {std::pair(&one.y, &other.y), std::pair(&one.dx, &other.dx)}) {
    EXPECT_TRUE(std::equal(a->begin(), a->begin() + 200 * 21, b->begin()));
    EXPECT_TRUE(std::equal(a->begin() + 203 * 21, a->end(), b->begin() + 203 * 21));
    EXPECT_FALSE(std::equal(a->begin() + 200 * 21, a->begin() + 203 * 21, b->begin() + 200 * 21));
  }
}

TEST(CausalConv1d, offsets_that_do_not_cover_the_tokens_are_an_internal_fault) {
  ThreadPool pool(1);
  StreamHandle stream;
  stream.pool = &pool;
  const std::int64_t offsets[] = {0, 5};
  CausalConv1dForwardArgs args;
  args.tokens = 8, args.channels = 1, args.documents = Documents{1, offsets};
  EXPECT_THROW(under_test::causal_conv1d_forward(args, stream), Error);
  args.tokens = 5, args.kernel = 17;
  EXPECT_THROW(under_test::causal_conv1d_forward(args, stream), Error);
}

}  // namespace
}  // namespace deltron::test
