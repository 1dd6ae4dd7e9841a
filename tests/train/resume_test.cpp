// Exact resume: 20 steps are 10 and a resume and 10 more, to the bit: every loss, weight and moment.
#include <filesystem>

#include "src/checkpoint/reader.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using namespace deltron::test;

std::vector<double> from(const std::vector<double>& values, std::size_t begin) {
  return std::vector<double>(values.begin() + static_cast<std::ptrdiff_t>(begin), values.end());
}

class Resume : public ::testing::Test {
 protected:
  // A run killed after its checkpoint of `step`, as it stands on disk.
  std::string killed_after(const std::string& run, std::int64_t step) {
    const std::string copy = run + "_killed_" + std::to_string(step);
    std::filesystem::copy(run, copy, std::filesystem::copy_options::recursive);
    for (const CheckpointSummary& checkpoint : list_checkpoints(copy)) {
      if (checkpoint.step > step) remove_tree(checkpoint.path);
    }
    return copy;
  }

  // Trains 20 steps whole, then the last ten again from step 10, with `changes` on top.
  void expect_exact(const std::string& prefix, const std::vector<std::string>& overrides, const std::vector<std::string>& changes) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), {"checkpoint.save=" + (folder_ / "run"), "checkpoint.save_interval=10"});
    const TrainOutcome whole = run_training(tiny_config(prefix, all));
    ASSERT_EQ(whole.losses.size(), 20U);
    const std::string killed = killed_after(folder_ / "run", 10);
    std::vector<std::string> again = overrides;
    again.push_back("checkpoint.save=" + killed);
    again.insert(again.end(), changes.begin(), changes.end());
    const TrainOutcome rest = run_training(tiny_config(prefix, again));
    EXPECT_EQ(rest.progress.step, 20);
    EXPECT_EQ(rest.progress.consumed_samples, 80);
    EXPECT_EQ(rest.losses, from(whole.losses, 10));
    const auto expected = tensor_hashes(folder_ / "run", 20);
    EXPECT_GT(expected.size(), 60U) << "weights and two moments each";
    EXPECT_EQ(tensor_hashes(killed, 20), expected);
    EXPECT_NE(tensor_hashes(killed, 10), expected);
  }

  TempFolder folder_;
};

TEST_F(Resume, is_exact) {
  expect_exact(prepare_text(folder_, "text", made_text(20, 600)), {}, {"checkpoint.save_interval=10"});
}

TEST_F(Resume, is_exact_across_the_epoch_border_with_other_log_save_and_evaluation_intervals) {
  // About 50 samples an epoch: the border lies among the steps after the resume.
  const std::string prefix = prepare_text(folder_, "text", made_text(20, 90));
  const RunConfig config = tiny_config(prefix);
  const IndexReport index = build_sample_index(data_options(config), Split::Train, 80);
  ASSERT_EQ(index.entries.size(), 1U);
  ASSERT_GE(index.entries[0].epochs, 2);
  ASSERT_GT(index.entries[0].tokens_per_epoch, 41 * 32) << "the first ten steps stay in the first epoch";
  ASSERT_LT(index.entries[0].tokens_per_epoch, 79 * 32);
  expect_exact(prefix, {}, {"logging.log_interval=1", "checkpoint.save_interval=3", "training.eval_interval=4", "training.eval_iters=1"});
}

TEST_F(Resume, is_exact_with_bf16_weights_and_packed_documents) {
  expect_exact(prepare_text(folder_, "text", made_text(300, 40)), {"training.bf16=true", "data.packing=documents"}, {});
}

TEST_F(Resume, the_same_thread_count_repeats_bits_and_another_one_is_reported) {
  const std::string prefix = prepare_text(folder_, "text", made_text(20, 600));
  for (const char* threads : {"1", "2"}) {
    std::vector<std::vector<double>> losses;
    for (const char* name : {"a", "b"}) {
      const std::string run = folder_ / (std::string("run") + threads + name);
      losses.push_back(run_training(tiny_config(prefix, {"training.train_iters=6", std::string("training.threads=") + threads,
                                                         "checkpoint.save=" + run}))
                           .losses);
    }
    EXPECT_EQ(losses[0], losses[1]) << threads << " threads";
    EXPECT_EQ(tensor_hashes(folder_ / (std::string("run") + threads + "a"), 6), tensor_hashes(folder_ / (std::string("run") + threads + "b"), 6));
  }
  const CheckpointReader reader(checkpoint_path(folder_ / "run1a", 6));
  for (const char* threads : {"1", "2"}) {
    Session session = make_session(tiny_config(prefix, {"training.train_iters=6", std::string("training.threads=") + threads}), true, DeviceKind::Cpu);
    const LoadedRun loaded = load_run(session, reader, false);
    if (std::string(threads) == "1") {
      EXPECT_TRUE(loaded.differences.empty()) << loaded.differences.front();
    } else {
      ASSERT_EQ(loaded.differences.size(), 1U);
      EXPECT_EQ(loaded.differences[0], "threads: 1 then, 2 now");
    }
  }
}

