// Named ranges: nothing while off, nesting, phases, sums of self times, copies on their own lanes.
#include "src/tensor/profile.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::small_context;
using ::testing::HasSubstr;

void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

TEST(Profile, nothing_is_recorded_while_it_is_off) {
  Context ctx(small_context());
  const ScopeGuard before(ctx, 1, "before");
  { const ProfileRange range(ctx, RangeKind::Forward, "forward"); }
  ctx.start_recording();
  const std::unique_ptr<RangeRecorder> recorder = ctx.stop_recording();
  EXPECT_TRUE(recorder->ranges().empty());
  EXPECT_EQ(ctx.ranges(), nullptr);
}

TEST(Profile, ranges_have_layer_region_operation_phase_and_the_range_around_them) {
  Context ctx(small_context());
  ctx.start_recording();
  {
    const ProfileRange step(ctx, RangeKind::Step, "step 7");
    {
      const ProfileRange forward(ctx, RangeKind::Forward, "forward");
      const ScopeGuard scope(ctx, 3, "mlp");
    }
    const ProfileRange backward(ctx, RangeKind::Backward, "backward");
    const ScopeGuard scope(ctx, 3, "mlp", "linear");
    const ProfileRange replay(ctx, RangeKind::Replay, "gdn");
    const ScopeGuard inner(ctx, 2, "gdn_qkv");
  }
  const std::unique_ptr<RangeRecorder> recorder = ctx.stop_recording();
  const std::vector<RecordedRange>& ranges = recorder->ranges();
  ASSERT_EQ(ranges.size(), 7u);
  EXPECT_EQ(ranges[0].name, "step 7");
  EXPECT_EQ(ranges[0].parent, -1);
  EXPECT_EQ(ranges[2].name, "mlp");
  EXPECT_EQ(ranges[2].layer, 3);
  EXPECT_EQ(ranges[2].parent, 1);
  EXPECT_EQ(ranges[2].phase, RangeKind::Forward);
  EXPECT_EQ(ranges[3].parent, 0);
  EXPECT_EQ(ranges[4].operation, "linear");
  EXPECT_EQ(ranges[4].phase, RangeKind::Backward);
  EXPECT_EQ(ranges[5].layer, 3);  // of the scope in which the replay begins
  EXPECT_EQ(ranges[6].phase, RangeKind::Replay);
  EXPECT_EQ(ranges[6].layer, 2);
  for (const RecordedRange& range : ranges) {
    ASSERT_TRUE(range.host.has_value());
    EXPECT_FALSE(range.device.has_value());  // on the CPU they would be the same
    EXPECT_LE(range.host->begin, range.host->end);
    if (range.parent < 0) continue;
    const Span& around = *ranges[static_cast<std::size_t>(range.parent)].host;
    EXPECT_GE(range.host->begin, around.begin);
    EXPECT_LE(range.host->end, around.end);
  }
}

TEST(Profile, self_times_add_up_to_the_outermost_ranges) {
  Context ctx(small_context());
  ctx.start_recording();
  for (int step = 0; step < 2; ++step) {
    const ProfileRange whole(ctx, RangeKind::Step, step == 0 ? "step 1" : "step 2");
    const ProfileRange forward(ctx, RangeKind::Forward, "forward");
    const ScopeGuard scope(ctx, 0, "mlp");
    rest();
  }
  const std::unique_ptr<RangeRecorder> recorder = ctx.stop_recording();
  double outermost = 0, total = 0;
  for (const RecordedRange& range : recorder->ranges()) outermost += range.parent < 0 ? range.host->end - range.host->begin : 0;
  const std::vector<RangeTotal> rows = self_times(recorder->ranges());
  for (const RangeTotal& row : rows) total += row.seconds;
  EXPECT_NEAR(total, outermost, 1e-9);
  ASSERT_EQ(rows.size(), 3u);  // both steps in one row
  EXPECT_EQ(rows[0].name, "mlp");
  EXPECT_EQ(rows[0].phase, "forward");
  EXPECT_EQ(rows[0].count, 2);
  EXPECT_GE(rows[0].seconds, 0.004);
}

TEST(Profile, a_copy_on_another_stream_has_its_own_lane_and_is_in_no_sum) {
  Context ctx(small_context());
  ctx.start_recording();
  {
    const ProfileRange whole(ctx, RangeKind::Step, "step 1");
    Stream& stream = ctx.copy_out_stream();
    const TimeMark before = stream.mark();
    stream.enqueue(rest);
    ctx.ranges()->copied(RangeLane::CopyOut, "qkv", 4, before, stream.mark());
  }
  const std::unique_ptr<RangeRecorder> recorder = ctx.stop_recording();  // waits for the stream
  const RecordedRange& copy = recorder->ranges().back();
  EXPECT_EQ(copy.lane, RangeLane::CopyOut);
  ASSERT_TRUE(copy.device.has_value());
  EXPECT_GE(copy.device->end - copy.device->begin, 0.002);
  const std::vector<RangeTotal> rows = self_times(recorder->ranges());
  EXPECT_TRUE(rows.back().copy);
  EXPECT_EQ(rows.back().phase, "copy to host");
}

TEST(Profile, a_range_that_is_still_open_or_never_began_is_a_fault) {
  Context ctx(small_context());
  ctx.start_recording();
  EXPECT_ANY_THROW(ctx.start_recording());
  EXPECT_ANY_THROW(ctx.ranges()->end());
  ctx.ranges()->begin(RangeKind::Part, "open", 0, "");
  try {
    ctx.stop_recording();
    FAIL() << "stopped in the middle of a range";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("'open'"));
  }
}

}  // namespace
}  // namespace deltron
