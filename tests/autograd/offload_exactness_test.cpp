// Offload changes no bit of losses and gradients: whatever moves, however slow the copies are, with freed memory full of NaNs.
#include "tests/autograd/offload_model.h"

namespace deltron {
namespace {

using test::Bits;
using test::OffloadModel;
using test::OffloadRun;
using test::offload_options;

const std::vector<std::vector<std::string>>& module_sets() {
  static const std::vector<std::vector<std::string>> sets = {{"gdn_qkv"}, {"gdn_core_attn"}, {"gdn_qkv", "gdn_core_attn"}};
  return sets;
}

TEST(OffloadExactness, four_iterations_of_two_micro_batches_equal_those_without) {
  for (DType dtype : {DType::F32, DType::F64, DType::BF16}) {
    const Bits expected = test::plain_bits(dtype);
    for (const auto& modules : module_sets()) {
      for (double fraction : {0.0, 0.5, 1.0}) {
        OffloadRun run(offload_options(modules, fraction), dtype);
        for (int iteration = 0; iteration < 4; ++iteration) {
          EXPECT_EQ(run.iteration(), expected) << dtype_name(dtype) << " " << modules.back() << " " << fraction << " iteration " << iteration;
          if (iteration == 0 || fraction > 0) {
            EXPECT_GT(run.manager().last_iteration().bytes_out, 0);
          }
        }
      }
    }
  }
}

TEST(OffloadExactness, slow_copies_and_poisoned_memory_change_no_bit_from_the_first_iteration_on) {
  const Bits expected = test::plain_bits();
  for (const auto& modules : module_sets()) {
    for (int cap : {-1, 0, 1, 4}) {
      OffloadOptions options = offload_options(modules);
      options.max_inflight_offloads = cap;
      options.faults.copy_delay_seconds = 0.004;  // a copy of these 4480 bytes takes well under a hundredth of that
      options.faults.poison = true;
      OffloadRun run(options);
      for (int iteration = 0; iteration < 3; ++iteration) EXPECT_EQ(run.iteration(), expected) << "cap " << cap << " iteration " << iteration;
    }
  }
}

TEST(OffloadExactness, the_input_of_a_recomputed_region_is_back_before_its_replay) {
  const Bits expected = test::plain_bits();
  for (int cap : {-1, 0}) {
    OffloadOptions options = offload_options({"gdn_qkv"});
    options.max_inflight_offloads = cap;
    options.faults.copy_delay_seconds = 0.002;
    options.faults.poison = true;
    OffloadRun run(options);
    run.model.recompute_qkv = true;
    for (int iteration = 0; iteration < 3; ++iteration) {
      reset_recompute_counters(run.ctx);
      EXPECT_EQ(run.iteration(), expected);
      const RecomputeCounters counters = recompute_counters(run.ctx, "gdn_qkv");
      EXPECT_EQ(counters.discarded, 6);
      EXPECT_EQ(counters.restored, 6);
      EXPECT_EQ(run.manager().last_iteration().groups_moved, iteration == 0 ? 6 : 4);
    }
  }
}

// Both forwards before both backwards, in either order: two chunks are away at once, and reloads cross from chunk to chunk.
TEST(OffloadExactness, micro_batches_may_lie_over_each_other) {
  for (const std::vector<int>& order : {std::vector<int>{0, 1}, std::vector<int>{1, 0}}) {
    Bits expected;
    for (bool offloaded : {false, true}) {
      OffloadOptions options = offload_options(offloaded ? std::vector<std::string>{"gdn_qkv"} : std::vector<std::string>{});
      options.faults.copy_delay_seconds = 0.002;
      options.faults.poison = true;
      OffloadRun run(options);
      for (int iteration = 0; iteration < 3; ++iteration) {
        const std::vector<Tensor> w = run.model.leaves();
        std::vector<Tensor> losses;
        for (int batch = 0; batch < 2; ++batch) {
          run.manager().begin_micro_batch(run.ctx);
          losses.push_back(run.model.loss(run.ctx, w, batch));
        }
        run.manager().end_forward(run.ctx);
        for (int batch : order) test::backward_of(run.ctx, losses[static_cast<std::size_t>(batch)]);
        Bits bits;
        for (const Tensor& leaf : w) bits.push_back(test::bits_of(run.ctx, test::gradient_of(leaf)));
        if (!offloaded) expected = bits;
        EXPECT_EQ(bits, expected) << order[0] << " first, iteration " << iteration;
        EXPECT_EQ(run.manager().pool().in_use, 0);
        run.manager().reset(run.ctx);
        if (!offloaded) continue;
        const OffloadStats& stats = run.manager().last_iteration();
        EXPECT_EQ(stats.bytes_in, stats.bytes_out);
        // Warm-up: the first group of either backward comes late. Then only the margin would, and it stays on the device; the second
        // backward's first group is fetched by the first backward.
        EXPECT_EQ(stats.reloads_at_once, iteration == 0 ? 2 : 0);
        EXPECT_EQ(stats.groups_moved, iteration == 0 ? 6 : 5);
      }
    }
  }
}

TEST(OffloadExactness, more_micro_batches_than_the_warm_up_had_follow_its_last_one) {
  OffloadRun run(offload_options({"gdn_qkv"}), DType::F32, 3, 1);
  run.iteration();
  const OffloadModel more(run.ctx, DType::F32, 3, 3);
  EXPECT_EQ(more.iteration(run.ctx), test::plain_bits(DType::F32, 3, 3));
  run.manager().reset(run.ctx);
  EXPECT_EQ(run.manager().last_iteration().groups_moved, 6);
}

}  // namespace
}  // namespace deltron
