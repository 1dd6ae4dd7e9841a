// The same checks over every back end that needs no GPU: what collectives leave on every rank in every type, groups split from groups, calls
// beside compute, and how a group ends. Sums over Gloo have the bits of sums over threads.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "distributed/gloo_communicator.h"
#include "distributed/memory_store.h"
#include "distributed/parallel_state.h"
#include "distributed/thread_communicator.h"
#include "src/tensor/ops.h"
#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::bits_of;
using test::random_values;
using test::small_context;

using Group = std::shared_ptr<Communicator>;
using Body = std::function<void(Context& ctx, Group world)>;

// `body` on a thread a rank, each with its context; a rank that throws ends the group. Rethrows the first fault.
void on_gloo_ranks(int size, const Body& body, double timeout_seconds) {
  const auto store = std::make_shared<MemoryStore>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Group world;
      try {
        Context ctx(small_context(1, DeviceKind::Cpu));
        GlooOptions options;
        options.timeout_seconds = timeout_seconds;
        world = make_gloo_group(store, rank, size, options);
        body(ctx, world);
      } catch (const std::exception& fault) {
        {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!first) first = std::current_exception();
        }
        if (world) world->abort("rank " + std::to_string(rank) + ": " + fault.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

void on_ranks(const std::string& backend, int size, const Body& body, double timeout_seconds = 60) {
  if (backend == "gloo") return on_gloo_ranks(size, body, timeout_seconds);
  run_thread_ranks(size, [&](int, const Group& world) {
    Context ctx(small_context(1, DeviceKind::Cpu));
    body(ctx, world);
  }, timeout_seconds);
}

std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ErrorCode::CommunicationFailed);
    return fault.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Backends : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cpu, Backends, ::testing::Values("threads", "gloo"), [](const auto& tested) { return tested.param; });

// Values of rank r that every type holds, and whose sums it holds as well.
double value(int rank, std::int64_t i) { return static_cast<double>((i * 3 + rank * 5) % 17 - 4); }

void every_collective(Context& ctx, Communicator& world, DType dtype, std::int64_t count) {
  const int n = world.size(), r = world.rank();
  const auto values = [&](std::int64_t length, const std::function<double(std::int64_t)>& at) {
    std::vector<double> all;
    for (std::int64_t i = 0; i < length; ++i) all.push_back(at(i));
    return all;
  };
  const auto sum = [&](std::int64_t i) {
    double total = 0;
    for (int rank = 0; rank < n; ++rank) total += value(rank, i);
    return total;
  };
  const auto of_rank = [&](std::int64_t length) { return make_tensor(ctx, {length}, dtype, values(length, [&](std::int64_t i) { return value(r, i); }), "x"); };

  const Tensor x = of_rank(count), all = of_rank(count * n), other = Tensor::zeros(ctx, {count * n}, dtype, "other"), part = Tensor::zeros(ctx, {count}, dtype, "part");
  world.all_reduce(ctx, x, "sum");
  EXPECT_EQ(to_doubles(ctx, x), values(count, sum));
  const Tensor most = of_rank(count);
  world.all_reduce(ctx, most, "most", ReduceOp::Max);
  EXPECT_EQ(to_doubles(ctx, most), values(count, [&](std::int64_t i) {
    double highest = value(0, i);
    for (int rank = 1; rank < n; ++rank) highest = std::max(highest, value(rank, i));
    return highest;
  }));
  world.reduce_scatter(ctx, all, part, "scatter");
  EXPECT_EQ(to_doubles(ctx, part), values(count, [&](std::int64_t i) { return sum(r * count + i); }));
  world.all_gather(ctx, of_rank(count), other, "gather");
  EXPECT_EQ(to_doubles(ctx, other), values(count * n, [&](std::int64_t i) { return value(static_cast<int>(i / count), i % count); }));
  world.all_to_all(ctx, all, other, "exchange");
  EXPECT_EQ(to_doubles(ctx, other), values(count * n, [&](std::int64_t i) { return value(static_cast<int>(i / count), r * count + i % count); }));
  const Tensor told = of_rank(count);
  world.broadcast(ctx, told, n - 1, "tell");
  EXPECT_EQ(to_doubles(ctx, told), values(count, [&](std::int64_t i) { return value(n - 1, i); }));
  world.barrier(ctx, "end");
}

