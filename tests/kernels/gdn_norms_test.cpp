// Gated RMSNorm and L2 norm of heads: against the double references, finite differences, views, aliasing, zero rows and bits.
#include <limits>

#include <gtest/gtest.h>

#include "kernels/gated_rms_norm.h"
#include "kernels/l2_norm.h"
#include "src/base/thread_pool.h"
#include "tests/support/compare.h"
#include "tests/support/reference_gdn_layer.h"
#include "tests/support/strided.h"
#include "tests/support/under_test.h"

namespace deltron::test {
namespace {

using namespace deltron::kernels;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct GatedOutcome {
  Values y, rstd, dx, dz, dweight;
  std::vector<char> bits;
  std::int64_t touched = 0;
};

struct GatedProblem {
  std::int64_t rows, heads, dim;
  bool zero_centered = false;
  Values x, z, weight, dy;
};

GatedProblem make_gated(std::int64_t rows, std::int64_t heads, std::int64_t dim, bool zero_centered, std::uint64_t seed) {
  TestRandom random(seed);
  const std::int64_t count = rows * heads * dim;
  return {
      rows, heads, dim, zero_centered, random.values(count, 2), random.values(count, 4), random.values(dim), random.values(count)};
}

GatedOutcome run_gated(const GatedProblem& p, DType dtype, DType weight_dtype, int threads, bool in_place) {
  ThreadPool pool(threads, false);
  StreamHandle stream;
  stream.pool = &pool;
  const DType compute = compute_dtype(dtype);
  const auto tensor = [&](double guard, std::int64_t before, std::int64_t after) {
    return Strided(dtype, p.rows, p.heads, p.dim, guard, before, after);
  };
  Strided x = tensor(kNan, 0, 1), z = tensor(kNan, 3, 7), y = tensor(-7, 2, 0), dy = tensor(kNan, 0, 0), dx = tensor(-7, 1, 1),
          dz = tensor(-7, 0, 9);
  Strided weight(weight_dtype, 1, 1, p.dim, kNan), rstd(compute, p.rows, p.heads, 1, -7), dweight(compute, 1, 1, p.dim, -7);
  x.write(p.x), z.write(p.z), dy.write(p.dy), weight.write(p.weight), dweight.write(Values(p.weight.size(), 0.5));
  GatedRmsNormForwardArgs f;
  f.rows = p.rows, f.heads = p.heads, f.dim = p.dim, f.dtype = dtype, f.weight_dtype = weight_dtype,
  f.zero_centered = p.zero_centered;
  f.epsilon = 1e-5, f.x = x.head_view(), f.z = z.head_view(), f.weight = weight.data(), f.rstd = rstd.data();
  f.y = y.mutable_head_view();
  Strided x_copy = x;  // overwritten by the forward in place
  if (in_place) f.x = x_copy.head_view(), f.y = x_copy.mutable_head_view();
  under_test::gated_rms_norm_forward(f, stream);
  GatedRmsNormBackwardArgs b;
  b.rows = p.rows, b.heads = p.heads, b.dim = p.dim, b.dtype = dtype, b.weight_dtype = weight_dtype,
  b.zero_centered = p.zero_centered;
  b.x = x.head_view(), b.z = z.head_view(), b.dy = dy.head_view(), b.weight = f.weight, b.rstd = f.rstd;
  b.dx = in_place ? dy.mutable_head_view() : dx.mutable_head_view();
  b.dz = in_place ? z.mutable_head_view() : dz.mutable_head_view();
  b.dweight = dweight.data();
  const std::int64_t bytes = under_test::gated_rms_norm_backward_workspace_bytes(b, stream);
  std::vector<char> workspace(static_cast<std::size_t>(bytes) + 64, '\xff');
  b.workspace = Workspace{workspace.data(), bytes};
  under_test::gated_rms_norm_backward(b, stream);
  GatedOutcome outcome{in_place ? x_copy.read() : y.read(),
                       rstd.read(),
                       in_place ? dy.read() : dx.read(),
                       in_place ? z.read() : dz.read(),
                       dweight.read(),
                       {},
                       0};
  for (double& value : outcome.dweight) value -= 0.5;
  for (const Strided* each : {&x, &x_copy, &z, &y, &dy, &dx, &dz, &weight, &rstd, &dweight}) outcome.touched += each->touched();
  for (std::size_t i = static_cast<std::size_t>(bytes); i < workspace.size(); ++i) outcome.touched += workspace[i] != '\xff';
  for (const Strided* each : {&y, &dx, &dz, &rstd, &dweight})
    outcome.bits.insert(outcome.bits.end(), each->bytes().begin(), each->bytes().end());
  return outcome;
}

TEST(GatedRmsNorm, any_dims_views_and_dtypes_match_the_reference) {
  std::uint64_t seed = 0;
  for (const std::int64_t dim : {1, 3, 16, 32, 50, 128, 136, 256, 264}) {
    for (const DType dtype : {DType::F32, DType::F64, DType::BF16}) {
      for (const bool zero_centered : {false, true}) {
        for (const bool in_place : {false, true}) {
          GatedProblem p = make_gated(130, 3, dim, zero_centered, ++seed);
          const DType weight_dtype = dtype == DType::BF16 ? DType::F32 : dtype;
          round_to(dtype, p.x), round_to(dtype, p.z), round_to(dtype, p.dy), round_to(weight_dtype, p.weight);
          const GatedNormReference expected = reference_gated_rms_norm(dim, zero_centered, 1e-5, p.x, p.z, p.weight, p.dy);
          const GatedOutcome ours = run_gated(p, dtype, weight_dtype, 2, in_place);
          const double limit = dtype == DType::F64 ? 1e-13 : dtype == DType::F32 ? 2e-6 : 4e-3;
          EXPECT_LE(error_ratio(ours.y, expected.y), limit) << dim;
          EXPECT_LE(error_ratio(ours.rstd, expected.rstd), dtype == DType::BF16 ? 2e-6 : limit) << dim;
          // A norm over one number has almost no gradient: what is left is rounding.
          if (dim > 1) {
            EXPECT_LE(error_ratio(ours.dx, expected.dx), limit) << dim;
          }
          EXPECT_LE(error_ratio(ours.dz, expected.dz), limit) << dim;
          EXPECT_LE(error_ratio(ours.dweight, expected.dweight), dtype == DType::F64 ? 1e-12 : 2e-5) << dim;
          EXPECT_EQ(ours.touched, 0);
        }
      }
    }
  }
}

TEST(GatedRmsNorm, gradients_agree_with_finite_differences_in_fp64) {
  GatedProblem p = make_gated(3, 2, 5, true, 60);
  const GatedOutcome r = run_gated(p, DType::F64, DType::F64, 1, false);
  const auto loss = [&] {
    const Values y = run_gated(p, DType::F64, DType::F64, 1, false).y;
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
      EXPECT_NEAR(gradient[i], (up - down) / 2e-5, 1e-7) << i;
    }
  };
  check(p.x, r.dx);
  check(p.z, r.dz);
  check(p.weight, r.dweight);
}

TEST(GatedRmsNorm, bits_depend_on_no_thread_count) {
  const GatedProblem p = make_gated(300, 2, 24, false, 61);
  const std::vector<char> bits = run_gated(p, DType::F32, DType::F32, 1, false).bits;
  for (const int threads : {1, 2, 3}) EXPECT_EQ(run_gated(p, DType::F32, DType::F32, threads, false).bits, bits);
}

TEST(GatedRmsNorm, the_norm_is_rounded_before_the_gate) {
  GatedProblem p = make_gated(8, 1, 16, false, 62);
  round_to(DType::BF16, p.x), round_to(DType::BF16, p.z);
  const GatedOutcome ours = run_gated(p, DType::BF16, DType::F32, 1, false);
  Values expected(p.x.size());
  for (std::size_t i = 0; i < p.x.size(); ++i) {
    Values norm = {static_cast<double>(static_cast<float>(p.x[i]) * static_cast<float>(ours.rstd[i / 16]) *
                                       static_cast<float>(p.weight[i % 16]))};
    round_to(DType::BF16, norm);
    expected[i] = norm[0] * p.z[i] * reference_sigmoid(p.z[i]);
  }
  round_to(DType::BF16, expected);
  std::int64_t different = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) different += expected[i] != ours.y[i];
  EXPECT_LE(different, 2);  // ties that the last bit of the sigmoid decides
}

