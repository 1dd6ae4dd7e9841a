// NaN and spikes: what is refused, what the error names, what is written, what survives a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/checkpoint/safetensors.h"
#include "src/train/loss_window.h"
#include "tests/trust/tiny_run.h"

namespace deltron {
namespace {

using ::testing::HasSubstr;
using testing::Folder;

std::string failure_of(const RunConfig& config, const TrainOptions& options, ErrorCode expected) {
  try {
    train(config, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Numbers, an_injected_nan_is_named_and_its_batch_is_kept) {
  const Folder folder("nan");
  RunConfig config = testing::tiny_config(folder);
  config.checkpoint.save_interval = 3;
  TrainOptions options;
  options.inject_nan = parse_nan_injection("step=6,param=decoder.layers.1.self_attention.linear_qkv.weight.key,micro_batch=1");
  const std::string message = failure_of(config, options, ErrorCode::NonFiniteValue);
  EXPECT_THAT(message, HasSubstr("a gradient is not finite"));
  EXPECT_THAT(message, HasSubstr("step 6, layer 1, decoder.layers.1.self_attention.linear_qkv.weight.key"));
  EXPECT_THAT(message, HasSubstr("1 of 256 values"));
  EXPECT_THAT(message, HasSubstr("micro-batch 1 of 2, samples 22, 23"));
  EXPECT_EQ(Error(ErrorCode::NonFiniteValue, {}).exit_code(), ExitCode::NonFinite);

  const std::string kept = join_path(config.checkpoint.save, "nonfinite_step_6");
  EXPECT_THAT(list_directory(kept), ::testing::ElementsAre("step_5_micro_batch_0.safetensors", "step_5_micro_batch_1.safetensors",
                                                           "step_6_micro_batch_0.safetensors", "step_6_micro_batch_1.safetensors"));
  const SafetensorsFile file(join_path(kept, "step_6_micro_batch_1.safetensors"));
  EXPECT_THAT(file.as_doubles("sample_ids"), ::testing::ElementsAre(22, 23));
  const BatchLoader loader(make_sample_source(data_options(config), Split::Train, 80), 2);
  const HostBatch batch = loader.batch(22);
  EXPECT_EQ(file.as_doubles("tokens"), std::vector<double>(batch.tokens.begin(), batch.tokens.end()));
  EXPECT_EQ(file.as_doubles("labels"), std::vector<double>(batch.labels.begin(), batch.labels.end()));

  const std::vector<nlohmann::json> lines = testing::metrics_lines(config.checkpoint.save, "nonfinite");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].at("grad_norm").is_null());
  EXPECT_EQ(lines[0].at("nonfinite"), true);

  // Nothing of the refused step reached a checkpoint: going on without the injection ends as if nothing had happened.
  train(config, {});
  RunConfig plain = config;
  plain.checkpoint.save = folder / "plain";
  train(plain, {});
  EXPECT_EQ(testing::checkpoint_hash(config.checkpoint.save, 20), testing::checkpoint_hash(plain.checkpoint.save, 20));
}

TEST(Numbers, weights_stay_as_they_were_and_so_does_every_later_step) {
  const Folder folder("nan_weights");
  RunConfig config = testing::tiny_config(folder);
  Session session = make_session(config, true, DeviceKind::Cpu);
  const BatchLoader loader(make_sample_source(data_options(config), Split::Train, 80), 2);
  const auto weights = [&] {
    std::vector<double> all;
    for (const LogicalTensor& logical : session.model->parameters().logical()) {
      const std::vector<double> values = to_doubles(*session.ctx, logical.value());
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  train_step(session, {loader.batch(0), loader.batch(2)}, 1e-3);
  const std::vector<double> before = weights();
  NumberGuard guard(parse_nan_injection("step=2,param=embedding.word_embeddings.weight"));
  const std::vector<HostBatch> batches = {loader.batch(4), loader.batch(6)};
  const StepResult bad = train_step(session, batches, 1e-3, guard.begin_step(session, 2, batches));
  EXPECT_TRUE(bad.nonfinite);
  EXPECT_EQ(weights(), before);
  EXPECT_TRUE(train_step(session, batches, 1e-3).nonfinite) << "the flag is sticky";
  EXPECT_EQ(weights(), before);
  EXPECT_THAT(guard.explain(session, bad, "").what(), HasSubstr("step 2, embedding.word_embeddings.weight"));
}

TEST(Numbers, a_nan_in_the_forward_pass_is_told_as_a_loss) {
  const Folder folder("nan_loss");
  RunConfig config = testing::tiny_config(folder);
  Session session = make_session(config, true, DeviceKind::Cpu);
  const LogicalTensor logical = session.model->parameters().logical().back();
  std::vector<double> values = to_doubles(*session.ctx, logical.value());
  values[0] = std::numeric_limits<double>::infinity();
  from_doubles(*session.ctx, logical.value(), values);
  const BatchLoader loader(make_sample_source(data_options(config), Split::Train, 80), 2);
  NumberGuard guard;
  const std::vector<HostBatch> batches = {loader.batch(0), loader.batch(2)};
  const StepResult bad = train_step(session, batches, 1e-3, guard.begin_step(session, 1, batches));
  EXPECT_TRUE(bad.nonfinite);
  const Error error = guard.explain(session, bad, "");
  EXPECT_THAT(error.what(), HasSubstr("the loss is not finite"));
  EXPECT_THAT(error.what(), HasSubstr("micro-batch 0 of 2, samples 0, 1"));
}

TEST(Numbers, injections_are_checked) {
  for (const char* text : {"step=1", "param=x", "step=x,param=y", "step=0,param=y", "step=1,param=y,what=2", "step"}) {
    EXPECT_THROW(parse_nan_injection(text), Error) << text;
  }
  EXPECT_EQ(parse_nan_injection("").step, 0);
  const Folder folder("nan_name");
  TrainOptions options;
  options.inject_nan = parse_nan_injection("step=1,param=decoder.layers.0.self_attention.A_lgo");
  EXPECT_THAT(failure_of(testing::tiny_config(folder), options, ErrorCode::UsageError), HasSubstr("decoder.layers.0.self_attention.A_log"));
}

TEST(LossWindow, warns_above_the_threshold_only) {
  LossWindow window;
  for (int i = 0; i < 40; ++i) EXPECT_FALSE(window.add(2.0 + 0.1 * (i % 2), 4.0)) << i;
  EXPECT_FALSE(window.add(2.2, 4.0));
  EXPECT_FALSE(window.add(0.1, 4.0)) << "far below is no spike";
  const auto spike = window.add(9.0, 4.0);
  ASSERT_TRUE(spike);
  EXPECT_GT(spike->z, 4.0);
  EXPECT_FALSE(window.add(50.0, 0.0)) << "0 is off";
  LossWindow few;
  for (std::size_t i = 0; i + 1 < LossWindow::kLeast; ++i) few.add(1.0 + 0.01 * static_cast<double>(i % 2), 4.0);
  EXPECT_FALSE(few.add(100.0, 4.0)) << "too few to tell";
  for (int i = 0; i < 300; ++i) window.add(1, 0);
  EXPECT_EQ(window.losses().size(), LossWindow::kSize);
}

TEST(LossWindow, survives_a_restart_bit_by_bit_and_warns_alike) {
  const Folder folder("window");
  RunConfig config = testing::tiny_config(folder);
  config.training.train_iters = 40;
  config.optimizer.lr = 1e-9;               // losses go up and down, not down alone
  config.logging.loss_spike_z_score = 0.5;  // so low that ordinary losses pass it
  config.training.exit_interval = 34;
  EXPECT_TRUE(train(config, {}).stopped);
  EXPECT_FALSE(train(config, {}).stopped);
  RunConfig whole = config;
  whole.training.exit_interval = 0;
  whole.checkpoint.save = folder / "whole";
  const TrainOutcome outcome = train(whole, {});
  EXPECT_EQ(outcome.progress.recent_losses, outcome.losses);
  const CheckpointReader reader(checkpoint_path(config.checkpoint.save, 40));
  EXPECT_EQ(reader.state().at("recent_losses").get<std::vector<double>>(), outcome.losses) << "exact bits";
  EXPECT_EQ(testing::checkpoint_hash(config.checkpoint.save, 40), testing::checkpoint_hash(whole.checkpoint.save, 40));
  const auto warned = [](const std::string& run) {
    std::vector<std::pair<int, double>> steps;
    for (const nlohmann::json& line : testing::metrics_lines(run, "loss_spike")) steps.emplace_back(line.at("step"), line.at("z"));
    return steps;
  };
  EXPECT_FALSE(warned(whole.checkpoint.save).empty());
  EXPECT_EQ(warned(config.checkpoint.save), warned(whole.checkpoint.save));
}

}  // namespace
}  // namespace deltron
