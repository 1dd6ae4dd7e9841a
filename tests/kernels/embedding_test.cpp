// Embedding on the CPU: gather, and the scatter-add of its gradient.
#include "kernels/embedding.h"

#include <cmath>

#include "tests/support/kernel_test.h"
#include "tests/support/reference_embedding.h"
#include "tests/support/under_test.h"

namespace deltron {
namespace {

using namespace test;

class Embedding : public KernelTest {};

template <class S>
struct Case {
  using C = ComputeType<S>;
  std::int64_t tokens, vocab, hidden;
  Guarded<C> table, dtable;
  Guarded<S> y, dy;
  std::vector<std::int32_t> ids;
  std::int64_t first = 0, whole = 0;
  Case(std::int64_t t, std::int64_t v, std::int64_t h)
      : tokens(t), vocab(v), hidden(h), table(v, 1, h), dtable(v, 1, h), y(t, 1, h), dy(t, 1, h) {
    table.fill([](std::int64_t i) { return noise(1, i); });
    dtable.fill([](std::int64_t i) { return noise(2, i); });
    dy.fill([](std::int64_t i) { return noise(3, i); });
    for (std::int64_t i = 0; i < t; ++i) ids.push_back(static_cast<std::int32_t>((i * i + 3) % v));
  }
  void run(const StreamHandle& stream) {
    kernels::EmbeddingForwardArgs forward;
    forward.tokens = tokens;
    forward.vocab = vocab;
    forward.hidden = hidden;
    forward.ids = ids.data();
    forward.first = first;
    forward.whole = whole;
    forward.table = table.data();
    forward.table_dtype = kDTypeOf<C>;
    forward.y = y.data();
    forward.dtype = kDTypeOf<S>;
    under_test::embedding_forward(forward, stream);
    kernels::EmbeddingBackwardArgs backward;
    backward.tokens = tokens;
    backward.vocab = vocab;
    backward.hidden = hidden;
    backward.ids = ids.data();
    backward.first = first;
    backward.whole = whole;
    backward.dy = dy.data();
    backward.dtype = kDTypeOf<S>;
    backward.dtable = dtable.data();
    std::vector<std::int32_t> space(static_cast<std::size_t>(under_test::embedding_backward_workspace_bytes(backward, stream) / 4), -1);
    backward.workspace = {space.data(), static_cast<std::int64_t>(space.size()) * 4};
    EXPECT_TRUE(kOnCuda || space.empty());
    under_test::embedding_backward(backward, stream);
  }
};

TEST_P(Embedding, gathers_and_scatters_as_the_reference) {
  ThreadPool pool(2, false);
  StreamHandle stream;
  stream.pool = &pool;
  for_each_storage([&](auto s) {
    using S = decltype(s);
    using C = ComputeType<S>;
    for (const std::int64_t hidden : {1, 3, 17, 63, 65, 200}) {
      Case<S> c(53, 11, hidden);
      const auto start = c.dtable.values();
      c.run(stream);
      expect_close<S>(c.y.values(), reference_embedding(c.table.values(), c.ids, hidden), "y");
      expect_close<C>(c.dtable.values(), reference_embedding_gradient(start, c.ids, c.dy.values(), hidden), "dtable", 4);
      EXPECT_TRUE(c.y.untouched() && c.dtable.untouched());
    }
  });
}

TEST_P(Embedding, gradient_agrees_with_finite_differences) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  Case<double> c(9, 4, 5);
  c.dtable.fill([](std::int64_t) { return 0.0; });
  c.run(stream);
  const auto f = [&](const std::vector<double>& table) { return reference_embedding(table, c.ids, 5); };
  expect_gradient(c.dtable.values(), finite_differences(f, c.table.values(), c.dy.values()), "dtable");
}

TEST_P(Embedding, bits_depend_neither_on_threads_nor_on_the_run) {
  for_each_storage([](auto s) {
    expect_same_bits([](const StreamHandle& stream) {
      Case<decltype(s)> c(400, 7, 200);
      c.run(stream);
      auto bytes = c.dtable.bytes();
      const auto more = c.y.bytes();
      bytes.insert(bytes.end(), more.begin(), more.end());
      return bytes;
    });
  });
}

TEST_P(Embedding, an_id_outside_the_vocabulary_is_refused) {
  ThreadPool pool(1, false);
  StreamHandle stream;
  stream.pool = &pool;
  Case<float> c(3, 10, 4);
  c.ids[1] = -1;
  if (kOnCuda) {  // the host does not wait to see it: the row is NaN, and the step's non-finite check refuses the update
    c.run(stream);
    EXPECT_TRUE(std::isnan(c.y.get(4)) && std::isfinite(c.y.get(0)) && std::isfinite(c.y.get(8)));
  } else {
    EXPECT_THROW(c.run(stream), Error);
  }
}

// Two parts of a table: their rows add up to the whole's, and each gradient is the whole's rows.
TEST_P(Embedding, parts_of_the_table_add_up_to_the_whole) {
  ThreadPool pool(2, false);
  StreamHandle stream;
  stream.pool = &pool;
  for_each_storage([&](auto s) {
    using S = decltype(s);
    using C = ComputeType<S>;
    const std::int64_t hidden = 17, vocab = 11, cut = 6;
    Case<S> whole(53, vocab, hidden);
    const auto want = reference_embedding(whole.table.values(), whole.ids, hidden);
    std::vector<double> sum(want.size(), 0.0);
    for (const std::int64_t first : {std::int64_t{0}, cut}) {
      const std::int64_t here = first == 0 ? cut : vocab - cut;
      Case<S> c(53, here, hidden);
      c.ids = whole.ids;
      c.first = first;
      c.whole = vocab;
      for (std::int64_t i = 0; i < here * hidden; ++i) {
        c.table.set(i, whole.table.get(first * hidden + i));
        c.dtable.set(i, whole.dtable.get(first * hidden + i));
      }
      c.run(stream);
      const std::vector<double> y = c.y.values();
      for (std::size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
      const auto gradient = reference_embedding_gradient(whole.dtable.values(), whole.ids, whole.dy.values(), hidden);
      expect_close<C>(c.dtable.values(), {gradient.begin() + first * hidden, gradient.begin() + (first + here) * hidden}, "dtable", 4);
      EXPECT_TRUE(c.y.untouched() && c.dtable.untouched());
    }
    expect_close<S>(sum, want, "y");
  });
}

DELTRON_EVERY_TARGET(Embedding);

}  // namespace
}  // namespace deltron