struct L2Outcome {
  Values y, rstd, dx;
  std::vector<char> bits;
  std::int64_t touched = 0;
};

L2Outcome run_l2(std::int64_t rows, std::int64_t heads, std::int64_t dim, const Values& x_values, const Values& dy_values,
                 DType dtype, int threads, bool in_place) {
  ThreadPool pool(threads, false);
  StreamHandle stream;
  stream.pool = &pool;
  Strided x(dtype, rows, heads, dim, kNan, 1, 4), y(dtype, rows, heads, dim, -7, 3, 0), dy(dtype, rows, heads, dim, kNan, 0, 2),
      dx(dtype, rows, heads, dim, -7, 2, 2), rstd(compute_dtype(dtype), rows, heads, 1, -7);
  x.write(x_values), dy.write(dy_values);
  L2NormForwardArgs f;
  f.rows = rows, f.heads = heads, f.dim = dim, f.dtype = dtype, f.x = x.head_view(), f.rstd = rstd.data();
  f.y = in_place ? x.mutable_head_view() : y.mutable_head_view();
  under_test::l2_norm_forward(f, stream);
  L2NormBackwardArgs b;
  b.rows = rows, b.heads = heads, b.dim = dim, b.dtype = dtype, b.rstd = rstd.data(), b.dy = dy.head_view();
  b.y = in_place ? x.head_view() : y.head_view();
  b.dx = in_place ? dy.mutable_head_view() : dx.mutable_head_view();
  under_test::l2_norm_backward(b, stream);
  L2Outcome outcome{in_place ? x.read() : y.read(), rstd.read(), in_place ? dy.read() : dx.read(), {}, 0};
  for (const Strided* each : {&x, &y, &dy, &dx, &rstd}) {
    outcome.touched += each->touched();
    outcome.bits.insert(outcome.bits.end(), each->bytes().begin(), each->bytes().end());
  }
  return outcome;
}

