// Training steps on a GPU: losses follow the CPU's, the same bits run to run, no wait of the host while steps are launched, a
// gradient that is not finite changes nothing.
#include <cmath>
#include <limits>

#include "src/train/step.h"
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
