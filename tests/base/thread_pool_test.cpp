// The pool: every part runs once, exceptions come back, cuts are fixed.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include <sched.h>

#include "src/base/thread_pool.h"

namespace deltron {
namespace {

TEST(ThreadPool, gives_the_callers_cores_back) {
  cpu_set_t before, after;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  { ThreadPool pool(2); }
  ASSERT_EQ(sched_getaffinity(0, sizeof(after), &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(ThreadPool, runs_every_part_once) {
  ThreadPool pool(4, false);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> counts(37);
    pool.run(37, [&](std::int64_t part) { counts[static_cast<std::size_t>(part)]++; });
    for (const auto& count : counts) ASSERT_EQ(count.load(), 1);
  }
}

TEST(ThreadPool, rethrows_the_first_failure_and_stays_usable) {
  ThreadPool pool(3, false);
  EXPECT_THROW(pool.run(10, [](std::int64_t part) { if (part == 7) throw std::runtime_error("seven"); }), std::runtime_error);
  std::atomic<int> sum{0};
  pool.run(10, [&](std::int64_t part) { sum += static_cast<int>(part); });
  EXPECT_EQ(sum.load(), 45);
}

TEST(ThreadPool, nested_calls_run_inline) {
  ThreadPool pool(2, false);
  std::atomic<int> count{0};
  pool.run(4, [&](std::int64_t) { pool.run(5, [&](std::int64_t) { count++; }); });
  EXPECT_EQ(count.load(), 20);
}

TEST(ParallelFor, cut_depends_on_the_grain_alone) {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads, false);
    std::vector<std::int64_t> ends(8, 0);
    parallel_for(pool, 29, 4, [&](std::int64_t begin, std::int64_t end) { ends[static_cast<std::size_t>(begin / 4)] = end; });
    EXPECT_EQ(ends, (std::vector<std::int64_t>{4, 8, 12, 16, 20, 24, 28, 29}));
  }
}

TEST(PartRange, covers_all_items_in_order) {
  std::int64_t next = 0;
  for (int part = 0; part < 7; ++part) {
    const PartRange range = part_range(100, 7, part, 8);
    EXPECT_EQ(range.begin, next);
    next = range.end;
  }
  EXPECT_EQ(next, 100);
}

TEST(ThreadPool, the_cores_of_the_process_stay_visible_while_a_pool_has_pinned_its_caller) {
  const int before = available_cores();
  ThreadPool pool(2, true);
  EXPECT_EQ(available_cores(), before);
}

}  // namespace
}  // namespace deltron
