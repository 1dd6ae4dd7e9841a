// Conversion, fill, sums, scaling, sigmoid gate: against plain double forms, in every storage type and on every vector target.
#include "kernels/elementwise.h"

#include <cstring>
#include <limits>

#include "tests/support/kernel_test.h"
#include "tests/support/reference_elementwise.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using namespace test;

class Elementwise : public KernelTest {
 protected:
  Elementwise() { stream.pool = &pool; }
  ThreadPool pool{2, false};
  StreamHandle stream;
};

const std::int64_t kSizes[] = {1, 3, 17, 63, 64, 65, 257};

TEST_P(Elementwise, convert_between_every_pair_rounds_as_the_scalar_conversion) {
  for_each_storage([&](auto from) {
    for_each_storage([&](auto to) {
      using X = decltype(from);
      using Y = decltype(to);
      for (const std::int64_t cols : kSizes) {
        Guarded<X> x(5, 1, cols, 3);
        Guarded<Y> y(5, 1, cols, 2);
        x.fill([](std::int64_t i) { return 1e3 * noise(1, i) * noise(2, i); });
        x.set(0, std::numeric_limits<double>::infinity());
        kernels::ConvertArgs args{5, cols, x.view(), kDTypeOf<X>, y.out(), kDTypeOf<Y>};
        under_test::convert(args, stream);
        for (std::int64_t i = 0; i < x.count(); ++i) ASSERT_EQ(y.get(i), as_double(from_double<Y>(x.get(i)))) << i;
        EXPECT_TRUE(y.untouched());
      }
    });
  });
}

TEST_P(Elementwise, bf16_rounding_is_that_of_the_scalar_conversion_for_hard_patterns) {
  Guarded<float> x(1, 1, 1 << 16);
  Guarded<bfloat16> y(1, 1, 1 << 16);
  for (std::uint32_t i = 0; i < (1u << 16); ++i) {
    // Every exponent and sign with the mantissas around a tie; infinities and NaNs among them.
    const std::uint32_t tails[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff, 0x4000, 0xc000};
    const std::uint32_t bits = ((i >> 3) * 8 + 7 * (i & 1)) << 16 | tails[i & 7];
    std::memcpy(x.data() + i, &bits, sizeof(bits));
  }
  kernels::ConvertArgs args{1, 1 << 16, x.view(), DType::F32, y.out(), DType::BF16};
  under_test::convert(args, stream);
  for (std::int64_t i = 0; i < (1 << 16); ++i) ASSERT_EQ(y.data()[i].bits, to_bfloat16(x.data()[i]).bits) << i;
}

TEST_P(Elementwise, fill_add_scale_touch_their_elements_only) {
  for_each_storage([&](auto s) {
    using S = decltype(s);
    for (const std::int64_t count : {1, 17, 65, 20011}) {
      Guarded<S> a(1, 1, count), b(1, 1, count), y(1, 1, count);
      a.fill([](std::int64_t i) { return noise(1, i); });
      b.fill([](std::int64_t i) { return noise(2, i); });
      under_test::add({count, a.data(), b.data(), y.data(), kDTypeOf<S>}, stream);
      std::vector<double> want = a.values();
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += b.get(static_cast<std::int64_t>(i));
      expect_close<S>(y.values(), want, "a + b");
      under_test::scale({count, y.data(), kDTypeOf<S>, -0.5}, stream);
      for (double& value : want) value *= -0.5;
      expect_close<S>(y.values(), want, "scaled");
      under_test::add({count, a.data(), b.data(), a.data(), kDTypeOf<S>}, stream);
      for (double& value : want) value *= -2;
      expect_close<S>(a.values(), want, "a += b");
      for (const double value : {0.0, 1.25}) {
        under_test::fill({count, y.data(), kDTypeOf<S>, value}, stream);
        for (std::int64_t i = 0; i < count; ++i) ASSERT_EQ(y.get(i), value);
      }
      EXPECT_TRUE(y.untouched() && a.untouched());
    }
  });
}

TEST_P(Elementwise, fill_clears_integers_too) {
  std::vector<std::int64_t> values(100, -1);
  under_test::fill({98, values.data() + 1, DType::I64, 0}, stream);
  EXPECT_EQ(values.front(), -1);
  EXPECT_EQ(values.back(), -1);
  for (std::size_t i = 1; i < 99; ++i) EXPECT_EQ(values[i], 0);
  EXPECT_THROW(under_test::fill({98, values.data() + 1, DType::I64, 1}, stream), Error);
}

