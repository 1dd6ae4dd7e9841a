// Dropout with the residual sum: decisions are those of base/rng.h's addresses, on every vector target.
#include "tests/support/kernel_test.h"
#include "tests/support/reference_elementwise.h"
#include "tests/support/under_test.h"

#include "kernels/elementwise.h"

namespace deltron {
namespace {

using namespace test;

class Dropout : public KernelTest {
 protected:
  Dropout() { stream.pool = &pool; }
  ThreadPool pool{2, false};
  StreamHandle stream;
};

template <class S>
struct Case {
  std::int64_t rows, cols;
  Guarded<S> x, residual, y;
  std::vector<std::int64_t> sample;
  std::vector<std::int32_t> offset;
  kernels::TokenRng rng;
  Case(std::int64_t r, std::int64_t c, double p) : rows(r), cols(c), x(1, 1, r * c), residual(1, 1, r * c), y(1, 1, r * c) {
    x.fill([](std::int64_t i) { return 1 + noise(1, i); });
    residual.fill([](std::int64_t i) { return noise(2, i); });
    for (std::int64_t i = 0; i < r; ++i) {
      sample.push_back((std::int64_t{1} << 33) + i / 5);
      offset.push_back(static_cast<std::int32_t>(1000 + i % 5));
    }
    rng = {rng_key({99, 3, kRngSiteHiddenDropoutMlp}), sample.data(), offset.data(), p};
  }
  void run(const StreamHandle& stream, bool with_residual) {
    under_test::dropout_add({rows, cols, x.data(), with_residual ? residual.data() : nullptr, y.data(), kDTypeOf<S>, rng}, stream);
  }
};

TEST_P(Dropout, keeps_and_drops_by_sample_offset_and_column) {
  for_each_storage([&](auto s) {
    using S = decltype(s);
    for (const std::int64_t cols : {1, 3, 17, 63, 65, 256, 300, 521}) {
      for (const bool with_residual : {true, false}) {
        Case<S> c(13, cols, 0.3);
        c.run(stream, with_residual);
        const auto want = reference_dropout_add(c.x.values(), with_residual ? c.residual.values() : std::vector<double>{}, c.sample,
                                                c.offset, c.rng.key, 0.3, cols);
        expect_close<S>(c.y.values(), want, "y");
        EXPECT_TRUE(c.y.untouched());
      }
    }
  });
}

TEST_P(Dropout, keeps_a_share_of_one_minus_p) {
  for (const double p : {0.1, 0.5, 0.9}) {
    Case<float> c(400, 256, p);
    c.run(stream, false);
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < c.y.count(); ++i) kept += c.y.get(i) != 0;
    const double count = static_cast<double>(c.y.count());
    EXPECT_NEAR(static_cast<double>(kept) / count, 1 - p, 5 * std::sqrt(p * (1 - p) / count));
  }
}

TEST_P(Dropout, probability_zero_is_a_plain_sum_and_needs_no_addresses) {
  for_each_storage([&](auto s) {
    Case<decltype(s)> c(7, 65, 0);
    c.rng = {};
    c.run(stream, true);
    std::vector<double> want = c.x.values();
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += c.residual.get(static_cast<std::int64_t>(i));
    expect_close<decltype(s)>(c.y.values(), want, "x + residual");
    c.run(stream, false);
    EXPECT_TRUE(c.y.bytes() == c.x.bytes());
  });
}

TEST_P(Dropout, a_row_alone_gets_the_decisions_it_has_among_others) {
  Case<float> all(20, 130, 0.5);
  all.run(stream, true);
  for (const std::int64_t row : {0, 7, 19}) {
    Case<float> one(20, 130, 0.5);
    one.rng.token_sample += row;
    one.rng.token_offset += row;
    std::vector<float> y(130);
    under_test::dropout_add({1, 130, one.x.data() + row * 130, one.residual.data() + row * 130, y.data(), DType::F32, one.rng}, stream);
    for (std::int64_t i = 0; i < 130; ++i) ASSERT_EQ(y[static_cast<std::size_t>(i)], static_cast<float>(all.y.get(row * 130 + i)));
  }
}

TEST_P(Dropout, bits_depend_neither_on_threads_nor_on_the_run) {
  for_each_storage([](auto s) {
    expect_same_bits([](const StreamHandle& on) {
      Case<decltype(s)> c(301, 129, 0.2);
      c.run(on, true);
      return c.y.bytes();
    });
  });
}

TEST_P(Dropout, a_probability_of_one_is_refused) {
  Case<float> c(1, 4, 1.0);
  EXPECT_THROW(c.run(stream, true), Error);
}

DELTRON_EVERY_TARGET(Dropout);

}  // namespace
}  // namespace deltron
