// Offload through the trainer: the losses of a run without it, memory that returns to where it was, the plan, the table, the refusals.
#include <gmock/gmock.h>

#include "src/autograd/offload_manager.h"
#include "src/train/activation_offload.h"
#include "src/train/plan.h"
#include "src/train/step.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using namespace deltron::test;

std::vector<std::string> offloading(const std::string& modules, std::int64_t smallest = 1) {
  return {"offload.fine_grained_activation_offloading=true", "offload.offload_modules=[" + modules + "]",
          "offload.min_offloaded_tensor_size=" + std::to_string(smallest)};
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Four layers, so that every module still moves a group once the warm-up has decided.
std::vector<std::string> hybrid(const std::string& variant) {
  return {"model.num_layers=4", "model.linear_attention_freq=[1,0,1,0]", "model.experimental_attention_variant=" + variant};
}

class OffloadTraining : public ::testing::Test {
 protected:
  OffloadTraining() : prefix_(prepare_text(folder_, "text", made_text(40, 400))) {}
  TempFolder folder_;
  std::string prefix_;
};

const char* const kAll = "gdn_qkv,gdn_core_attn,core_attn,attn_proj";

TEST_F(OffloadTraining, losses_are_those_of_the_run_without_for_both_variants) {
  for (const char* variant : {"gdn", "gdn2"}) {
    for (const char* bf16 : {"training.bf16=false", "training.bf16=true"}) {
      const std::vector<std::string> base = hybrid(variant) + std::vector<std::string>{bf16, "training.eval_interval=3", "training.eval_iters=2", "training.train_iters=8"};
      const TrainOutcome plain = run_training(tiny_config(prefix_, base));
      ASSERT_EQ(plain.losses.size(), 8u);
      const std::vector<std::vector<std::string>> ways = {
          offloading("gdn_qkv"),
          offloading(kAll),
          offloading("gdn_qkv") + std::vector<std::string>{"recompute.recompute_granularity=selective", "recompute.recompute_modules=[gdn_qkv,gdn_norm_out]",
                                                           "offload.activation_offload_fraction=0.5"},
          offloading("layer_input") + std::vector<std::string>{"recompute.recompute_granularity=full", "recompute.recompute_method=uniform",
                                                               "recompute.recompute_num_layers=1", "offload.fine_grained_offloading_max_inflight_offloads=0"}};
      for (const std::vector<std::string>& way : ways) {
        const TrainOutcome with = run_training(tiny_config(prefix_, base + way));
        EXPECT_EQ(with.losses, plain.losses) << variant << " " << bf16 << " " << way[1];
        ASSERT_EQ(with.evaluation.size(), plain.evaluation.size());
        EXPECT_EQ(with.evaluation[0].nats, plain.evaluation[0].nats) << variant << " " << way[1];
        EXPECT_GT(with.host_memory.current, 0) << "the pool keeps its buffers";
        EXPECT_LT(with.memory.peak, plain.memory.peak) << variant << " " << bf16 << " " << way[1];
      }
      EXPECT_EQ(plain.host_memory.peak, 0);
    }
  }
}

TEST_F(OffloadTraining, memory_after_step_three_is_memory_after_step_thirty_and_peaks_repeat) {
  for (const char* variant : {"gdn", "gdn2"}) {
    const std::vector<std::string> base =
        hybrid(variant) + offloading("gdn_qkv,core_attn,attn_proj") +
        std::vector<std::string>{"recompute.recompute_granularity=selective", "recompute.recompute_modules=[gdn_qkv,gdn_norm_out,gdn_core_attn,mlp]"};
    const auto trained = [&](int steps) {
      return run_training(tiny_config(prefix_, base + std::vector<std::string>{"training.train_iters=" + std::to_string(steps), "optimizer.lr_warmup_iters=2"}));
    };
    const TrainOutcome three = trained(3), thirty = trained(30), again = trained(30);
    EXPECT_EQ(three.memory.current, thirty.memory.current);
    EXPECT_EQ(three.host_memory.current, thirty.host_memory.current);
    EXPECT_EQ(three.memory.by_tag, thirty.memory.by_tag);
    EXPECT_EQ(three.memory.peak, thirty.memory.peak);
    EXPECT_EQ(again.memory.peak, thirty.memory.peak);
    EXPECT_EQ(again.memory.by_tag_at_peak, thirty.memory.by_tag_at_peak);
    EXPECT_EQ(again.memory.peak_saved, thirty.memory.peak_saved);
    EXPECT_EQ(again.memory.allocations, thirty.memory.allocations);
    EXPECT_EQ(again.host_memory.peak, thirty.host_memory.peak);
    EXPECT_GT(thirty.host_memory.peak, 0);
  }
}

TEST_F(OffloadTraining, a_resumed_run_warms_up_again_and_repeats_the_bits) {
  const std::vector<std::string> base = hybrid("gdn") + offloading(kAll) + std::vector<std::string>{"training.train_iters=6"};
  const TrainOutcome whole = run_training(tiny_config(prefix_, base));
  const std::vector<std::string> saved = base + std::vector<std::string>{"checkpoint.save=" + (folder_ / "run"), "checkpoint.save_interval=3", "checkpoint.keep_last=0"};
  const TrainOutcome first = run_training(tiny_config(prefix_, saved + std::vector<std::string>{"training.exit_interval=3"}));
  ASSERT_TRUE(first.stopped);
  const TrainOutcome rest = run_training(tiny_config(prefix_, saved));
  std::vector<double> losses = first.losses;
  losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
  EXPECT_EQ(losses, whole.losses);
}

TEST_F(OffloadTraining, the_plan_counts_device_and_host_bytes_as_the_run_does) {
  for (const char* variant : {"gdn", "gdn2"}) {
    const std::vector<std::string> base = hybrid(variant) + std::vector<std::string>{"training.seq_length=128", "training.train_iters=3", "optimizer.lr_warmup_iters=2"};
    const Plan plain = make_plan(tiny_config(prefix_, base));
    EXPECT_TRUE(plain.offload.empty());
    EXPECT_EQ(to_text(plain).find("host memory"), std::string::npos);
    const RunConfig config = tiny_config(prefix_, base + offloading(kAll));
    const Plan plan = make_plan(config);
    EXPECT_LT(plan.memory.peak, plain.memory.peak);
    EXPECT_LT(plan.saved_for_backward, plain.saved_for_backward);
    const TrainOutcome run = run_training(config);
    EXPECT_EQ(plan.host_memory.peak, run.host_memory.peak);
    EXPECT_NEAR(static_cast<double>(plan.memory.peak), static_cast<double>(run.memory.peak), 0.05 * static_cast<double>(run.memory.peak));
    ASSERT_EQ(plan.offload.size(), 4u);
    // Two micro-batches of two layers a module; of each two groups the later one is needed at once.
    for (const OffloadModuleTotals& module : plan.offload) {
      EXPECT_EQ(module.groups, 4) << module.name;
      EXPECT_EQ(module.moved, 2) << module.name;
      EXPECT_EQ(module.kept_at_once, 2) << module.name;
      EXPECT_EQ(2 * module.bytes_moved, module.bytes) << module.name;
    }
    EXPECT_THAT(to_text(plan), ::testing::AllOf(::testing::HasSubstr("host memory "), ::testing::HasSubstr("rank 0"), ::testing::HasSubstr("attn_proj")));
    const nlohmann::json json = nlohmann::json::parse(to_json(plan));
    EXPECT_EQ(json.at("host_peak_bytes"), plan.host_memory.peak);
    EXPECT_EQ(json.at("offload").size(), 4u);
  }
}

TEST_F(OffloadTraining, the_table_of_the_first_iteration_goes_into_the_log) {
  const RunConfig config = tiny_config(prefix_, hybrid("gdn") + offloading("gdn_qkv,core_attn") +
                                                    std::vector<std::string>{"training.train_iters=1", "optimizer.lr_warmup_iters=1", "checkpoint.save=" + (folder_ / "run"), "checkpoint.save_interval=0"});
  ::testing::internal::CaptureStderr();
  set_log_level(LogLevel::Info);
  train(config, {});
  set_log_file("");
  set_log_level(LogLevel::Error);
  ::testing::internal::GetCapturedStderr();
  const std::string log = read_file(folder_ / "run/log.txt");
  EXPECT_THAT(log, ::testing::HasSubstr("activation offload, rank 0, an iteration:"));
  EXPECT_THAT(log, ::testing::ContainsRegex("gdn_qkv +4 +68.00 KiB +2 +34.00 KiB +2 +0"));
  EXPECT_THAT(log, ::testing::HasSubstr("4 of 8 groups"));
}

TEST_F(OffloadTraining, a_module_whose_storages_are_all_too_small_is_refused_with_the_next_legal_value) {
  const RunConfig config = tiny_config(prefix_, hybrid("gdn") + offloading("gdn_qkv", 1048576));
  for (const bool plans : {false, true}) {
    try {
      if (plans) {
        make_plan(config);
      } else {
        run_training(config);
      }
      FAIL() << "the option had no effect";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::ConfigNoEffect);
      EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("'gdn_qkv' offloads nothing"), ::testing::HasSubstr("4096 elements"),
                                                 ::testing::HasSubstr("min_offloaded_tensor_size: 4096 or less")));
    }
  }
  const RunConfig largest = tiny_config(prefix_, hybrid("gdn") + offloading("gdn_qkv", 4096) + std::vector<std::string>{"training.train_iters=4"});
  EXPECT_EQ(run_training(largest).losses.size(), 4u);
}

