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

// Weights, masters and moments, bit by bit.
std::vector<std::string> state_of(Session& session) {
  std::vector<std::string> all;
  const auto add = [&](const Tensor& tensor) {
    std::string bytes(static_cast<std::size_t>(tensor.bytes()), '\0');
    copy_to_host(*session.ctx, tensor, bytes.data());
    all.push_back(bytes);
  };
  for (std::size_t i = 0; i < session.optimizer->parameters().size(); ++i) {
    add(session.optimizer->parameters()[i].weight);
    const OptimizerStateTensors& state = session.optimizer->state()[i];
    for (const Tensor& tensor : {state.master, state.exp_avg, state.exp_avg_sq}) add(tensor);
  }
  return all;
}

TEST(Numbers, the_step_after_a_bad_one_is_launched_before_anyone_looks_and_changes_nothing) {
  const Folder folder("nan_weights");
  for (const bool bf16 : {false, true}) {
    RunConfig config = testing::tiny_config(folder);
    config.training.bf16 = bf16;
    Session session = make_session(config, true, DeviceKind::Cpu);
    const BatchLoader loader(make_sample_source(data_options(config), Split::Train, 80), 2);
    const auto batches = [&](std::int64_t step) { return std::vector<HostBatch>{loader.batch(4 * step - 4), loader.batch(4 * step - 2)}; };
    const std::vector<std::string> fresh = state_of(session);
    EXPECT_FALSE(launch_step(session, batches(1), 1e-3).read().nonfinite);
    const std::vector<std::string> before = state_of(session);
    EXPECT_NE(before, fresh) << "a sound step changes the state";
    NumberGuard guard(parse_nan_injection("step=2,param=embedding.word_embeddings.weight,micro_batch=1"));
    const LaunchedStep bad = launch_step(session, batches(2), 1e-3, guard.begin_step(session, 2, batches(2)));
    const LaunchedStep next = launch_step(session, batches(3), 1e-3, guard.begin_step(session, 3, batches(3)));
    const LaunchedStep after = launch_step(session, batches(4), 1e-3);
    EXPECT_EQ(state_of(session), before);
    const StepResult told = bad.read();
    EXPECT_TRUE(told.nonfinite);
    EXPECT_TRUE(std::isnan(told.gradient_norm));
    EXPECT_TRUE(std::isfinite(told.loss));
    EXPECT_TRUE(std::isfinite(next.read().gradient_norm)) << "sound in itself,";
    EXPECT_TRUE(next.read().nonfinite) << "but the flag is sticky";
    EXPECT_TRUE(after.read().nonfinite);
    EXPECT_EQ(bad.updates_before(), 1);
    const std::string message = guard.explain(session, 2, told, "").what();
    EXPECT_THAT(message, HasSubstr("step 2, embedding.word_embeddings.weight"));
    EXPECT_THAT(message, HasSubstr("micro-batch 1 of 2, samples 6, 7"));
    EXPECT_EQ(state_of(session), before) << "looking for the culprit changes nothing";
  }
}