TEST_F(Resume, everything_that_changes_an_update_is_reported) {
  const std::string prefix = prepare_text(folder_, "text", made_text(20, 600));
  const std::string run = folder_ / "run";
  run_training(tiny_config(prefix, {"training.train_iters=2", "optimizer.lr_warmup_iters=2", "checkpoint.save=" + run}));
  const CheckpointReader reader(checkpoint_path(run, 2));
  const auto differences = [&](std::vector<std::string> overrides) {
    if (overrides.front().rfind("training.train_iters", 0) != 0) overrides.push_back("training.train_iters=2");
    overrides.push_back("optimizer.lr_warmup_iters=2");
    Session session = make_session(tiny_config(prefix, overrides), true, DeviceKind::Cpu);
    return load_run(session, reader, false).differences;
  };
  EXPECT_TRUE(differences({"logging.log_interval=1", "training.eval_interval=1"}).empty());
  for (const char* change : {"optimizer.lr=1e-3", "training.seed=8", "training.micro_batch_size=4", "model.hidden_dropout=0.2", "training.train_iters=3"}) {
    const std::vector<std::string> found = differences({change});
    ASSERT_EQ(found.size(), 1U) << change;
    const std::string key = std::string(change).substr(0, std::string(change).find('='));
    EXPECT_EQ(found[0].rfind(key + ": ", 0), 0U) << found[0];
  }
}

TEST_F(Resume, another_number_of_steps_that_changes_the_order_of_the_data_is_reported) {
  // lr_decay_iters is fixed, so that the schedule stays; the second run needs another epoch, and its order is another one.
  const std::string prefix = prepare_text(folder_, "text", made_text(20, 90));
  const std::vector<std::string> base = {"checkpoint.save=" + (folder_ / "run"), "optimizer.lr_decay_iters=20"};
  const auto with = [&](const char* iterations) {
    std::vector<std::string> all = base;
    all.push_back(iterations);
    return tiny_config(prefix, all);
  };
  EXPECT_TRUE(run_training(with("training.train_iters=6")).differences.empty());
  EXPECT_TRUE(run_training(with("training.train_iters=8")).differences.empty()) << "one epoch holds both";
  const TrainOutcome longer = run_training(with("training.train_iters=20"));
  ASSERT_EQ(longer.differences.size(), 1U);
  EXPECT_EQ(longer.differences[0].rfind("order of the data: drawn for ", 0), 0U) << longer.differences[0];
}

TEST_F(Resume, never_refuses_a_folder_with_checkpoints_and_a_missing_step_names_the_newest) {
  const std::string prefix = prepare_text(folder_, "text", made_text(20, 600));
  const std::string run = folder_ / "run";
  const std::vector<std::string> base = {"training.train_iters=4", "checkpoint.save_interval=2", "checkpoint.save=" + run};
  const auto with = [&](const std::string& extra) {
    std::vector<std::string> all = base;
    all.push_back(extra);
    return tiny_config(prefix, all);
  };
  run_training(with("checkpoint.resume=never"));
  const auto hashes = tensor_hashes(run, 4);
  EXPECT_ERROR(run_training(with("checkpoint.resume=never")), ErrorCode::RunFolderTaken, run, "newest complete: step 4");
  EXPECT_ERROR(run_training(with("checkpoint.resume=3")), ErrorCode::CheckpointNotFound, "step 3", "newest complete: step 4");
  EXPECT_EQ(tensor_hashes(run, 4), hashes);
  const TrainOutcome again = run_training(with("checkpoint.resume=2"));
  EXPECT_EQ(again.losses.size(), 2U);
  EXPECT_EQ(tensor_hashes(run, 4), hashes) << "steps 3 and 4 again are the same steps";
  const TrainOutcome nothing = run_training(with("checkpoint.resume=auto"));
  EXPECT_TRUE(nothing.losses.empty());
  EXPECT_EQ(nothing.progress.step, 4);
}

TEST_F(Resume, weights_only_takes_the_weights_and_starts_the_rest_anew) {
  const std::string prefix = prepare_text(folder_, "text", made_text(20, 600));
  const std::string run = folder_ / "run";
  run_training(tiny_config(prefix, {"training.train_iters=4", "checkpoint.save=" + run}));
  Session session = make_session(tiny_config(prefix), true, DeviceKind::Cpu);
  const CheckpointReader reader(checkpoint_path(run, 4));
  const LoadedRun loaded = load_run(session, reader, true);
  EXPECT_EQ(loaded.progress.step, 0);
  EXPECT_EQ(loaded.progress.consumed_samples, 0);
  EXPECT_EQ(session.optimizer->updates(), 0);
  for (const OptimizerStateTensors& state : session.optimizer->state()) {
    for (double value : to_doubles(*session.ctx, state.exp_avg)) ASSERT_EQ(value, 0.0);
  }
  for (const LogicalTensor& logical : session.model->parameters().logical()) {
    const HostArray saved = reader.read(logical.name);
    EXPECT_EQ(to_doubles(*session.ctx, logical.value()), to_doubles(saved.view())) << logical.name;
  }
}

TEST_F(Resume, another_model_is_refused_by_name_and_shape) {
  const std::string prefix = prepare_text(folder_, "text", made_text(20, 600));
  const std::string run = folder_ / "run";
  run_training(tiny_config(prefix, {"training.train_iters=4", "checkpoint.save=" + run}));
  EXPECT_ERROR(run_training(tiny_config(prefix, {"model.ffn_hidden_size=64", "checkpoint.save=" + run})), ErrorCode::TensorShapeMismatch,
               "mlp.linear_fc1", "48", "64");
  EXPECT_ERROR(run_training(tiny_config(prefix, {"model.qk_layernorm=false", "checkpoint.save=" + run})), ErrorCode::CheckpointTensorNames,
               "q_layernorm");
}

}  // namespace
}  // namespace deltron