TEST(L2Norm, any_dims_views_and_dtypes_match_the_reference) {
  TestRandom random(70);
  for (const std::int64_t dim : {2, 7, 16, 32, 100, 128}) {
    for (const DType dtype : {DType::F32, DType::F64, DType::BF16}) {
      for (const bool in_place : {false, true}) {
        Values x = random.values(90 * 2 * dim), dy = random.values(90 * 2 * dim);
        round_to(dtype, x), round_to(dtype, dy);
        const L2NormReference expected = reference_l2_norm(dim, 1e-6, x, dy);
        const L2Outcome ours = run_l2(90, 2, dim, x, dy, dtype, 2, in_place);
        const double limit = dtype == DType::F64 ? 1e-13 : dtype == DType::F32 ? 3e-6 : 6e-3;
        EXPECT_LE(error_ratio(ours.y, expected.y), limit) << dim;
        EXPECT_LE(error_ratio(ours.rstd, expected.rstd), dtype == DType::BF16 ? 3e-6 : limit) << dim;
        // Two numbers: the gradient is what is left along one direction, so rounding weighs more.
        EXPECT_LE(error_ratio(ours.dx, expected.dx), dim > 2 ? limit : 20 * limit) << dim;
        EXPECT_EQ(ours.touched, 0);
      }
    }
  }
}

TEST(L2Norm, gradient_agrees_with_finite_differences_in_fp64) {
  TestRandom random(71);
  Values x = random.values(2 * 2 * 5);
  const Values dy = random.values(2 * 2 * 5);
  const L2Outcome r = run_l2(2, 2, 5, x, dy, DType::F64, 1, false);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto loss = [&](double step) {
      Values moved = x;
      moved[i] += step;
      const Values y = run_l2(2, 2, 5, moved, dy, DType::F64, 1, false).y;
      double sum = 0;
      for (std::size_t j = 0; j < y.size(); ++j) sum += y[j] * dy[j];
      return sum;
    };
    EXPECT_NEAR(r.dx[i], (loss(1e-5) - loss(-1e-5)) / 2e-5, 1e-8) << i;
  }
}

TEST(L2Norm, zero_rows_stay_finite_both_ways) {
  const Values zeros(16, 0.0), ones(16, 1.0);
  const L2Outcome r = run_l2(1, 1, 16, zeros, ones, DType::F32, 1, false);
  for (double value : r.y) EXPECT_EQ(value, 0.0);
  for (double value : r.dx) EXPECT_NEAR(value, 1000.0, 1.0);
}

TEST(L2Norm, bits_depend_on_no_thread_count) {
  TestRandom random(72);
  const Values x = random.values(300 * 3 * 20), dy = random.values(300 * 3 * 20);
  const std::vector<char> bits = run_l2(300, 3, 20, x, dy, DType::F32, 1, false).bits;
  for (const int threads : {1, 2, 3}) EXPECT_EQ(run_l2(300, 3, 20, x, dy, DType::F32, threads, false).bits, bits);
}

}  // namespace
}  // namespace deltron::test
