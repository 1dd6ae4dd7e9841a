// One training step: accumulation, normalisation by valid tokens, decay groups of a real model, wiring, and refusal of NaN.
#include "src/train/step.h"

#include <cmath>
#include <limits>
#include <set>

#include "src/autograd/engine.h"
#include "src/train/run_folder.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using namespace deltron::test;

// No data files are needed: batches are made here.
RunConfig no_dropout(const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> all = overrides;
  all.insert(all.end(), {"model.hidden_dropout=0", "model.attention_dropout=0"});
  return tiny_config("unused", all);
}

HostBatch random_batch(std::int64_t first_sample, std::int64_t samples, std::int64_t length, double masked = 0) {
  HostBatch batch;
  for (std::int64_t s = 0; s < samples; ++s) {
    RngStream random({3, 0, kRngSiteData}, static_cast<std::uint64_t>(first_sample + s));
    Sample sample;
    for (std::int64_t t = 0; t < length; ++t) {
      sample.tokens.push_back(static_cast<std::int32_t>(random.below(256)));
      sample.labels.push_back(random.uniform() < masked ? kIgnoreLabel : static_cast<std::int32_t>(random.below(256)));
    }
    sample.segment_ends = {length};
    append_sample(batch, first_sample + s, sample);
  }
  return batch;
}

std::vector<double> gradients(Session& session, const std::vector<HostBatch>& batches, double* loss = nullptr) {
  session.model->parameters().zero_main_gradients(*session.ctx);
  const StepResult result = forward_backward(session, batches);
  if (loss != nullptr) *loss = result.loss;
  return to_doubles(*session.ctx, session.model->parameters().gradient_buffer());
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

TEST(Step, two_micro_batches_of_four_are_one_of_eight) {
  Session session = make_session(no_dropout(), true, DeviceKind::Cpu);
  double whole_loss = 0, cut_loss = 0;
  const std::vector<double> whole = gradients(session, {random_batch(0, 8, 32)}, &whole_loss);
  const std::vector<double> cut = gradients(session, {random_batch(0, 4, 32), random_batch(4, 4, 32)}, &cut_loss);
  EXPECT_NEAR(cut_loss, whole_loss, 1e-6 * whole_loss);
  EXPECT_LT(relative_difference(cut, whole), 1e-5);
}

TEST(Step, dropout_too_does_not_depend_on_the_cut_into_micro_batches) {
  Session session = make_session(tiny_config("unused"), true, DeviceKind::Cpu);
  const std::vector<double> whole = gradients(session, {random_batch(0, 8, 32)});
  const std::vector<double> cut = gradients(session, {random_batch(0, 4, 32), random_batch(4, 4, 32)});
  EXPECT_LT(relative_difference(cut, whole), 1e-5);
  const std::vector<double> other = gradients(session, {random_batch(0, 4, 32), random_batch(0, 4, 32)});
  EXPECT_GT(relative_difference(other, whole), 1e-2);
}

TEST(Step, the_loss_is_the_mean_over_valid_tokens_of_all_micro_batches) {
  Session session = make_session(no_dropout(), true, DeviceKind::Cpu);
  Context& ctx = *session.ctx;
  const std::vector<HostBatch> uneven = {random_batch(0, 2, 32, 0.9), random_batch(2, 2, 32, 0.1)};
  ASSERT_LT(4 * uneven[0].valid_tokens(), uneven[1].valid_tokens());
  double nats = 0;
  std::int64_t valid = 0;
  {
    GradModeGuard no_graph(ctx, false);
    for (const HostBatch& batch : uneven) {
      const DeviceBatch device = upload(ctx, batch);
      const std::vector<double> losses = to_doubles(ctx, token_losses(ctx, session.model->logits(ctx, device.ids, device.layout, {}), device.labels));
      for (std::size_t t = 0; t < losses.size(); ++t) {
        if (batch.labels[t] == kIgnoreLabel) continue;
        nats += losses[t];
        ++valid;
      }
    }
  }
  double loss = 0, whole_loss = 0;
  const std::vector<double> cut = gradients(session, uneven, &loss);
  EXPECT_NEAR(loss, nats / static_cast<double>(valid), 1e-5);
  HostBatch together = uneven[0];
  for (std::int64_t sample = 0; sample < 2; ++sample) {
    Sample one;
    one.tokens.assign(uneven[1].tokens.begin() + sample * 32, uneven[1].tokens.begin() + (sample + 1) * 32);
    one.labels.assign(uneven[1].labels.begin() + sample * 32, uneven[1].labels.begin() + (sample + 1) * 32);
    one.segment_ends = {32};
    append_sample(together, 2 + sample, one);
  }
  const std::vector<double> whole = gradients(session, {together}, &whole_loss);
  EXPECT_NEAR(whole_loss, loss, 1e-6 * loss);
  EXPECT_LT(relative_difference(cut, whole), 1e-5);
}

TEST(Step, a_batch_without_valid_labels_has_no_loss_and_no_gradient) {
  Session session = make_session(no_dropout(), true, DeviceKind::Cpu);
  double loss = 1;
  for (double value : gradients(session, {random_batch(0, 2, 32, 1.1)}, &loss)) ASSERT_EQ(value, 0.0);
  EXPECT_EQ(loss, 0.0);
}

TEST(Step, vectors_and_gate_parameters_do_not_decay_and_matrices_do) {
  const Session session = make_session(tiny_config("unused"), true, DeviceKind::Meta);
  std::set<std::string> decayed, spared;
  for (const OptimizedParameter& parameter : session.optimizer->parameters()) {
    EXPECT_EQ(parameter.weight_decay, parameter.weight.rank() > 1) << parameter.name;
    const std::string leaf = parameter.name.substr(parameter.name.find("self_attention.") == std::string::npos ? 0 : parameter.name.find("self_attention.") + 15);
    (parameter.weight_decay ? decayed : spared).insert(leaf);
  }
  for (const char* name : {"A_log", "dt_bias", "out_norm.weight", "q_layernorm.weight", "decoder.final_layernorm.weight"}) {
    EXPECT_EQ(spared.count(name), 1U) << name;
  }
  for (const char* name : {"in_proj.weight", "conv1d.weight", "out_proj.weight", "embedding.word_embeddings.weight"}) {
    EXPECT_EQ(decayed.count(name), 1U) << name;
  }
}

TEST(Step, parameters_that_backward_does_not_reach_are_named) {
  Session session = make_session(no_dropout(), true, DeviceKind::Cpu);
  Context& ctx = *session.ctx;
  EXPECT_EQ(untouched_parameters(*session.model).size(), session.model->parameters().all().size());
  const DeviceBatch device = upload(ctx, random_batch(0, 2, 32));
  const Tensor loss = session.model->loss(ctx, device.ids, device.labels, device.layout, {.training = true, .without_linear_mixers = true}, 1.0);
  backward(ctx, {loss}, {make_tensor(ctx, {1}, DType::F64, {1.0}, "seed")});
  const std::vector<std::string> names = untouched_parameters(*session.model);
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) EXPECT_EQ(name.rfind("decoder.layers.0.", 0), 0U) << name;
  EXPECT_NE(std::find(names.begin(), names.end(), "decoder.layers.0.self_attention.A_log"), names.end());
  forward_backward(session, {random_batch(0, 2, 32)});
  EXPECT_TRUE(untouched_parameters(*session.model).empty());
}

