// One rank on meta: groups of the grid's sizes, calls that move nothing and are counted as a real group counts them.
#include <gtest/gtest.h>

#include "distributed/meta_communicator.h"
#include "distributed/parallel_state.h"
#include "distributed/thread_communicator.h"
#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::small_context;

void some_calls(Context& ctx, Communicator& group) {
  const Tensor all = Tensor::empty(ctx, {4 * group.size()}, DType::BF16, "all"), mine = Tensor::empty(ctx, {4}, DType::BF16, "mine");
  ctx.set_bytes(all.data(), 0, all.bytes());
  ctx.set_bytes(mine.data(), 0, mine.bytes());
  group.all_reduce(ctx, all, "sum");
  group.all_gather(ctx, mine, all, "gather");
  group.reduce_scatter(ctx, all, mine, "scatter");
  group.all_to_all(ctx, all, Tensor::empty(ctx, {4 * group.size()}, DType::BF16, "other"), "exchange");
  group.broadcast(ctx, mine, 0, "tell");
  group.finish(ctx, group.all_reduce_later(ctx, mine, "sum"));
  group.barrier(ctx, "end");
}

TEST(MetaCommunicator, CountsAsAGroupThatMovesData) {
  Context ctx(small_context(1, DeviceKind::Meta));
  const std::shared_ptr<Communicator> meta = make_meta_group(0, 3);
  some_calls(ctx, *meta);
  run_thread_ranks(3, [&](int rank, const std::shared_ptr<Communicator>& world) {
    Context cpu(small_context(1, DeviceKind::Cpu));
    some_calls(cpu, *world);
    if (rank != 0) return;
    ASSERT_EQ(world->totals().size(), meta->totals().size());
    for (std::size_t i = 0; i < world->totals().size(); ++i) {
      const auto& [what, real] = world->totals()[i];
      EXPECT_EQ(meta->totals()[i].first, what);
      EXPECT_EQ(meta->totals()[i].second.calls, real.calls) << what;
      EXPECT_EQ(meta->totals()[i].second.link_bytes, real.link_bytes) << what;
    }
  });
}

TEST(MetaCommunicator, EveryGroupOfAGridHasItsSize) {
  Context ctx(small_context(1, DeviceKind::Meta));
  set_meta_parallel_state(ctx, {2, 3, 4}, true);
  const ParallelState& state = parallel_state(ctx);
  EXPECT_EQ(state.world->size(), 24);
  EXPECT_EQ(state.tensor->size(), 2);
  EXPECT_EQ(state.context->size(), 3);
  EXPECT_EQ(state.data->size(), 4);
  EXPECT_EQ(state.data_context->size(), 12);
  EXPECT_TRUE(state.sequence_parallel);
  set_meta_parallel_state(ctx, {1, 1, 1}, false);
  EXPECT_EQ(parallel_state(ctx).tensor, nullptr);
  some_calls(ctx, *parallel_state(ctx).world);
}

TEST(MetaCommunicator, ServesMetaOnlyAndIsNotSplit) {
  Context cpu(small_context(1, DeviceKind::Cpu)), meta(small_context(1, DeviceKind::Meta));
  EXPECT_THROW(make_meta_group(0, 2)->barrier(cpu, "start"), Error);
  EXPECT_THROW(make_meta_group(0, 2)->split(meta, 0, "half"), Error);
}

}  // namespace
}  // namespace deltron