// Every key of the section reaches the manager.
TEST_F(OffloadTraining, every_key_of_the_section_takes_effect) {
  // Eleven linear layers; few words, so that the peak does not lie at the logits, behind the last release point.
  const std::vector<std::string> deep = {"model.num_layers=12", "model.linear_attention_freq=12"};
  const auto moved = [&](const std::vector<std::string>& more, std::int64_t smallest = 1) {
    RunConfig config = tiny_config(prefix_, deep + offloading("gdn_qkv", smallest) + more);
    config.model.vocab_size = 8;
    Session session = make_session(config, true, DeviceKind::Meta);
    const HostBatch batch = planned_batch(session.config);
    for (int step = 0; step < 2; ++step) {
      session.ctx->memory()->reset_peak();
      train_step(session, {batch, batch}, 1e-3);
    }
    const OffloadManager& manager = session.ctx->slot<OffloadManager>();
    return std::pair{manager.last_iteration().groups_moved, session.ctx->memory()->stats().peak};
  };
  EXPECT_EQ(moved({}).first, 20);
  EXPECT_EQ(moved({"offload.activation_offload_fraction=0.5"}).first, 10);
  EXPECT_EQ(moved({}, 1000000).first, 0);
  // More copies under way hold more memory: their sources are freed later.
  const auto peak = [&](int cap) { return moved({"offload.fine_grained_offloading_max_inflight_offloads=" + std::to_string(cap)}).second; };
  EXPECT_EQ(peak(-1), peak(1));
  EXPECT_LE(peak(0), peak(1));
  EXPECT_LT(peak(1), peak(8));
}

}  // namespace
}  // namespace deltron
