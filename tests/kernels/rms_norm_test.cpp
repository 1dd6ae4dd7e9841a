// RMSNorm on the CPU against a plain double form, in every storage type and on every vector target.
#include "kernels/rms_norm.h"

#include "tests/support/kernel_test.h"
#include "tests/support/reference_rms_norm.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using namespace test;
using kernels::RmsNormBackwardArgs;
using kernels::RmsNormForwardArgs;

class RmsNorm : public KernelTest {};

template <class S>
struct Case {
  using C = ComputeType<S>;
  std::int64_t rows, heads, cols;
  Guarded<S> x, dy, y, dx;
  Guarded<C> weight, rstd, dweight;
  bool zero_centered;

  Case(std::int64_t r, std::int64_t h, std::int64_t c, std::int64_t gap, bool zero)
      : rows(r), heads(h), cols(c), x(r, h, c, gap), dy(r, h, c, gap), y(r, h, c, gap), dx(r, h, c, gap),
        weight(1, 1, c), rstd(1, 1, r * h), dweight(1, 1, c), zero_centered(zero) {
    x.fill([](std::int64_t i) { return 2 * noise(1, i); });
    dy.fill([](std::int64_t i) { return noise(2, i); });
    weight.fill([](std::int64_t i) { return 1 + 0.5 * noise(3, i); });
    dweight.fill([](std::int64_t i) { return noise(4, i); });
  }
  void forward(const StreamHandle& stream, bool again = false) {
    RmsNormForwardArgs args;
    args.rows = rows;
    args.heads = heads;
    args.cols = cols;
    args.dtype = kDTypeOf<S>;
    args.x = x.heads_view();
    args.weight = weight.data();
    args.weight_dtype = kDTypeOf<C>;
    args.zero_centered = zero_centered;
    args.epsilon = 1e-5;
    args.use_given_rstd = again;
    args.rstd = rstd.data();
    args.y = y.heads_out();
    under_test::rms_norm_forward(args, stream);
  }
  void backward(const StreamHandle& stream, bool weight_gradient = true) {
    RmsNormBackwardArgs args;
    args.rows = rows;
    args.heads = heads;
    args.cols = cols;
    args.dtype = kDTypeOf<S>;
    args.x = x.heads_view();
    args.dy = dy.heads_view();
    args.weight = weight.data();
    args.weight_dtype = kDTypeOf<C>;
    args.zero_centered = zero_centered;
    args.rstd = rstd.data();
    args.dx = dx.heads_out();
    if (weight_gradient) args.dweight = dweight.data();
    Guarded<C> workspace(1, 1, under_test::rms_norm_backward_workspace_bytes(args, stream) / static_cast<std::int64_t>(sizeof(C)));
    args.workspace = {workspace.data(), workspace.count() * static_cast<std::int64_t>(sizeof(C))};
    under_test::rms_norm_backward(args, stream);
    EXPECT_TRUE(workspace.untouched());
  }
};

TEST_P(RmsNorm, agrees_with_the_reference_at_odd_sizes_and_strides) {
  ThreadPool pool(2, false);
  StreamHandle stream;
  stream.pool = &pool;
  for_each_storage([&](auto s) {
    using S = decltype(s);
    for (const std::int64_t cols : {1, 3, 17, 63, 64, 65, 200, 512, 1000, 1032}) {
      for (const std::int64_t heads : {1, 3}) {
        const bool zero = cols % 2 == 1;
        Case<S> c(37, heads, cols, heads == 1 ? 0 : 5, zero);
        const std::vector<double> start = c.dweight.values();
        c.forward(stream);
        c.backward(stream);
        const auto y = reference_rms_norm(c.x.values(), c.weight.values(), cols, zero, 1e-5);
        const auto gradient = reference_rms_norm_gradient(c.x.values(), c.weight.values(), c.dy.values(), cols, zero, 1e-5);
        expect_close<S>(c.y.values(), y.y, "y");
        expect_close<ComputeType<S>>(c.rstd.values(), y.rstd, "rstd");
        expect_close<S>(c.dx.values(), gradient.dx, "dx", cols == 1 ? 20 : 4);  // one column: nearly all cancels
        std::vector<double> dweight = gradient.dweight;
        for (std::size_t i = 0; i < dweight.size(); ++i) dweight[i] += start[i];
        expect_close<ComputeType<S>>(c.dweight.values(), dweight, "dweight += ", 4);
        EXPECT_TRUE(c.y.untouched() && c.dx.untouched() && c.rstd.untouched() && c.dweight.untouched());
      }
    }
  });
}

TEST_P(RmsNorm, gradients_agree_with_finite_differences) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  Case<double> c(3, 2, 7, 2, true);
  c.dweight.fill([](std::int64_t) { return 0.0; });
  c.forward(stream);
  c.backward(stream);
  const auto of_x = [&](const std::vector<double>& x) { return reference_rms_norm(x, c.weight.values(), 7, true, 1e-5).y; };
  const auto of_w = [&](const std::vector<double>& w) { return reference_rms_norm(c.x.values(), w, 7, true, 1e-5).y; };
  expect_gradient(c.dx.values(), finite_differences(of_x, c.x.values(), c.dy.values()), "dx");
  expect_gradient(c.dweight.values(), finite_differences(of_w, c.weight.values(), c.dy.values()), "dweight");
}

TEST_P(RmsNorm, bits_depend_neither_on_threads_nor_on_the_run) {
  for_each_storage([](auto s) {
    using S = decltype(s);
    expect_same_bits([](const StreamHandle& stream) {
      Case<S> c(301, 2, 129, 1, false);
      c.forward(stream);
      c.backward(stream);
      auto bytes = c.y.bytes();
      for (const auto& part : {c.dx.bytes(), c.dweight.bytes(), c.rstd.bytes()}) bytes.insert(bytes.end(), part.begin(), part.end());
      return bytes;
    });
  });
}

TEST_P(RmsNorm, saved_statistics_give_the_same_bits_again) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  for_each_storage([&](auto s) {
    Case<decltype(s)> c(9, 1, 65, 3, true);
    c.forward(stream);
    const auto first = c.y.bytes();
    c.y.fill([](std::int64_t) { return 0.0; });
    c.forward(stream, true);
    EXPECT_TRUE(c.y.bytes() == first);
  });
}

TEST_P(RmsNorm, weight_gradient_is_optional_and_dx_may_replace_dy) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  Case<float> c(33, 1, 70, 0, false);
  c.forward(stream);
  c.backward(stream);
  const auto dx = c.dx.bytes();
  const auto dweight = c.dweight.bytes();
  RmsNormBackwardArgs args;
  args.rows = c.rows;
  args.cols = c.cols;
  args.x = c.x.heads_view();
  args.dy = c.dy.heads_view();
  args.weight = c.weight.data();
  args.rstd = c.rstd.data();
  args.dx = c.dy.heads_out();
  under_test::rms_norm_backward(args, stream);
  EXPECT_TRUE(c.dy.bytes() == dx);
  EXPECT_TRUE(c.dweight.bytes() == dweight);
}

DELTRON_EVERY_TARGET(RmsNorm);

}  // namespace
}  // namespace deltron
