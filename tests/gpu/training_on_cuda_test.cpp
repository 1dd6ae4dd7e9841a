// Training steps on a GPU: losses follow the CPU's, the same bits run to run, no wait of the host while steps are launched, a
// gradient that is not finite changes nothing.
#include <cmath>
#include <limits>
#include <optional>

#include "src/train/step.h"
#include "tests/support/host_waits.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using namespace deltron::test;

HostBatch random_batch(std::int64_t first_sample, std::int64_t samples, std::int64_t length) {
  HostBatch batch;
  for (std::int64_t s = 0; s < samples; ++s) {
    RngStream random({3, 0, kRngSiteData}, static_cast<std::uint64_t>(first_sample + s));
    Sample sample;
    for (std::int64_t t = 0; t < length; ++t) {
      sample.tokens.push_back(static_cast<std::int32_t>(random.below(256)));
      sample.labels.push_back(static_cast<std::int32_t>(random.below(64)));
    }
    sample.segment_ends = {length / 2, length};
    append_sample(batch, first_sample + s, sample);
  }
  return batch;
}

std::vector<HostBatch> batches_of(std::int64_t step) { return {random_batch(8 * step, 4, 32), random_batch(8 * step + 4, 4, 32)}; }

struct Trained {
  std::vector<double> losses, norms, weights;
};
Trained trained(DeviceKind device, int steps, const std::vector<std::string>& overrides = {}) {
  Session session = make_session(tiny_config("unused", overrides), true, device);
  Trained result;
  for (int step = 0; step < steps; ++step) {
    const StepResult one = train_step(session, batches_of(step), 1e-2);
    result.losses.push_back(one.loss);
    result.norms.push_back(one.gradient_norm);
  }
  for (const ParameterPtr& parameter : session.model->parameters().all()) {
    const std::vector<double> values = to_doubles(*session.ctx, parameter->value);
    result.weights.insert(result.weights.end(), values.begin(), values.end());
  }
  return result;
}

TEST(TrainingOnCuda, ten_steps_follow_the_cpu) {
  const Trained cpu = trained(DeviceKind::Cpu, 10), cuda = trained(DeviceKind::Cuda, 10);
  for (std::size_t step = 0; step < 10; ++step) {
    EXPECT_NEAR(cuda.losses[step], cpu.losses[step], 1e-4 * cpu.losses[step]) << step;
    EXPECT_NEAR(cuda.norms[step], cpu.norms[step], 1e-3 * cpu.norms[step]) << step;
  }
  EXPECT_LT(cuda.losses.back(), cuda.losses.front()) << "nothing was learned";
}

TEST(TrainingOnCuda, bf16_follows_fp32) {
  const Trained exact = trained(DeviceKind::Cuda, 10), half = trained(DeviceKind::Cuda, 10, {"training.bf16=true"});
  for (std::size_t step = 0; step < 10; ++step)
    EXPECT_NEAR(half.losses[step], exact.losses[step], 0.01 * exact.losses[step]) << step;
}

TEST(TrainingOnCuda, run_twice_gives_the_same_bits) {
  for (const char* type : {"training.bf16=false", "training.bf16=true"}) {
    const Trained one = trained(DeviceKind::Cuda, 6, {type}), two = trained(DeviceKind::Cuda, 6, {type});
    EXPECT_EQ(one.losses, two.losses);
    EXPECT_EQ(one.norms, two.norms);
    EXPECT_TRUE(one.weights == two.weights);
  }
}

TEST(TrainingOnCuda, launching_a_step_waits_for_nothing) {
  Session session = make_session(tiny_config("unused", {"training.bf16=true"}), true, DeviceKind::Cuda);
  train_step(session, batches_of(0), 1e-3);
  session.ctx->synchronize();
  const std::int64_t before = session.ctx->host_synchronizations();
  std::vector<LaunchedStep> steps;
  for (int step = 1; step < 4; ++step) steps.push_back(launch_step(session, batches_of(step), 1e-3));
  EXPECT_EQ(session.ctx->host_synchronizations(), before);
  for (const LaunchedStep& step : steps) {
    const StepResult result = step.read();
    EXPECT_TRUE(std::isfinite(result.loss) && result.loss > 0 && result.gradient_norm > 0 && !result.nonfinite);
  }
}

