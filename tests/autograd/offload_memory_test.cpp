// What offload does to memory: device bytes fall by what moved, peaks repeat exactly, nothing is left behind, the plan on meta agrees.
#include <map>

#include "tests/autograd/offload_model.h"

namespace deltron {
namespace {

using test::OffloadModel;
using test::OffloadRun;
using test::offload_options;

constexpr std::int64_t kQkvBytes = OffloadModel::T * OffloadModel::qkv_width * 4;

std::int64_t counted(std::int64_t bytes) { return Allocator::rounded(bytes); }

// Device bytes at the end of the forward pass of one micro-batch.
std::int64_t bytes_behind_forward(const OffloadOptions& options, const std::function<void(OffloadRun&)>& warm_up) {
  OffloadRun run(options);
  if (warm_up) warm_up(run);
  run.manager().begin_micro_batch(run.ctx);
  const Tensor loss = run.model.loss(run.ctx, run.model.leaves(), 0);
  run.manager().end_forward(run.ctx);
  const std::int64_t bytes = run.ctx.memory()->stats().current;
  test::backward_of(run.ctx, loss);
  run.manager().reset(run.ctx);
  return bytes;
}

TEST(OffloadMemory, device_bytes_fall_by_what_the_groups_hold) {
  const std::int64_t plain = bytes_behind_forward(offload_options({}), nullptr);
  EXPECT_EQ(plain - bytes_behind_forward(offload_options({"gdn_qkv"}), nullptr), 3 * counted(kQkvBytes)) << "the warm-up moves everything";
  const auto warmed = [](OffloadRun& run) { run.iteration(); };
  EXPECT_EQ(plain - bytes_behind_forward(offload_options({"gdn_qkv"}), warmed), 2 * counted(kQkvBytes));
  EXPECT_EQ(plain - bytes_behind_forward(offload_options({"gdn_qkv"}, 0.5), warmed), counted(kQkvBytes));
  EXPECT_EQ(plain - bytes_behind_forward(offload_options({"gdn_qkv"}, 0.0), warmed), 0);
}

TEST(OffloadMemory, what_only_saved_tensors_hold_moves_unnamed) {
  OffloadRun run(offload_options({"gdn_core_attn"}));
  run.iteration();
  ASSERT_EQ(run.manager().table().size(), 6u);
  // q, k, v (one storage, saved three times) and the rule's inverse [T,Hv,..]; the gates' storage stays, as the norm reads z from it.
  const OffloadRow& row = run.manager().table()[0];
  EXPECT_EQ(row.storages, 2);
  EXPECT_GT(row.bytes, kQkvBytes);
  EXPECT_GE(row.duplicates, 2);
}

TEST(OffloadMemory, saved_bytes_on_the_device_fall_with_the_storage) {
  OffloadRun with(offload_options({"gdn_qkv"})), without(offload_options({}));
  std::vector<std::int64_t> saved;
  for (OffloadRun* run : {&without, &with}) {
    run->manager().begin_micro_batch(run->ctx);
    const Tensor loss = run->model.loss(run->ctx, run->model.leaves(), 0);
    run->manager().end_forward(run->ctx);
    saved.push_back(run->ctx.memory()->stats().saved);
    test::backward_of(run->ctx, loss);
    EXPECT_EQ(run->ctx.memory()->stats().saved, 0);
  }
  EXPECT_EQ(saved[0] - saved[1], 3 * kQkvBytes);
}

TEST(OffloadMemory, thresholds_keep_small_storages) {
  for (const auto& [threshold, groups] : {std::pair<std::int64_t, int>{1120, 6}, {1121, 0}, {1000000000, 0}}) {
    OffloadOptions options = offload_options({"gdn_qkv"});
    options.min_offloaded_tensor_size = threshold;
    OffloadRun run(options);
    EXPECT_EQ(run.iteration(), test::plain_bits());
    EXPECT_EQ(run.manager().last_iteration().groups_moved, groups) << threshold;
    EXPECT_EQ(run.manager().last_iteration().bytes_out, groups * kQkvBytes);
    EXPECT_EQ(offload_totals(run.manager().table()).found, groups * kQkvBytes);
    EXPECT_EQ(run.manager().table().size(), 6u) << "the module ran";
    EXPECT_EQ(run.ctx.host_memory()->stats().peak, groups == 0 ? 0 : counted(kQkvBytes) * run.manager().pool().buffers);
  }
}

struct Footprint {
  std::int64_t device_peak, host_peak, device_rest, host_rest, allocations;
  bool operator==(const Footprint& o) const {
    return device_peak == o.device_peak && host_peak == o.host_peak && device_rest == o.device_rest && host_rest == o.host_rest &&
           allocations == o.allocations;
  }
};

std::vector<Footprint> footprints(double delay, double fraction, int iterations) {
  OffloadOptions options = offload_options({"gdn_qkv", "gdn_core_attn"}, fraction);
  options.faults.copy_delay_seconds = delay;
  OffloadRun run(options);
  std::vector<Footprint> result;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    run.ctx.memory()->reset_peak();
    run.iteration();
    const MemoryStats device = run.ctx.memory()->stats(), host = run.ctx.host_memory()->stats();
    result.push_back({device.peak, host.peak, device.current, host.current, device.allocations + host.allocations});
  }
  return result;
}

TEST(OffloadMemory, peaks_do_not_depend_on_how_fast_copies_are) {
  for (double fraction : {0.5, 1.0}) {
    const std::vector<Footprint> first = footprints(0, fraction, 4);
    EXPECT_TRUE(footprints(0, fraction, 4) == first);
    EXPECT_TRUE(footprints(0.003, fraction, 4) == first);
  }
}

TEST(OffloadMemory, bytes_after_iteration_3_equal_those_after_iteration_30) {
  const std::vector<Footprint> prints = footprints(0, 1.0, 30);
  EXPECT_EQ(prints[2].device_rest, prints[29].device_rest);
  EXPECT_EQ(prints[2].host_rest, prints[29].host_rest);
  EXPECT_EQ(prints[2].device_peak, prints[29].device_peak);
}

TEST(OffloadMemory, peaks_fall_with_the_fraction_and_never_rise) {
  std::vector<std::int64_t> peaks;
  {
    OffloadRun run(offload_options({}), DType::F32, 8);
    run.iteration();
    run.ctx.memory()->reset_peak();
    run.iteration();
    peaks.push_back(run.ctx.memory()->stats().peak);
  }
  for (double fraction : {0.0, 0.5, 1.0}) {
    OffloadRun run(offload_options({"gdn_qkv"}, fraction), DType::F32, 8);
    run.iteration();
    run.ctx.memory()->reset_peak();
    run.iteration();
    peaks.push_back(run.ctx.memory()->stats().peak);
  }
  EXPECT_EQ(peaks[1], peaks[0]);
  EXPECT_LT(peaks[2], peaks[1]);
  EXPECT_LT(peaks[3], peaks[2]);
}

// Groups that are kept pace the prefetch too: a reload begins one group before it is needed, not earlier.
TEST(OffloadMemory, reloads_do_not_run_ahead_when_groups_are_kept) {
  OffloadRun run(offload_options({"gdn_qkv"}, 0.5), DType::F32, 8);
  run.iteration();
  std::map<int, std::int64_t> reloaded_by_layer;
  run.model.after_commit = [&](int layer, const Tensor& qkv) {
    const std::int64_t before = run.manager().stats().bytes_in;  // of the micro-batches before
    add_gradient_hook(qkv, [&run, &reloaded_by_layer, layer, before](const Tensor&) {
      reloaded_by_layer[layer] = (run.manager().stats().bytes_in - before) / kQkvBytes;
    });
  };
  run.iteration();
  // The last is needed at once, 3 of the other 7 stay by the fraction: 0 to 3 move. Group 3 comes while layer 4 is done, and so on.
  const std::map<int, std::int64_t> expected = {{7, 0}, {6, 0}, {5, 0}, {4, 0}, {3, 1}, {2, 2}, {1, 3}, {0, 4}};
  EXPECT_EQ(reloaded_by_layer, expected);
  EXPECT_EQ(run.manager().last_iteration().reloads_at_once, 0);
}

TEST(OffloadMemory, the_device_holds_nothing_between_iterations) {
  OffloadRun run(offload_options({"gdn_qkv", "gdn_core_attn"}));
  const std::int64_t before = run.ctx.memory()->stats().current;
  for (int iteration = 0; iteration < 3; ++iteration) {
    run.iteration();
    EXPECT_EQ(run.ctx.memory()->stats().current, before);
  }
}

TEST(OffloadMemory, meta_counts_as_a_run_does) {
  std::vector<std::vector<std::int64_t>> counts;
  for (DeviceKind device : {DeviceKind::Cpu, DeviceKind::Meta}) {
    Context ctx(test::small_context(1, device));
    const OffloadModel model(ctx, DType::F32);
    OffloadManager& manager = ctx.slot<OffloadManager>();
    manager.configure(ctx, offload_options({"gdn_qkv", "gdn_core_attn"}));
    counts.emplace_back();
    for (int iteration = 0; iteration < 2; ++iteration) {
      ctx.memory()->reset_peak();
      const std::vector<Tensor> w = model.leaves();
      for (int batch = 0; batch < 2; ++batch) {
        manager.begin_micro_batch(ctx);
        const Tensor loss = model.loss(ctx, w, batch);
        test::backward_of(ctx, loss);
      }
      manager.reset(ctx);
      for (std::int64_t count : {ctx.memory()->stats().peak, ctx.host_memory()->stats().peak, manager.last_iteration().bytes_out,
                                 manager.last_iteration().bytes_in}) {
        counts.back().push_back(count);
      }
    }
  }
  EXPECT_EQ(counts[0], counts[1]);
  EXPECT_GT(counts[1][2], 0);
}

}  // namespace
}  // namespace deltron