TEST(Step, memory_after_step_three_is_memory_after_step_thirty) {
  for (const char* bf16 : {"training.bf16=false", "training.bf16=true"}) {
    Session session = make_session(tiny_config("unused", {bf16}), true, DeviceKind::Cpu);
    MemoryStats third;
    for (int step = 1; step <= 30; ++step) {
      train_step(session, {random_batch(4 * step, 2, 32), random_batch(4 * step + 2, 2, 32)}, 1e-3);
      if (step == 3) third = session.ctx->memory()->stats();
    }
    const MemoryStats last = session.ctx->memory()->stats();
    EXPECT_EQ(last.current, third.current);
    EXPECT_EQ(last.by_tag, third.by_tag);
    EXPECT_EQ(last.peak, third.peak);
    EXPECT_EQ(last.cached, third.cached);
    EXPECT_EQ(last.saved, 0);
  }
}

TEST(Step, a_weight_that_is_nan_ends_the_run_with_step_parameter_and_samples_and_changes_nothing) {
  TempFolder folder;
  const std::string prefix = prepare_text(folder, "text", made_text(20, 600));
  const std::string run = folder / "run";
  const RunConfig config = tiny_config(prefix, {"checkpoint.save=" + run});
  {
    Session session = make_session(config, true, DeviceKind::Cpu);
    const ParameterPtr embedding = session.model->parameters().all().front();
    std::vector<double> values = to_doubles(*session.ctx, embedding->value);
    for (double& value : values) value = std::numeric_limits<double>::quiet_NaN();
    from_doubles(*session.ctx, embedding->value.detached(), values);
    open_run_folder(run, config, 0);
    save_run(session, {3, 12}, run);
  }
  const auto before = tensor_hashes(run, 3);
  try {
    run_training(config);
    FAIL() << "trained on NaN";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NonFiniteValue);
    EXPECT_EQ(static_cast<int>(error.exit_code()), 6);
    const std::string text = error.what();
    EXPECT_NE(text.find("the loss is not finite"), std::string::npos) << text;
    EXPECT_NE(text.find("step 4, decoder.final_layernorm.weight"), std::string::npos) << text;  // the first that backward reaches
    EXPECT_NE(text.find("micro-batch 0 of 2, samples 12, 13"), std::string::npos) << text;
  }
  set_log_file("");
  EXPECT_EQ(list_checkpoints(run).size(), 1U);
  EXPECT_EQ(tensor_hashes(run, 3), before);
  const std::vector<nlohmann::json> lines = metrics_lines(run, "nonfinite");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_TRUE(lines[0].at("loss").is_null());
  EXPECT_EQ(lines[0].at("nonfinite"), true);
  EXPECT_EQ(lines[0].at("step"), 4);
}

}  // namespace
}  // namespace deltron
