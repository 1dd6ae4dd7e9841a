// A context owns everything of its rank: two of them in one process share nothing.
#include "src/tensor/context.h"

#include <thread>

#include "src/tensor/ops.h"
#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::small_context;

struct Counter {
  int value = 0;
};
struct OtherCounter {
  int value = 5;
};

TEST(Context, slots_are_made_once_a_type_and_belong_to_one_context) {
  Context first(small_context()), second(small_context());
  first.slot<Counter>().value = 3;
  first.slot<OtherCounter>().value++;
  EXPECT_EQ(first.slot<Counter>().value, 3);
  EXPECT_EQ(first.slot<OtherCounter>().value, 6);
  EXPECT_EQ(second.slot<Counter>().value, 0);
  EXPECT_EQ(&first.slot<Counter>(), &first.slot<Counter>());
}

TEST(Context, copy_streams_are_two_and_stay_the_same) {
  Context ctx(small_context());
  EXPECT_EQ(&ctx.copy_out_stream(), &ctx.copy_out_stream());
  EXPECT_NE(&ctx.copy_out_stream(), &ctx.copy_in_stream());
}

TEST(Context, copy_streams_that_wait_for_each_other_end_with_the_context) {
  int order = 0;
  {
    Context ctx(small_context());
    ctx.copy_out_stream().enqueue([&] { order = 1; });
    ctx.copy_in_stream().wait(ctx.copy_out_stream().record());
    ctx.copy_in_stream().enqueue([&] { order = order == 1 ? 2 : -1; });
    ctx.copy_out_stream().wait(ctx.copy_in_stream().record());
    ctx.copy_out_stream().enqueue([&] { order = order == 2 ? 3 : -2; });
  }
  EXPECT_EQ(order, 3);
}

TEST(Context, a_plan_has_the_kernels_of_the_planned_device) {
  Context ctx(small_context(3, DeviceKind::Meta));
  EXPECT_TRUE(ctx.is_meta());
  EXPECT_EQ(ctx.kernel_device(), DeviceKind::Cpu);
  EXPECT_EQ(ctx.pool().threads(), 3);
}

TEST(Context, two_contexts_in_two_threads_compute_and_count_apart) {
  std::vector<std::uint64_t> bits[2];
  std::int64_t peaks[2] = {0, 0}, left[2] = {0, 0};
  const auto rank = [&](int which) {
    Context ctx(small_context(2));
    for (int step = 0; step < 20; ++step) {
      ScopeGuard scope(ctx, which, "work");
      const Tensor a = test::random_tensor(ctx, {50, 60}, DType::F32, 1), b = test::random_tensor(ctx, {60, 70}, DType::F32, 2);
      const Tensor c = Tensor::empty(ctx, {50, 70}, DType::F32, "c");
      matmul(ctx, a, b, c);
      bits[which] = test::bits_of(ctx, c);
    }
    peaks[which] = ctx.memory()->stats().peak;
    left[which] = ctx.memory()->stats().current;
  };
  std::thread other(rank, 1);
  rank(0);
  other.join();
  EXPECT_EQ(bits[0], bits[1]);
  EXPECT_EQ(peaks[0], peaks[1]);
  EXPECT_EQ(left[0], 0);
  EXPECT_EQ(left[1], 0);
}

}  // namespace
}  // namespace deltron
