// Cross entropy on the CPU against a plain double form; masked rows; non-finite logits must show.
#include "kernels/cross_entropy.h"

#include <cmath>
#include <limits>
#include <memory>

#include "tests/support/kernel_test.h"
#include "tests/support/reference_cross_entropy.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using namespace test;

class CrossEntropy : public KernelTest {};

template <class S>
struct Case {
  using C = ComputeType<S>;
  std::int64_t rows, vocab;
  Guarded<S> logits, dlogits;
  Guarded<C> loss, log_sum_exp, dloss;
  std::vector<std::int32_t> labels;
  Case(std::int64_t r, std::int64_t v, std::int64_t gap)
      : rows(r), vocab(v), logits(r, 1, v, gap), dlogits(r, 1, v, gap), loss(1, 1, r), log_sum_exp(1, 1, r), dloss(1, 1, r) {
    logits.fill([](std::int64_t i) { return 8 * noise(1, i); });
    dloss.fill([](std::int64_t i) { return noise(2, i); });
    for (std::int64_t i = 0; i < r; ++i) labels.push_back(i % 4 == 2 ? -1 : static_cast<std::int32_t>((i * 7 + 3) % v));
  }
  void forward(const StreamHandle& stream) {
    kernels::CrossEntropyForwardArgs args;
    args.rows = rows;
    args.vocab = vocab;
    args.dtype = kDTypeOf<S>;
    args.logits = logits.view();
    args.labels = labels.data();
    args.loss = loss.data();
    args.log_sum_exp = log_sum_exp.data();
    under_test::cross_entropy_forward(args, stream);
  }
  void backward(const StreamHandle& stream, kernels::MutableMatrixView to) {
    kernels::CrossEntropyBackwardArgs args;
    args.rows = rows;
    args.vocab = vocab;
    args.dtype = kDTypeOf<S>;
    args.logits = logits.view();
    args.labels = labels.data();
    args.log_sum_exp = log_sum_exp.data();
    args.dloss = dloss.data();
    args.dlogits = to;
    under_test::cross_entropy_backward(args, stream);
  }
};

TEST_P(CrossEntropy, agrees_with_the_reference_at_odd_sizes_and_strides) {
  ThreadPool pool(2, false);
  StreamHandle stream;
  stream.pool = &pool;
  for_each_storage([&](auto s) {
    using S = decltype(s);
    using C = ComputeType<S>;
    for (const std::int64_t vocab : {1, 3, 17, 63, 65, 256, 259}) {
      Case<S> c(13, vocab, vocab % 4);
      c.forward(stream);
      c.backward(stream, c.dlogits.out());
      const auto want = reference_cross_entropy(c.logits.values(), c.labels, vocab);
      expect_close<C>(c.loss.values(), want.loss, "loss");
      expect_close<C>(c.log_sum_exp.values(), want.log_sum_exp, "log_sum_exp");
      expect_close<S>(c.dlogits.values(), reference_cross_entropy_gradient(c.logits.values(), c.labels, c.dloss.values(), vocab), "dlogits");
      EXPECT_TRUE(c.dlogits.untouched() && c.loss.untouched() && c.log_sum_exp.untouched());
      const auto gradient = c.dlogits.bytes();
      c.backward(stream, c.logits.out());
      EXPECT_TRUE(c.logits.bytes() == gradient) << "in place differs";
    }
  });
}

TEST_P(CrossEntropy, gradients_agree_with_finite_differences) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  Case<double> c(5, 11, 2);
  c.forward(stream);
  c.backward(stream, c.dlogits.out());
  const auto f = [&](const std::vector<double>& x) { return reference_cross_entropy(x, c.labels, 11).loss; };
  expect_gradient(c.dlogits.values(), finite_differences(f, c.logits.values(), c.dloss.values()), "dlogits");
}

TEST_P(CrossEntropy, masked_rows_read_no_logits_and_give_zero) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  for_each_storage([&](auto s) {
    Case<decltype(s)> c(4, 33, 0);
    for (std::int64_t i = 0; i < 33; ++i) c.logits.set(2 * 33 + i, std::numeric_limits<double>::quiet_NaN());
    c.dloss.set(2, std::numeric_limits<double>::quiet_NaN());
    c.forward(stream);
    c.backward(stream, c.dlogits.out());
    EXPECT_EQ(c.loss.get(2), 0);
    for (std::int64_t i = 0; i < 33; ++i) EXPECT_EQ(c.dlogits.get(2 * 33 + i), 0);
    EXPECT_TRUE(std::isfinite(c.loss.get(1)));
  });
}

