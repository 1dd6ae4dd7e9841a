// SwiGLU on the CPU against a plain double form.
#include "kernels/swiglu.h"

#include "tests/support/kernel_test.h"
#include "tests/support/reference_swiglu.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using namespace test;

class Swiglu : public KernelTest {};

template <class S>
struct Case {
  std::int64_t rows, ffn;
  Guarded<S> h, dy, y, y_again, dh;
  Case(std::int64_t r, std::int64_t f, std::int64_t gap)
      : rows(r), ffn(f), h(r, 1, 2 * f, gap), dy(r, 1, f, gap), y(r, 1, f, gap), y_again(r, 1, f, 1), dh(r, 1, 2 * f, 2) {
    h.fill([](std::int64_t i) { return 6 * noise(1, i); });
    dy.fill([](std::int64_t i) { return noise(2, i); });
  }
  void run(const StreamHandle& stream) {
    kernels::SwigluForwardArgs forward;
    forward.rows = rows;
    forward.ffn = ffn;
    forward.dtype = kDTypeOf<S>;
    forward.h = h.view();
    forward.y = y.out();
    under_test::swiglu_forward(forward, stream);
    kernels::SwigluBackwardArgs backward;
    backward.rows = rows;
    backward.ffn = ffn;
    backward.dtype = kDTypeOf<S>;
    backward.h = h.view();
    backward.dy = dy.view();
    backward.dh = dh.out();
    backward.y = y_again.out();
    under_test::swiglu_backward(backward, stream);
  }
};

TEST_P(Swiglu, agrees_with_the_reference_at_odd_sizes_and_strides) {
  ThreadPool pool(2, false);
  StreamHandle stream;
  stream.pool = &pool;
  for_each_storage([&](auto s) {
    using S = decltype(s);
    for (const std::int64_t ffn : {1, 3, 17, 63, 65, 130}) {
      Case<S> c(11, ffn, ffn % 4);
      c.run(stream);
      expect_close<S>(c.y.values(), reference_swiglu(c.h.values(), ffn), "y");
      expect_close<S>(c.dh.values(), reference_swiglu_gradient(c.h.values(), c.dy.values(), ffn), "dh");
      EXPECT_TRUE(c.y_again.bytes() == c.y.bytes()) << "the backward's output differs from the forward's";
      EXPECT_TRUE(c.y.untouched() && c.dh.untouched() && c.y_again.untouched());
    }
  });
}

TEST_P(Swiglu, gradients_agree_with_finite_differences) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  Case<double> c(3, 9, 1);
  c.run(stream);
  const auto f = [](const std::vector<double>& h) { return reference_swiglu(h, 9); };
  expect_gradient(c.dh.values(), finite_differences(f, c.h.values(), c.dy.values()), "dh");
}

TEST_P(Swiglu, bits_depend_neither_on_threads_nor_on_the_run) {
  for_each_storage([](auto s) {
    expect_same_bits([](const StreamHandle& stream) {
      Case<decltype(s)> c(301, 129, 1);
      c.run(stream);
      auto bytes = c.y.bytes();
      const auto more = c.dh.bytes();
      bytes.insert(bytes.end(), more.begin(), more.end());
      return bytes;
    });
  });
}

TEST_P(Swiglu, gradient_may_replace_its_input) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  Case<float> c(5, 37, 0);
  c.run(stream);
  kernels::SwigluBackwardArgs args;
  args.rows = c.rows;
  args.ffn = c.ffn;
  args.h = c.h.view();
  args.dy = c.dy.view();
  args.dh = c.h.out();
  under_test::swiglu_backward(args, stream);
  EXPECT_TRUE(c.h.bytes() == c.dh.bytes());
}

DELTRON_EVERY_TARGET(Swiglu);

}  // namespace
}  // namespace deltron