TEST_P(Backends, EveryCollectiveInEveryType) {
  for (int size : {2, 3, 4, 8}) {
    on_ranks(GetParam(), size, [&](Context& ctx, const Group& world) {
      for (DType dtype : {DType::F32, DType::F64, DType::BF16, DType::F16, DType::I32, DType::I64}) {
        for (std::int64_t count : {1, 7, 5003}) every_collective(ctx, *world, dtype, count);
      }
    });
  }
}

TEST_P(Backends, SendsBetweenTwoInBothDirections) {
  on_ranks(GetParam(), 2, [](Context& ctx, const Group& world) {
    const Tensor x = make_tensor(ctx, {3}, DType::F32, {1, 2, 3}, "x"), y = Tensor::zeros(ctx, {3}, DType::F32, "y");
    world->rank() == 0 ? world->send(ctx, x, 1, "there") : world->receive(ctx, y, 0, "there");
    world->rank() == 0 ? world->receive(ctx, y, 1, "back") : world->send(ctx, y, 0, "back");
    EXPECT_EQ(to_doubles(ctx, y), (std::vector<double>{1, 2, 3}));
  });
}

TEST(GlooCommunicator, SendsBetweenTwoLeaveTheOthersAlone) {
  on_gloo_ranks(3, [](Context& ctx, const Group& world) {
    for (int round = 0; round < 3; ++round) {
      const Tensor x = make_tensor(ctx, {1}, DType::F32, {world->rank() + 10.0 * round}, "x");
      if (world->rank() == 0) world->send(ctx, x, 2, "pass");
      if (world->rank() == 2) world->receive(ctx, x, 0, "pass");
      world->all_reduce(ctx, x, "sum");
      EXPECT_EQ(to_doubles(ctx, x)[0], 1 + 30.0 * round);
    }
  }, 30);
}

TEST(GlooCommunicator, SumsHaveTheBitsOfThreads) {
  for (int size : {2, 3, 8}) {
    for (DType dtype : {DType::BF16, DType::F32}) {
      for (std::int64_t count : {std::int64_t{37}, std::int64_t{10007}}) {
        std::vector<std::vector<std::uint64_t>> bits[2];
        for (int backend : {0, 1}) {
          bits[backend].resize(static_cast<std::size_t>(2 * size));
          on_ranks(backend == 0 ? "threads" : "gloo", size, [&](Context& ctx, const Group& world) {
            const auto r = static_cast<std::size_t>(world->rank());
            const Tensor all = make_tensor(ctx, {count * size}, dtype, random_values(count * size, 1 + r, 1 + 10.0 * static_cast<double>(r)), "all");
            const Tensor part = Tensor::zeros(ctx, {count}, dtype, "part");
            world->reduce_scatter(ctx, all, part, "scatter");
            world->all_reduce(ctx, all, "sum");
            bits[backend][2 * r] = bits_of(ctx, part);
            bits[backend][2 * r + 1] = bits_of(ctx, all);
          });
        }
        EXPECT_EQ(bits[0], bits[1]) << size << " ranks, " << dtype_name(dtype) << ", " << count;
        for (std::size_t r = 1; r < static_cast<std::size_t>(size); ++r) EXPECT_EQ(bits[1][2 * r + 1], bits[1][1]);
      }
    }
  }
}

TEST_P(Backends, GroupsOfTheGrid) {
  on_ranks(GetParam(), 8, [](Context& ctx, const Group& world) {
    const int rank = world->rank();
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
    EXPECT_EQ(state.data_context->label(), "dp-cp");
  });
}

TEST_P(Backends, AGroupOfOneCopies) {
  on_ranks(GetParam(), 2, [](Context& ctx, const Group& world) {
    const Group alone = world->split(ctx, world->rank(), "alone");
    ASSERT_EQ(alone->size(), 1);
    const Tensor x = make_tensor(ctx, {2}, DType::F32, {1, 2}, "x"), y = Tensor::zeros(ctx, {2}, DType::F32, "y");
    alone->all_gather(ctx, x, y, "copy");
    alone->all_reduce(ctx, y, "sum");
    EXPECT_EQ(to_doubles(ctx, y), (std::vector<double>{1, 2}));
  });
}

