// Ranks as threads: what every collective leaves on every rank, groups split from groups, bf16 sums rounded once, and how a group ends.
#include <gtest/gtest.h>

#include "distributed/parallel_state.h"
#include "distributed/thread_communicator.h"

namespace deltron {
namespace {

ContextOptions one_thread() {
  ContextOptions options;
  options.threads = 1;
  options.pin_threads = false;
  return options;
}

using Body = std::function<void(Context& ctx, Communicator& world)>;
void on_ranks(int size, const Body& body, double timeout_seconds = 60) {
  run_thread_ranks(size, [&](int, const std::shared_ptr<Communicator>& world) {
    Context ctx(one_thread());
    body(ctx, *world);
  }, timeout_seconds);
}

std::vector<double> numbers(std::int64_t count, double start) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(start + static_cast<double>(i));
  return values;
}

TEST(ThreadCommunicator, EveryCollective) {
  on_ranks(3, [](Context& ctx, Communicator& world) {
    const int r = world.rank();
    const Tensor sum = make_tensor(ctx, {2}, DType::F32, {r + 1.0, 10.0 * r}, "x");
    world.all_reduce(ctx, sum, "sum");
    EXPECT_EQ(to_doubles(ctx, sum), (std::vector<double>{6, 30}));
    const Tensor most = make_tensor(ctx, {2}, DType::I64, {1.0 * r, -1.0 * r}, "x");
    world.all_reduce(ctx, most, "max", ReduceOp::Max);
    EXPECT_EQ(to_doubles(ctx, most), (std::vector<double>{2, 0}));
    const Tensor mine = make_tensor(ctx, {2}, DType::F32, numbers(2, 10.0 * r), "x"), all = Tensor::zeros(ctx, {6}, DType::F32, "all");
    world.all_gather(ctx, mine, all, "gather");
    EXPECT_EQ(to_doubles(ctx, all), (std::vector<double>{0, 1, 10, 11, 20, 21}));
    const Tensor parts = make_tensor(ctx, {6}, DType::F32, numbers(6, 100.0 * r), "x"), part = Tensor::zeros(ctx, {2}, DType::F32, "part");
    world.reduce_scatter(ctx, parts, part, "scatter");
    EXPECT_EQ(to_doubles(ctx, part), (std::vector<double>{300.0 + 6 * r, 303.0 + 6 * r}));
    world.all_to_all(ctx, parts, all, "exchange");
    EXPECT_EQ(to_doubles(ctx, all), (std::vector<double>{2.0 * r, 2.0 * r + 1, 100 + 2.0 * r, 101 + 2.0 * r, 200 + 2.0 * r, 201 + 2.0 * r}));
    const Tensor told = make_tensor(ctx, {1}, DType::F32, {5.0 + r}, "x");
    world.broadcast(ctx, told, 1, "tell");
    EXPECT_EQ(to_doubles(ctx, told), (std::vector<double>{6}));
    world.barrier(ctx, "end");
    EXPECT_EQ(world.totals().size(), 7u);
  });
}

TEST(ThreadCommunicator, SendsBetweenTwo) {
  on_ranks(2, [](Context& ctx, Communicator& world) {
    const Tensor x = make_tensor(ctx, {3}, DType::F32, numbers(3, 7.0 * (1 - world.rank())), "x");
    world.rank() == 0 ? world.send(ctx, x, 1, "hand over") : world.receive(ctx, x, 0, "hand over");
    EXPECT_EQ(to_doubles(ctx, x), (std::vector<double>{7, 8, 9}));
  });
}

TEST(ThreadCommunicator, BfloatSumsAreRoundedOnce) {
  on_ranks(4, [](Context& ctx, Communicator& world) {
    // 256 + 0.5 + 0.5 + 1 = 258; rounding after every rank would stay at 256.
    const double mine[] = {256, 0.5, 0.5, 1};
    const Tensor x = make_tensor(ctx, {1}, DType::BF16, {mine[world.rank()]}, "x");
    world.all_reduce(ctx, x, "sum");
    EXPECT_EQ(to_doubles(ctx, x)[0], 258);
  });
}

TEST(ParallelState, GroupsOfTheGrid) {
  run_thread_ranks(8, [](int rank, const std::shared_ptr<Communicator>& world) {
    Context ctx(one_thread());
    set_parallel_state(ctx, world, {2, 2, 2}, true);
    const ParallelState& state = parallel_state(ctx);
    const auto members = [&](Communicator& group) {
      const Tensor mine = make_tensor(ctx, {1}, DType::F32, {1.0 * rank}, "rank"), all = Tensor::zeros(ctx, {group.size()}, DType::F32, "ranks");
      group.all_gather(ctx, mine, all, "members");
      return to_doubles(ctx, all);
    };
    const double base = rank / 2 * 2, slow = rank / 4 * 4;
    EXPECT_EQ(members(*state.tensor), (std::vector<double>{base, base + 1}));
    EXPECT_EQ(members(*state.context), (std::vector<double>{slow + rank % 2, slow + rank % 2 + 2}));
    EXPECT_EQ(members(*state.data), (std::vector<double>{rank % 4 + 0.0, rank % 4 + 4.0}));
    EXPECT_EQ(members(*state.data_context), (std::vector<double>{rank % 2 + 0.0, rank % 2 + 2.0, rank % 2 + 4.0, rank % 2 + 6.0}));
    EXPECT_EQ(state.tensor->rank(), state.tp_rank());
    EXPECT_EQ(state.context->rank(), state.cp_rank());
    EXPECT_EQ(state.data_context->rank(), state.dp_rank() * 2 + state.cp_rank());
  });
}

TEST(ThreadCommunicator, ARankThatThrowsEndsTheOthers) {
  try {
    on_ranks(3, [](Context& ctx, Communicator& world) {
      if (world.rank() == 1) throw Error(ErrorCode::DataOptionInvalid, ErrorText{"rank 1 has no data"});
      world.barrier(ctx, "start");
      FAIL() << "the barrier came back";
    });
    FAIL() << "no error";
  } catch (const Error& fault) {
    EXPECT_TRUE(fault.code() == ErrorCode::DataOptionInvalid || fault.code() == ErrorCode::CommunicationFailed);
  }
}

TEST(ThreadCommunicator, AMissingRankIsNamed) {
  try {
    on_ranks(3, [](Context& ctx, Communicator& world) {
      if (world.rank() != 2) world.barrier(ctx, "epoch end");
    }, 0.2);
    FAIL() << "no error";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ErrorCode::CommunicationFailed);
    EXPECT_NE(std::string(fault.what()).find("'epoch end' waited"), std::string::npos) << fault.what();
    EXPECT_NE(std::string(fault.what()).find("ranks 2"), std::string::npos) << fault.what();
  }
}

TEST(ThreadCommunicator, DifferentCallsAreAFault) {
  EXPECT_THROW(on_ranks(2, [](Context& ctx, Communicator& world) {
    const Tensor x = Tensor::zeros(ctx, {2 + world.rank()}, DType::F32, "x");
    world.all_reduce(ctx, x, "sum");
  }), Error);
}

}  // namespace
}  // namespace deltron