// As the trainer does it: a step is launched, then the numbers of the one before are read. Two micro-batches, dropout, everything that can
// be recomputed or offloaded. Calls of the run-time that may wait are counted where the linker found them.
TEST(TrainingOnCuda, no_step_makes_the_host_wait_under_offload_recompute_accumulation_and_logging_of_every_step) {
  const std::vector<std::vector<std::string>> memory = {
      {},
      {"offload.fine_grained_activation_offloading=true", "offload.offload_modules=[gdn_qkv,core_attn,attn_proj]"},
      {"offload.fine_grained_activation_offloading=true", "offload.offload_modules=[gdn_core_attn]", "recompute.recompute_granularity=selective",
       "recompute.recompute_modules=[gdn_in_proj,gdn_norm_out,mlp]"},
      {"offload.fine_grained_activation_offloading=true", "offload.offload_modules=[gdn_qkv]", "recompute.recompute_granularity=selective",
       "recompute.recompute_modules=[gdn_qkv,gdn_norm_out,core_attn,mlp]"},
      {"offload.fine_grained_activation_offloading=true", "offload.offload_modules=[layer_input]", "recompute.recompute_granularity=full",
       "recompute.recompute_method=uniform", "recompute.recompute_num_layers=1"}};
  for (const char* variant : {"gdn", "gdn2"}) {
    for (const std::vector<std::string>& switches : memory) {
      std::vector<std::string> overrides = switches;
      overrides.insert(overrides.end(), {"training.bf16=true", "model.num_layers=4", "model.linear_attention_freq=[1,0,1,0]",
                                         std::string("model.experimental_attention_variant=") + variant});
      if (!switches.empty()) overrides.push_back("offload.min_offloaded_tensor_size=1");
      SCOPED_TRACE(variant + (switches.empty() ? std::string() : " " + switches[1] + " " + switches.back()));
      Session session = make_session(tiny_config("unused", overrides), true, DeviceKind::Cuda);
      std::optional<LaunchedStep> ahead;
      std::int64_t counted = 0, called = 0;
      for (int step = 0; step < 8; ++step) {
        const std::vector<HostBatch> batches = batches_of(step);
        const std::int64_t counted_before = session.ctx->host_synchronizations(), called_before = host_waits();
        LaunchedStep launched = launch_step(session, batches, 1e-3);
        if (step >= 3) {  // memory has been taken from the driver by then
          counted += session.ctx->host_synchronizations() - counted_before;
          called += host_waits() - called_before;
        }
        if (ahead) {
          const std::int64_t before_reading = host_waits();
          EXPECT_TRUE(std::isfinite(ahead->read().loss));
          EXPECT_EQ(host_waits(), before_reading + 1) << "the count sees the wait for the step before";
        }
        ahead.reset();
        ahead.emplace(std::move(launched));
      }
      EXPECT_EQ(counted, 0);
      EXPECT_EQ(called, 0);
    }
  }
}

TEST(TrainingOnCuda, a_step_that_is_not_finite_changes_no_weight) {
  Session session = make_session(tiny_config("unused"), true, DeviceKind::Cuda);
  train_step(session, batches_of(0), 1e-2);
  const auto weights = [&] {
    std::vector<double> all;
    for (const ParameterPtr& parameter : session.model->parameters().all()) {
      const std::vector<double> values = to_doubles(*session.ctx, parameter->value);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<double> before = weights();
  const Tensor gradient = session.model->parameters().all().back()->main_gradient;
  const StepResult result = train_step(session, batches_of(1), 1e-2, [&](std::int64_t micro_batch) {
    if (micro_batch != 1) return;
    std::vector<double> values = to_doubles(*session.ctx, gradient);
    values.back() = std::numeric_limits<double>::quiet_NaN();
    from_doubles(*session.ctx, gradient, values);
  });
  EXPECT_TRUE(result.nonfinite);
  EXPECT_TRUE(weights() == before);
}

}  // namespace
}  // namespace deltron