// Calls beside compute end in their order, among themselves and with the ordered ones, whatever compute does meanwhile.
TEST_P(Backends, CallsBesideComputeKeepTheirOrder) {
  on_ranks(GetParam(), 4, [](Context& ctx, const Group& world) {
    const std::int64_t count = 100003;
    std::vector<Tensor> sums, parts;
    std::vector<Event> events;
    const Tensor own = test::random_tensor(ctx, {64, 64}, DType::F32, 3);
    const Tensor before = Tensor::zeros(ctx, {64, 64}, DType::F32, "computed");
    for (int i = 0; i < 5; ++i) {
      sums.push_back(make_tensor(ctx, {count}, DType::F32, std::vector<double>(count, world->rank() + i), "gradients"));
      parts.push_back(Tensor::zeros(ctx, {count / 4 + 1}, DType::F32, "part"));
      events.push_back(world->all_reduce_later(ctx, sums.back(), "gradients"));
      add(ctx, own, before, before);
    }
    const Tensor all = make_tensor(ctx, {(count / 4 + 1) * 4}, DType::F32, std::vector<double>((count / 4 + 1) * 4, 1.0), "all");
    events.push_back(world->reduce_scatter_later(ctx, all, parts[0], "scatter"));
    const Tensor now = make_tensor(ctx, {1}, DType::F32, {1}, "x");
    world->all_reduce(ctx, now, "now");
    for (const Event& event : events) EXPECT_TRUE(event.complete());  // they were given first
    for (const Event& event : events) world->finish(ctx, event);
    EXPECT_EQ(to_doubles(ctx, now)[0], 4);
    for (int i = 0; i < 5; ++i) {
      for (double sum : to_doubles(ctx, sums[static_cast<std::size_t>(i)])) ASSERT_EQ(sum, 6 + 4 * i);
    }
    for (double sum : to_doubles(ctx, parts[0])) ASSERT_EQ(sum, 4);
    for (int i = 0; i < 3; ++i) ASSERT_NEAR(to_doubles(ctx, before)[static_cast<std::size_t>(i)], 5 * to_doubles(ctx, own)[static_cast<std::size_t>(i)], 1e-5);
  });
}

TEST(GlooCommunicator, TheOthersLearnOfARankThatEnds) {
  std::vector<std::string> messages(4);
  const double seconds = seconds_of([&] {
    on_gloo_ranks(4, [&](Context& ctx, Group world) {
      const Tensor x = make_tensor(ctx, {20000}, DType::F32, std::vector<double>(20000, 1.0), "x");
      world->all_reduce(ctx, x, "first");
      if (world->rank() == 2) return;  // its communicator ends with it
      const int rank = world->rank();
      messages[static_cast<std::size_t>(rank)] = message_of([&] {
        for (int i = 0; i < 100; ++i) world->all_reduce(ctx, x, "gradients");
      });
      message_of([&] { world->barrier(ctx, "afterwards"); });
    }, 60);
  });
  EXPECT_LT(seconds, 10);
  for (int rank : {0, 1, 3}) {
    const std::string& message = messages[static_cast<std::size_t>(rank)];
    EXPECT_NE(message.find("all-reduce 'gradients'"), std::string::npos) << message;
    EXPECT_NE(message.find("group world, rank " + std::to_string(rank) + " of 4"), std::string::npos) << message;
    EXPECT_NE(message.find("lost rank"), std::string::npos) << message;
  }
}

TEST(GlooCommunicator, ACallBesideComputeTellsOfALostRankWhereItIsFinished) {
  on_gloo_ranks(2, [](Context& ctx, Group world) {
    if (world->rank() == 1) return;
    const Tensor x = Tensor::zeros(ctx, {100}, DType::F32, "x");
    const std::string message = message_of([&] { world->finish(ctx, world->all_reduce_later(ctx, x, "gradients")); });
    EXPECT_NE(message.find("lost rank 1"), std::string::npos) << message;
    message_of([&] { world->check(); });
  }, 60);
}

