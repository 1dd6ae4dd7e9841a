// Streams run their work in order, events order work between them, and failures surface where one waits.
#include "src/tensor/stream.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/core_test.h"

namespace deltron {
namespace {

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

TEST(Stream, runs_work_in_order_on_another_thread) {
  Stream stream("s");
  std::vector<int> order;
  std::thread::id worker;
  for (int i = 0; i < 100; ++i) {
    stream.enqueue([&, i] {
      if (i == 0) pause();
      worker = std::this_thread::get_id();
      order.push_back(i);
    });
  }
  stream.synchronize();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(Stream, an_event_completes_after_what_was_enqueued_before_it) {
  Stream stream("s");
  Event gate;
  std::atomic<bool> ran{false};
  stream.wait(gate);
  stream.enqueue([&] { ran = true; });
  const Event event = stream.record();
  pause();
  EXPECT_FALSE(event.complete());
  EXPECT_FALSE(ran);
  gate.signal();
  event.wait();
  EXPECT_TRUE(ran);
  EXPECT_TRUE(event.complete());
  const Event copy = event;
  EXPECT_TRUE(copy.complete()) << "copies are the same point";
}

TEST(Stream, waits_across_streams_order_their_work) {
  Stream out("copy out"), in("copy in");
  for (int round = 0; round < 50; ++round) {
    int value = 0;
    out.enqueue([&] {
      if (round % 10 == 0) pause();
      value = 1;
    });
    in.wait(out.record());
    in.enqueue([&] { value = value == 1 ? 2 : -1; });
    out.wait(in.record());
    out.enqueue([&] { value = value == 2 ? 3 : -2; });
    out.synchronize();
    ASSERT_EQ(value, 3);
  }
}

TEST(Stream, waiting_for_a_past_event_does_not_block) {
  Stream a("a"), b("b");
  const Event past = a.record();
  a.synchronize();
  bool ran = false;
  b.wait(past);
  b.enqueue([&] { ran = true; });
  b.synchronize();
  EXPECT_TRUE(ran);
}

TEST(Stream, the_first_failure_is_thrown_at_synchronize_once_and_later_work_still_runs) {
  Stream stream("s");
  int ran = 0;
  stream.enqueue([] { throw std::runtime_error("first"); });
  stream.enqueue([&] { ++ran; });
  stream.enqueue([] { throw std::runtime_error("second"); });
  const Event event = stream.record();
  event.wait();
  try {
    stream.synchronize();
    FAIL() << "no failure";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(ran, 1);
  stream.synchronize();
  stream.enqueue([&] { ++ran; });
  stream.synchronize();
  EXPECT_EQ(ran, 2);
}

TEST(Stream, the_destructor_finishes_the_work) {
  std::vector<int> order;
  {
    Stream stream("s");
    for (int i = 0; i < 20; ++i) {
      stream.enqueue([&, i] {
        if (i == 0) pause();
        order.push_back(i);
      });
    }
  }
  EXPECT_EQ(order.size(), 20u);
}

TEST(Stream, what_work_holds_is_released_before_synchronize_returns) {
  Stream stream("s");
  auto held = std::make_shared<int>(1);
  stream.enqueue([held] { pause(); });
  stream.synchronize();
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace deltron
