// Exchanges of tensor and context parallelism: values by their place, so that any mistaken order shows, and backward as the adjoint.
#include <gtest/gtest.h>

#include "distributed/functions_context_parallel.h"
#include "distributed/functions_tensor_parallel.h"
#include "distributed/local_batch.h"
#include "distributed/thread_communicator.h"
#include "src/autograd/engine.h"
#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::contains;
using test::message_of;
using test::small_context;

void on_grid(const RankGrid& grid, bool sequence_parallel, const std::function<void(Context& ctx, const ParallelState& ranks)>& body) {
  run_thread_ranks(grid.size(), [&](int, const std::shared_ptr<Communicator>& world) {
    Context ctx(small_context());
    set_parallel_state(ctx, world, grid, sequence_parallel);
    body(ctx, parallel_state(ctx));
  });
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The gradient of x for this gradient of f(x).
Tensor gradient_of(Context& ctx, const Tensor& x, const std::function<Tensor(const Tensor&)>& f, const Tensor& dy) {
  const Tensor leaf = make_leaf(x, "x");
  backward(ctx, {f(leaf)}, {dy});
  return leaf_of(leaf)->gradient;
}

Tensor numbered(Context& ctx, const Shape& shape, double start) {
  std::vector<double> values(static_cast<std::size_t>(shape_count(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = start + static_cast<double>(i);
  return make_tensor(ctx, shape, DType::F32, values, "numbered");
}

TEST(TensorParallelFunctions, each_does_what_its_name_says_and_backward_is_the_other) {
  on_grid({.tp = 2}, true, [](Context& ctx, const ParallelState& ranks) {
    const double r = ranks.tp_rank();
    const Tensor full = numbered(ctx, {2, 2}, 10 * r), row = numbered(ctx, {1, 2}, 100 * (1 + r));
    const std::vector<double> sum = {10, 12, 14, 16}, own = {10 * r, 10 * r + 1, 10 * r + 2, 10 * r + 3};
    const auto copy = [&](const Tensor& x) { return copy_to_tensor_parallel(ctx, x, "copy"); };
    const auto reduce = [&](const Tensor& x) { return reduce_from_tensor_parallel(ctx, x, "reduce"); };
    const auto gather = [&](const Tensor& x) { return gather_tokens(ctx, x, "gather"); };
    const auto scatter = [&](const Tensor& x) { return scatter_tokens(ctx, x, "scatter"); };
    EXPECT_EQ(to_doubles(ctx, copy(full)), own);
    EXPECT_EQ(to_doubles(ctx, gradient_of(ctx, full, copy, full)), sum);
    EXPECT_EQ(to_doubles(ctx, reduce(full)), sum);
    EXPECT_EQ(to_doubles(ctx, gradient_of(ctx, full, reduce, full)), own);
    EXPECT_EQ(to_doubles(ctx, gather(row)), (std::vector<double>{100, 101, 200, 201}));
    const std::vector<double> mine(sum.begin() + 2 * ranks.tp_rank(), sum.begin() + 2 * ranks.tp_rank() + 2);
    EXPECT_EQ(to_doubles(ctx, gradient_of(ctx, row, gather, full)), mine);
    EXPECT_EQ(to_doubles(ctx, scatter(full)), mine);
    EXPECT_EQ(to_doubles(ctx, gradient_of(ctx, full, scatter, row)), (std::vector<double>{100, 101, 200, 201}));
    EXPECT_EQ(to_doubles(ctx, full), own) << "an input is never written";
    EXPECT_EQ(to_doubles(ctx, sum_into_residual(ctx, full, "residual")).size(), 2u) << "sequence parallelism scatters";
  });
}

TEST(TensorParallelFunctions, a_vocabulary_is_shared_whole_and_evenly) {
  std::int64_t next = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const VocabularyShare share = vocabulary_share(50257, 4, rank);
    EXPECT_EQ(share.first, next);
    EXPECT_LE(share.count, 12565);
    EXPECT_GE(share.count, 12564);
    next += share.count;
  }
  EXPECT_EQ(next, 50257);
}

// Entry (token, column) of the whole: 100 * token + column. Two documents, three ranks, two sections.
TEST(ContextParallelFunctions, a_rank_gets_its_heads_of_all_tokens_in_their_order) {
  const std::vector<std::int64_t> offsets = {0, 12, 18};
  on_grid({.cp = 3}, false, [&](Context& ctx, const ParallelState& ranks) {
    const LayoutPtr layout = local_layout(ctx, offsets);
    EXPECT_EQ(layout->tokens(), 6);
    EXPECT_EQ(whole_layout(layout)->tokens(), 18);
    const int r = ranks.cp_rank();
    const std::vector<std::int64_t> mine = tokens_of_rank(offsets, 3, r);
    std::vector<double> values, expected, row_values;
    for (const std::int64_t token : mine) {
      for (int column = 0; column < 15; ++column) values.push_back(static_cast<double>(100 * token + column));
    }
    // Section 0: 3 heads of 3 columns; section 1: 6 heads of 1.
    for (std::int64_t token = 0; token < 18; ++token) {
      for (const int column : {3 * r, 3 * r + 1, 3 * r + 2, 9 + 2 * r, 9 + 2 * r + 1}) expected.push_back(static_cast<double>(100 * token + column));
    }
    const Tensor x = make_tensor(ctx, {6, 15}, DType::F32, values, "x");
    const Tensor heads = rows_to_heads(ctx, x, {{9, 3}, {6, 6}}, layout, "to heads");
    EXPECT_EQ(to_doubles(ctx, heads), expected);
    // One section on the way back: columns are those of rank 0, then of rank 1, then of rank 2.
    for (const std::int64_t token : mine) {
      for (int rank = 0; rank < 3; ++rank) {
        for (const int column : {3 * rank, 3 * rank + 1, 3 * rank + 2, 9 + 2 * rank, 9 + 2 * rank + 1}) {
          row_values.push_back(static_cast<double>(100 * token + column));
        }
      }
    }
    EXPECT_EQ(to_doubles(ctx, heads_to_rows(ctx, heads, layout, "to rows")), row_values);
  });
}

TEST(ContextParallelFunctions, backward_is_the_adjoint_also_of_heads_that_ranks_share) {
  const std::vector<std::int64_t> offsets = {0, 16, 16, 24};
  double products[2][2] = {};
  std::mutex mutex;
  on_grid({.cp = 4}, false, [&](Context& ctx, const ParallelState& ranks) {
    const LayoutPtr layout = local_layout(ctx, offsets);
    const auto seed = static_cast<std::uint64_t>(ranks.cp_rank());
    // Four heads of 2 columns, then two heads of 3 columns that two ranks each get.
    const auto forth = [&](const Tensor& x) { return rows_to_heads(ctx, x, {{8, 4}, {6, 2}}, layout, "forth"); };
    const auto back = [&](const Tensor& x) { return heads_to_rows(ctx, x, layout, "back"); };
    const Tensor x = test::random_tensor(ctx, {6, 14}, DType::F64, 1 + seed), dy = test::random_tensor(ctx, {24, 5}, DType::F64, 11 + seed);
    const Tensor h = test::random_tensor(ctx, {24, 5}, DType::F64, 21 + seed), dr = test::random_tensor(ctx, {6, 20}, DType::F64, 31 + seed);
    const double values[2][2] = {
        {dot(to_doubles(ctx, forth(x)), to_doubles(ctx, dy)), dot(to_doubles(ctx, x), to_doubles(ctx, gradient_of(ctx, x, forth, dy)))},
        {dot(to_doubles(ctx, back(h)), to_doubles(ctx, dr)), dot(to_doubles(ctx, h), to_doubles(ctx, gradient_of(ctx, h, back, dr)))}};
    const std::lock_guard<std::mutex> lock(mutex);
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) products[i][j] += values[i][j];
    }
  });
  EXPECT_NEAR(products[0][0], products[0][1], 1e-12 * std::fabs(products[0][0]));
  EXPECT_NEAR(products[1][0], products[1][1], 1e-12 * std::fabs(products[1][0]));
}

TEST(ContextParallelFunctions, a_parameter_is_cut_section_by_section_and_its_gradient_is_zero_elsewhere) {
  on_grid({.cp = 2}, false, [](Context& ctx, const ParallelState& ranks) {
    const Tensor main = Tensor::zeros(ctx, {6, 2}, DType::F32, "main");
    const Tensor parameter = make_leaf(make_tensor(ctx, {6, 2}, DType::BF16, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, "parameter"), "parameter", main);
    const Tensor mine = heads_of_parameter(ctx, parameter, {4, 2}, "mine");
    const bool first = ranks.cp_rank() == 0;
    EXPECT_EQ(mine.dtype(), DType::F32);
    EXPECT_EQ(to_doubles(ctx, mine), first ? (std::vector<double>{0, 1, 2, 3, 8, 9}) : (std::vector<double>{4, 5, 6, 7, 10, 11}));
    // A value that bf16 does not have arrives whole.
    backward(ctx, {mine}, {make_tensor(ctx, {3, 2}, DType::F32, {1.00390625, 2, 3, 4, 5, 6}, "dy")});
    EXPECT_EQ(to_doubles(ctx, main), first ? (std::vector<double>{1.00390625, 2, 3, 4, 0, 0, 0, 0, 5, 6, 0, 0})
                                           : (std::vector<double>{0, 0, 0, 0, 1.00390625, 2, 3, 4, 0, 0, 5, 6}));
  });
}

TEST(LocalBatch, rows_and_random_addresses_follow_the_cut) {
  on_grid({.tp = 2, .cp = 2}, true, [](Context& ctx, const ParallelState& ranks) {
    const std::vector<std::int64_t> offsets = {0, 8, 12};
    const LayoutPtr layout = local_layout(ctx, offsets, {}, {7, 7, 7, 7, 7, 7, 7, 7, 9, 9, 9, 9});
    EXPECT_EQ(layout->cu_seqlens(), (std::vector<std::int64_t>{0, 4, 6}));
    const std::vector<std::int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    const std::vector<std::int32_t> rows_of[] = {{0, 1, 6, 7, 8, 11}, {2, 3, 4, 5, 9, 10}};
    const std::vector<std::int32_t>& rows = rows_of[ranks.cp_rank()];
    EXPECT_EQ(local_tokens(ctx, offsets, all), rows);
    const kernels::TokenRng rng = layout->token_rng({}, 0.5);
    for (std::size_t i = 0; i < 3; ++i) {  // of this rank's half of the rows
      const std::int32_t token = rows[3 * static_cast<std::size_t>(ranks.tp_rank()) + i];
      EXPECT_EQ(rng.token_sample[i], token < 8 ? 7 : 9);
      EXPECT_EQ(rng.token_offset[i], token < 8 ? token : token - 8);
    }
  });
}

TEST(LocalBatch, documents_that_cannot_be_cut_are_refused) {
  on_grid({.tp = 2, .cp = 2}, true, [](Context& ctx, const ParallelState&) {
    EXPECT_TRUE(contains(message_of([&] { local_layout(ctx, {0, 8, 45}); }, ErrorCode::InvalidOffsets), {"document 1", "37 tokens", "40 tokens"}));
    EXPECT_TRUE(contains(message_of([&] { local_layout(ctx, {0, 8, 7}); }, ErrorCode::InvalidOffsets), {"decreases"}));
  });
  on_grid({.tp = 2}, true, [](Context& ctx, const ParallelState&) {
    EXPECT_TRUE(contains(message_of([&] { local_layout(ctx, {0, 3}); }, ErrorCode::InvalidOffsets), {"3 rows", "2 ranks"}));
  });
}

}  // namespace
}  // namespace deltron