TEST_P(Elementwise, accumulate_adds_into_wider_and_equal_types) {
  for_each_storage([&](auto from) {
    for_each_storage([&](auto to) {
      using X = decltype(from);
      using Y = decltype(to);
      for (const std::int64_t cols : kSizes) {
        Guarded<X> x(7, 1, cols, 1);
        Guarded<Y> y(7, 1, cols, 4);
        x.fill([](std::int64_t i) { return noise(1, i); });
        y.fill([](std::int64_t i) { return noise(2, i); });
        std::vector<double> want = y.values();
        for (std::size_t i = 0; i < want.size(); ++i) want[i] += 0.25 * x.get(static_cast<std::int64_t>(i));
        under_test::accumulate({7, cols, x.view(), kDTypeOf<X>, y.out(), kDTypeOf<Y>, 0.25}, stream);
        expect_close<Y>(y.values(), want, "y += x/4");
        EXPECT_TRUE(y.untouched());
      }
    });
  });
}

template <class S>
struct Gate {
  std::int64_t rows, cols;
  Guarded<S> x, gate, dy, y, dx, dgate;
  Gate(std::int64_t r, std::int64_t c)
      : rows(r), cols(c), x(r, 1, c, 1), gate(r, 1, c, 2), dy(r, 1, c, 3), y(r, 1, c, 1), dx(r, 1, c), dgate(r, 1, c, 5) {
    x.fill([](std::int64_t i) { return noise(1, i); });
    gate.fill([](std::int64_t i) { return 20 * noise(2, i); });
    dy.fill([](std::int64_t i) { return noise(3, i); });
  }
  void run(const StreamHandle& stream) {
    under_test::sigmoid_gate_forward({rows, cols, kDTypeOf<S>, x.view(), gate.view(), y.out()}, stream);
    under_test::sigmoid_gate_backward({rows, cols, kDTypeOf<S>, x.view(), gate.view(), dy.view(), dx.out(), dgate.out()}, stream);
  }
};

TEST_P(Elementwise, sigmoid_gate_agrees_with_the_reference) {
  for_each_storage([&](auto s) {
    using S = decltype(s);
    for (const std::int64_t cols : kSizes) {
      Gate<S> c(9, cols);
      c.run(stream);
      std::vector<double> y, dx, dgate;
      for (std::int64_t i = 0; i < c.x.count(); ++i) {
        const double sigma = reference_sigmoid(c.gate.get(i));
        y.push_back(c.x.get(i) * sigma);
        dx.push_back(c.dy.get(i) * sigma);
        dgate.push_back(c.dy.get(i) * c.x.get(i) * sigma * (1 - sigma));
      }
      expect_close<S>(c.y.values(), y, "y");
      expect_close<S>(c.dx.values(), dx, "dx");
      expect_close<S>(c.dgate.values(), dgate, "dgate");
      EXPECT_TRUE(c.y.untouched() && c.dx.untouched() && c.dgate.untouched());
    }
  });
}

TEST_P(Elementwise, sigmoid_gate_gradients_agree_with_finite_differences) {
  Gate<double> c(2, 9);
  c.run(stream);
  const auto product = [](const std::vector<double>& x, const std::vector<double>& gate) {
    std::vector<double> y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * reference_sigmoid(gate[i]);
    return y;
  };
  const auto of_x = [&](const std::vector<double>& x) { return product(x, c.gate.values()); };
  const auto of_gate = [&](const std::vector<double>& gate) { return product(c.x.values(), gate); };
  expect_gradient(c.dx.values(), finite_differences(of_x, c.x.values(), c.dy.values()), "dx");
  expect_gradient(c.dgate.values(), finite_differences(of_gate, c.gate.values(), c.dy.values()), "dgate");
}

TEST_P(Elementwise, bits_depend_neither_on_threads_nor_on_the_run) {
  for_each_storage([](auto s) {
    expect_same_bits([](const StreamHandle& on) {
      Gate<decltype(s)> c(301, 129);
      c.run(on);
      auto bytes = c.y.bytes();
      const auto more = c.dgate.bytes();
      bytes.insert(bytes.end(), more.begin(), more.end());
      return bytes;
    });
  });
}

TEST_P(Elementwise, non_finite_gates_show) {
  Gate<float> c(1, 33);
  c.gate.set(4, std::numeric_limits<double>::quiet_NaN());
  c.gate.set(5, std::numeric_limits<double>::infinity());
  c.gate.set(6, -std::numeric_limits<double>::infinity());
  c.run(stream);
  EXPECT_TRUE(std::isnan(c.y.get(4)));
  EXPECT_EQ(c.y.get(5), c.x.get(5));
  EXPECT_EQ(c.y.get(6), 0);
}

DELTRON_EVERY_TARGET(Elementwise);

}  // namespace
}  // namespace deltron