TEST(GlooCommunicator, ADeadlineNamesTheCallTheGroupAndWhoIsMissing) {
  std::string messages[2];
  std::mutex mutex;
  std::condition_variable changed;
  int told = 0;
  const double seconds = seconds_of([&] {
    on_gloo_ranks(3, [&](Context& ctx, const Group& world) {
      const Group group = world->split(ctx, 0, "dp");
      if (world->rank() == 2) {  // is there, but does not come
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return told == 2; });
        return;
      }
      messages[world->rank()] = message_of([&] { group->barrier(ctx, "epoch end"); });
      const std::lock_guard<std::mutex> lock(mutex);
      ++told;
      changed.notify_all();
    }, 0.5);
  });
  EXPECT_LT(seconds, 10);
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("barrier 'epoch end'"), std::string::npos) << message;
    EXPECT_NE(message.find("group dp"), std::string::npos) << message;
    EXPECT_NE(message.find("waited 0.5 s for rank 2"), std::string::npos) << message;
  }
}

TEST(GlooCommunicator, ARankThatNeverStartsIsNamed) {
  GlooOptions options;
  options.timeout_seconds = 0.3;
  const std::string message = message_of([&] { make_gloo_group(std::make_shared<MemoryStore>(), 0, 2, options); });
  EXPECT_NE(message.find("rank 1 did not come within 0.3 s"), std::string::npos) << message;
  options.address = "no.such.machine.invalid";
  message_of([&] { make_gloo_group(std::make_shared<MemoryStore>(), 0, 2, options); });
}

TEST(GlooCommunicator, DifferentCallsEndInADeadlineThatNamesBoth) {
  std::string messages[2];
  on_gloo_ranks(2, [&](Context& ctx, const Group& world) {
    const Tensor x = Tensor::zeros(ctx, {2 + world->rank()}, DType::F32, "x");
    messages[world->rank()] = message_of([&] { world->all_reduce(ctx, x, world->rank() == 0 ? "loss" : "norm"); });
  }, 0.5);
  const std::string both = messages[0] + messages[1];
  EXPECT_NE(both.find("'loss' of 2 fp32"), std::string::npos) << both;
  EXPECT_NE(both.find("'norm' of 3 fp32"), std::string::npos) << both;
}

TEST_P(Backends, AbortEndsCallsUnderWayOnAllRanks) {
  std::vector<std::string> messages(3);
  const double seconds = seconds_of([&] {
    on_ranks(GetParam(), 3, [&](Context& ctx, const Group& world) {
      if (world->rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        world->abort("the watchdog saw no step");
      }
      messages[static_cast<std::size_t>(world->rank())] = message_of([&] { world->barrier(ctx, "start"); });
    });
  });
  EXPECT_LT(seconds, 10);
  for (const std::string& message : messages) EXPECT_NE(message.find("the watchdog saw no step"), std::string::npos) << message;
}

TEST_P(Backends, AbortFromAnotherThreadFreesTheRankThatWaits) {
  on_ranks(GetParam(), 2, [&](Context& ctx, const Group& world) {
    if (world->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      return;
    }
    std::thread watchdog([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      world->abort("too long");
    });
    const Tensor x = Tensor::zeros(ctx, {1 << 20}, DType::F32, "x");
    const std::string message = message_of([&] { world->all_reduce(ctx, x, "gradients"); });
    watchdog.join();
    EXPECT_NE(message.find("too long"), std::string::npos) << message;
  });
}

// Cut at some point of large messages: whoever waits is freed, although Gloo itself would leave some of them waiting.
TEST(GlooCommunicator, AConnectionThatBreaksWithinAMessageEndsTheWait) {
  for (int delay_ms : {1, 5, 20}) {
    const double seconds = seconds_of([&] {
      on_gloo_ranks(2, [&](Context& ctx, Group world) {
        const Tensor x = Tensor::zeros(ctx, {8 << 20}, DType::F32, "x"), y = Tensor::zeros(ctx, {8 << 20}, DType::F32, "y");
        world->barrier(ctx, "start");
        std::thread killer;
        if (world->rank() == 1) {
          killer = std::thread([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
            world->abort("killed");
          });
        }
        message_of([&] {
          for (;;) world->all_to_all(ctx, x, y, "much");
        });
        if (killer.joinable()) killer.join();
      }, 60);
    });
    EXPECT_LT(seconds, 20) << delay_ms;
  }
}

}  // namespace
}  // namespace deltron