TEST_P(CrossEntropy, large_logits_stay_finite_and_non_finite_ones_show) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  for_each_storage([&](auto s) {
    Case<decltype(s)> c(3, 41, 0);
    c.labels = {0, 1, 3};
    c.logits.fill([](std::int64_t i) { return i % 3 == 0 ? 30000.0 : -30000.0; });
    c.forward(stream);
    EXPECT_NEAR(c.loss.get(0), std::log(14.0), 1e-2);
    EXPECT_NEAR(c.loss.get(2), 60000.0, 400);
    c.logits.fill([](std::int64_t) { return -30000.0; });  // the unused lanes of a tail must not be the maximum
    c.forward(stream);
    EXPECT_NEAR(c.loss.get(1), std::log(41.0), 1e-2);
    c.logits.set(5, std::numeric_limits<double>::quiet_NaN());
    c.logits.set(41 + 40, std::numeric_limits<double>::infinity());
    c.forward(stream);
    EXPECT_FALSE(std::isfinite(c.loss.get(0)));
    EXPECT_FALSE(std::isfinite(c.loss.get(1)));
    EXPECT_TRUE(std::isfinite(c.loss.get(2)));
  });
}

TEST_P(CrossEntropy, bits_depend_neither_on_threads_nor_on_the_run) {
  for_each_storage([](auto s) {
    expect_same_bits([](const StreamHandle& stream) {
      Case<decltype(s)> c(301, 259, 1);
      c.forward(stream);
      c.backward(stream, c.dlogits.out());
      auto bytes = c.dlogits.bytes();
      const auto more = c.loss.bytes();
      bytes.insert(bytes.end(), more.begin(), more.end());
      return bytes;
    });
  });
}

TEST_P(CrossEntropy, a_label_outside_the_vocabulary_is_refused) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  Case<float> c(3, 10, 0);
  c.labels[1] = 10;
  if (kOnCuda) {
    c.forward(stream);
    EXPECT_TRUE(std::isnan(c.loss.get(1)));
  } else {
    EXPECT_THROW(c.forward(stream), Error);
  }
}

// The columns of a row on three ranks of different sizes, joined: what one rank finds.
TEST_P(CrossEntropy, parts_of_the_vocabulary_join_to_the_whole) {
  ThreadPool pool(2, false);
  StreamHandle stream;
  stream.pool = &pool;
  for_each_storage([&](auto s) {
    using S = decltype(s);
    using C = ComputeType<S>;
    constexpr std::int64_t kFirst[] = {0, 24, 48, 65};
    const std::int64_t rows = 13, vocab = 65;
    Case<S> whole(rows, vocab, 0);
    whole.labels[3] = 64;
    whole.labels[4] = 24;
    whole.labels[5] = 23;
    const auto want = reference_cross_entropy(whole.logits.values(), whole.labels, vocab);
    const auto want_gradient = reference_cross_entropy_gradient(whole.logits.values(), whole.labels, whole.dloss.values(), vocab);
    std::vector<C> parts(static_cast<std::size_t>(6 * rows));
    Guarded<C> loss(1, 1, rows), log_sum_exp(1, 1, rows);
    std::vector<std::unique_ptr<Case<S>>> cases;
    for (int r = 0; r < 3; ++r) {
      const std::int64_t first = kFirst[r], here = kFirst[r + 1] - first;
      cases.push_back(std::make_unique<Case<S>>(rows, here, r));
      Case<S>& c = *cases.back();
      c.labels = whole.labels;
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < here; ++j) c.logits.set(i * here + j, whole.logits.get(i * vocab + first + j));
      }
      kernels::CrossEntropyForwardArgs args;
      args.rows = rows;
      args.vocab = here;
      args.dtype = kDTypeOf<S>;
      args.logits = c.logits.view();
      args.labels = c.labels.data();
      args.first = first;
      args.whole = vocab;
      args.log_sum_exp = parts.data() + 2 * r * rows;
      args.label_logit = parts.data() + (2 * r + 1) * rows;
      under_test::cross_entropy_forward(args, stream);
    }
    kernels::CrossEntropyJoinArgs join;
    join.rows = rows;
    join.ranks = 3;
    join.dtype = kDTypeOf<C>;
    join.labels = whole.labels.data();
    join.parts = parts.data();
    join.loss = loss.data();
    join.log_sum_exp = log_sum_exp.data();
    under_test::cross_entropy_join(join, stream);
    expect_close<C>(loss.values(), want.loss, "loss");
    expect_close<C>(log_sum_exp.values(), want.log_sum_exp, "log_sum_exp");
    EXPECT_TRUE(loss.untouched() && log_sum_exp.untouched());
    for (int r = 0; r < 3; ++r) {
      Case<S>& c = *cases[static_cast<std::size_t>(r)];
      kernels::CrossEntropyBackwardArgs args;
      args.rows = rows;
      args.vocab = c.vocab;
      args.dtype = kDTypeOf<S>;
      args.logits = c.logits.view();
      args.labels = c.labels.data();
      args.first = kFirst[r];
      args.whole = vocab;
      args.log_sum_exp = log_sum_exp.data();
      args.dloss = whole.dloss.data();
      args.dlogits = c.dlogits.out();
      under_test::cross_entropy_backward(args, stream);
      std::vector<double> columns;
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < c.vocab; ++j) columns.push_back(want_gradient[static_cast<std::size_t>(i * vocab + kFirst[r] + j)]);
      }
      expect_close<S>(c.dlogits.values(), columns, "dlogits");
      EXPECT_TRUE(c.dlogits.untouched());
    }
  });
}

DELTRON_EVERY_TARGET(CrossEntropy);

}  // namespace
}  // namespace deltron
