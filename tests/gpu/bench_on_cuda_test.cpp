// Measuring on a GPU: small work as a graph, large work between events, recorded ranges with times of the device and without a wait.
#include <gmock/gmock.h>

#include "src/tensor/ops.h"
#include "src/tensor/profile.h"
#include "tests/support/core_test.h"
#include "tools/bench/kernel_report.h"

namespace deltron::tools {
namespace {

using test::small_context;
using ::testing::HasSubstr;

TEST(BenchOnCuda, small_work_runs_as_a_graph_and_large_work_between_events) {
  Context ctx(small_context(1, DeviceKind::Cuda));
  const auto timed = [&](std::int64_t count) {
    const Tensor x = Tensor::zeros(ctx, {count}, DType::F32, "x"), y = Tensor::zeros(ctx, {count}, DType::F32, "y");
    return measure(ctx, {[&] { convert(ctx, x, y); }, [&] { convert(ctx, y, x); }}, 5);
  };
  const Timing small = timed(1024), large = timed(std::int64_t{1} << 29);
  EXPECT_EQ(small.method, "graph");
  EXPECT_EQ(large.method, "events");
  for (const Timing& timing : {small, large}) {
    EXPECT_GT(timing.seconds.fastest, 0);
    EXPECT_EQ(timing.seconds.samples, 5);
  }
}

TEST(BenchOnCuda, every_case_can_be_captured_and_replayed) {
  Context ctx(small_context(1, DeviceKind::Cuda));
  KernelSizes sizes;
  sizes.tokens = 256, sizes.documents = 2, sizes.hidden = 128, sizes.ffn = 256, sizes.vocab = 512;
  sizes.key_heads = 2, sizes.value_heads = 4, sizes.key_dim = sizes.value_dim = 64, sizes.conv_kernel = 4;
  sizes.query_heads = 4, sizes.kv_heads = 2, sizes.head_dim = 64, sizes.rotary_dim = 16;
  for (const DType dtype : {DType::BF16, DType::F32}) {
    for (const KernelCase& one : all_cases(make_setting(ctx, sizes, dtype))) {
      const KernelResult result = run_case(ctx, one, {2, 0});
      EXPECT_GT(result.timing.seconds.fastest, 0) << one.name;
    }
  }
}

TEST(BenchOnCuda, ranges_have_times_of_the_device_and_recording_does_not_wait) {
  Context ctx(small_context(1, DeviceKind::Cuda));
  const Tensor x = Tensor::zeros(ctx, {1 << 20}, DType::F32, "x"), y = Tensor::zeros(ctx, {1 << 20}, DType::F32, "y");
  ctx.start_recording();
  const std::int64_t waits = ctx.host_synchronizations();
  {
    const ProfileRange whole(ctx, RangeKind::Step, "step 1");
    for (int i = 0; i < 3; ++i) {
      const ScopeGuard scope(ctx, i, "mlp");
      convert(ctx, x, y);
    }
  }
  EXPECT_EQ(ctx.host_synchronizations(), waits);
  const std::unique_ptr<RangeRecorder> recorder = ctx.stop_recording();
  ASSERT_EQ(recorder->ranges().size(), 4u);
  const Span& whole = *recorder->ranges().front().device;
  for (const RecordedRange& range : recorder->ranges()) {
    ASSERT_TRUE(range.device.has_value());
    EXPECT_GT(range.device->end, range.device->begin);
    EXPECT_GE(range.device->begin, whole.begin);
    EXPECT_LE(range.device->end, whole.end);
  }
}

}  // namespace
}  // namespace deltron::tools