// First, middle and last step, before a save, a pause for evaluation and a limit: what is found, what the host had launched by then, what is
// left, and that the run goes on as if nothing had happened.
TEST(Numbers, a_bad_step_is_found_wherever_it_comes_and_the_run_resumes) {
  struct Row {
    int step, launched, newest;  // newest: complete checkpoint left
    int save, eval, exit;        // intervals
  };
  const std::vector<Row> rows = {
      {1, 2, 0, 0, 0, 0},   {6, 6, 3, 3, 0, 0},  {7, 8, 6, 3, 0, 0}, {20, 20, 18, 3, 0, 0}, {20, 20, 0, 0, 0, 0}, {13, 14, 0, 0, 0, 0},
      {4, 4, 0, 0, 4, 0},   {5, 5, 0, 0, 0, 5},
  };
  const Folder folder("nan_places");
  RunConfig plain = testing::tiny_config(folder);
  plain.checkpoint.save = folder / "plain";
  train(plain, {});
  const std::string expected = testing::checkpoint_hash(plain.checkpoint.save, 20);
  int number = 0;
  for (const Row& row : rows) {
    RunConfig config = plain;
    config.checkpoint.save = folder / ("run" + std::to_string(number++));
    config.checkpoint.save_interval = row.save;
    config.training.eval_interval = row.eval;
    config.training.eval_iters = row.eval > 0 ? 1 : 0;
    config.training.exit_interval = row.exit;
    const std::string where = "step " + std::to_string(row.step) + ", case " + std::to_string(number);
    TrainOptions options;
    const int micro = row.step % 2;
    options.inject_nan =
        parse_nan_injection("step=" + std::to_string(row.step) + ",param=decoder.layers.0.self_attention.A_log,micro_batch=" + std::to_string(micro));
    const std::string message = failure_of(config, options, ErrorCode::NonFiniteValue);
    const int sample = 4 * (row.step - 1) + 2 * micro;
    EXPECT_THAT(message, HasSubstr("step " + std::to_string(row.step) + ", layer 0, decoder.layers.0.self_attention.A_log")) << where;
    EXPECT_THAT(message, HasSubstr("micro-batch " + std::to_string(micro) + " of 2, samples " + std::to_string(sample) + ", " + std::to_string(sample + 1)));
    const std::vector<nlohmann::json> lines = testing::metrics_lines(config.checkpoint.save, "nonfinite");
    ASSERT_EQ(lines.size(), 1u) << where;
    EXPECT_EQ(lines[0].at("step"), row.step) << where;
    EXPECT_EQ(lines[0].at("launched"), row.launched) << "read one step later, or where the run pauses: " << where;
    const auto newest = newest_complete(list_checkpoints(config.checkpoint.save));
    EXPECT_EQ(newest ? newest->step : 0, row.newest) << where;
    EXPECT_TRUE(file_exists(join_path(config.checkpoint.save, "nonfinite_step_" + std::to_string(row.step) + "/step_" + std::to_string(row.step) +
                                                                  "_micro_batch_1.safetensors"))) << where;
    if (newest) {
      const CheckpointReader reader(newest->path);
      EXPECT_EQ(reader.state().at("consumed_samples"), 4 * row.newest) << where;
    }
    config.training.exit_interval = 0;
    EXPECT_EQ(train(config, {}).progress.step, 20) << where;
    EXPECT_EQ(testing::checkpoint_hash(config.checkpoint.save, 20), expected) << where;
  }
}

TEST(Numbers, a_bad_step_is_found_with_offload_and_recompute_at_work) {
  const Folder folder("nan_offload");
  RunConfig config = testing::tiny_config(folder);
  config.recompute.recompute_granularity = RecomputeGranularity::Selective;
  config.recompute.recompute_modules = {"gdn_norm_out"};
  config.offload.fine_grained_activation_offloading = true;
  config.offload.offload_modules = {"gdn_qkv", "core_attn"};
  config.offload.min_offloaded_tensor_size = 1;
  TrainOptions options;
  options.inject_nan = parse_nan_injection("step=6,param=decoder.layers.0.self_attention.A_log,micro_batch=1");
  EXPECT_THAT(failure_of(config, options, ErrorCode::NonFiniteValue), HasSubstr("micro-batch 1 of 2, samples 22, 23"));
  train(config, {});
  RunConfig plain = testing::tiny_config(folder);
  plain.checkpoint.save = folder / "plain";
  train(plain, {});
  EXPECT_EQ(testing::checkpoint_hash(config.checkpoint.save, 20), testing::checkpoint_hash(plain.checkpoint.save, 20));
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
  const std::vector<std::string> before = state_of(session);
  const StepResult bad = train_step(session, batches, 1e-3, guard.begin_step(session, 1, batches));
  EXPECT_TRUE(bad.nonfinite);
  EXPECT_FALSE(std::isfinite(bad.loss));
  EXPECT_EQ(state_of(session), before);
  const Error error = guard.explain(session, 1, bad, "");
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
