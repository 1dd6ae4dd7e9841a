// The optimizer over lists of parameters: decay groups, clipping, refusal of NaN, bf16 weights below fp32 masters, golden AdamW.
#include "src/optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "src/base/rng.h"
#include "src/tensor/context.h"
#include "tests/support/golden_file.h"

namespace deltron {
namespace {

using Values = std::vector<double>;

OptimizerConfig adamw(double weight_decay = 0, double clip = 0) {
  OptimizerConfig config;
  config.weight_decay = weight_decay;
  config.clip_grad = clip;
  return config;
}

OptimizedParameter parameter(Context& ctx, const std::string& name, DType dtype, const Values& weight, const Values& gradient,
                             bool decays = true) {
  const Shape shape = {static_cast<std::int64_t>(weight.size())};
  return {name, make_tensor(ctx, shape, dtype, weight, "weight"), make_tensor(ctx, shape, compute_dtype(dtype), gradient, "gradient"), decays};
}

TEST(Optimizer, decays_by_group_and_on_request_everywhere) {
  Context ctx({.threads = 1});
  for (bool everywhere : {false, true}) {
    for (OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Sgd}) {
      OptimizerConfig config = adamw(0.5);
      config.optimizer = kind;
      config.decay_all_parameters = everywhere;
      // Zero gradients: what moves is decay.
      Optimizer optimizer(ctx, config,
                          {parameter(ctx, "matrix", DType::F64, {2, -4}, {0, 0}), parameter(ctx, "bias", DType::F64, {2, -4}, {0, 0}, false)});
      optimizer.step(ctx, 0.1);
      EXPECT_EQ(to_doubles(ctx, optimizer.parameters()[0].weight), (Values{2 * 0.95, -4 * 0.95}));
      EXPECT_EQ(to_doubles(ctx, optimizer.parameters()[1].weight), everywhere ? (Values{2 * 0.95, -4 * 0.95}) : (Values{2, -4}));
    }
  }
}

TEST(Optimizer, clips_by_the_norm_over_all_parameters) {
  Context ctx({.threads = 1});
  OptimizerConfig config = adamw(0, 1.0);
  config.optimizer = OptimizerKind::Sgd;
  Optimizer optimizer(ctx, config, {parameter(ctx, "a", DType::F64, {0}, {6}), parameter(ctx, "b", DType::F64, {0, 0}, {0, -8})});
  optimizer.step(ctx, 1.0);
  const double scale = 1.0 / (10.0 + 1e-6);
  EXPECT_DOUBLE_EQ(to_doubles(ctx, optimizer.parameters()[0].weight)[0], -6 * scale);
  EXPECT_DOUBLE_EQ(to_doubles(ctx, optimizer.parameters()[1].weight)[1], 8 * scale);
  EXPECT_DOUBLE_EQ(optimizer.gradient_norm(ctx), 10.0);
}

TEST(Optimizer, a_bad_gradient_leaves_every_weight_and_moment_as_it_was) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (double bad : {nan, infinity, -infinity}) {
    for (double clip : {0.0, 1.0}) {
      Context ctx({.threads = 2});
      Optimizer optimizer(ctx, adamw(0.1, clip),
                          {parameter(ctx, "first", DType::BF16, {1, 2, 3}, {0.1, 0.2, 0.3}), parameter(ctx, "second", DType::F32, {4, 5}, {1, 1})});
      optimizer.masters_from_weights(ctx);
      optimizer.step(ctx, 0.01);
      ASSERT_FALSE(optimizer.nonfinite(ctx));
      const auto all = [&] {
        std::vector<Values> values;
        for (std::size_t i = 0; i < 2; ++i) {
          const OptimizerStateTensors& state = optimizer.state()[i];
          for (const Tensor& tensor : {optimizer.parameters()[i].weight, state.master, state.exp_avg, state.exp_avg_sq}) {
            values.push_back(to_doubles(ctx, tensor));
          }
        }
        return values;
      };
      const std::vector<Values> before = all();
      from_doubles(ctx, optimizer.parameters()[1].gradient, {bad, 1});
      optimizer.step(ctx, 0.01);
      EXPECT_TRUE(optimizer.nonfinite(ctx));
      EXPECT_EQ(optimizer.norm().find_nonfinite(ctx).index, 1);
      EXPECT_EQ(optimizer.norm().find_nonfinite(ctx).bad, 1);
      EXPECT_EQ(all(), before) << bad << ", clip " << clip;
    }
  }
}

TEST(Optimizer, bf16_weights_follow_fp32_masters_that_keep_what_bf16_would_lose) {
  Context ctx({.threads = 1});
  const Values start = {1.0, -2.0, 0.5};
  const Values gradient = {1, 1, -1};
  Optimizer narrow(ctx, adamw(0.01), {parameter(ctx, "w", DType::BF16, start, gradient)});
  narrow.masters_from_weights(ctx);
  Optimizer wide(ctx, adamw(0.01), {parameter(ctx, "w", DType::F32, start, gradient)});
  EXPECT_EQ(narrow.state()[0].master.dtype(), DType::F32);
  EXPECT_FALSE(narrow.state()[0].master.same_view(narrow.parameters()[0].weight));
  EXPECT_TRUE(wide.state()[0].master.same_view(wide.parameters()[0].weight));
  for (int i = 0; i < 50; ++i) {
    narrow.step(ctx, 1e-4);  // a 1e-4 step on 1.0 is far below the spacing of bf16
    wide.step(ctx, 1e-4);
  }
  const Values master = to_doubles(ctx, narrow.state()[0].master);
  EXPECT_EQ(master, to_doubles(ctx, wide.parameters()[0].weight)) << "the master takes the updates of an fp32 weight";
  EXPECT_NEAR(master[0], 0.995, 2e-4);
  const Tensor rounded = make_tensor(ctx, {3}, DType::BF16, master, "rounded");
  EXPECT_EQ(to_doubles(ctx, narrow.parameters()[0].weight), to_doubles(ctx, rounded));
  EXPECT_NE(to_doubles(ctx, narrow.parameters()[0].weight), start);
}

TEST(Optimizer, masters_and_weights_can_each_be_made_from_the_other) {
  Context ctx({.threads = 1});
  Optimizer optimizer(ctx, adamw(), {parameter(ctx, "w", DType::BF16, {1.5, 2.5}, {0, 0})});
  EXPECT_EQ(to_doubles(ctx, optimizer.state()[0].master), (Values{0, 0}));
  optimizer.masters_from_weights(ctx);
  EXPECT_EQ(to_doubles(ctx, optimizer.state()[0].master), (Values{1.5, 2.5}));
  from_doubles(ctx, optimizer.state()[0].master, {3.0, 1.001});
  optimizer.weights_from_masters(ctx);
  EXPECT_EQ(to_doubles(ctx, optimizer.parameters()[0].weight), (Values{3.0, 1.0}));
}

TEST(Optimizer, adamw_follows_the_golden_updates) {
  const test::GoldenFile golden("optim_adamw.safetensors");
  OptimizerConfig config;
  config.adam_beta1 = golden.number("beta1");
  config.adam_beta2 = golden.number("beta2");
  config.adam_eps = golden.number("eps");
  config.clip_grad = golden.number("clip_grad");
  config.weight_decay = 0;
  const nlohmann::json rates = nlohmann::json::parse("[" + golden.metadata.at("lr") + "]");
  Context ctx({.threads = 2});
  std::vector<OptimizedParameter> parameters;
  bool clipped = false, undecayed = false;
  for (const auto& [name, tensor] : golden.tensors) {
    if (name.rfind("param0.", 0) != 0) continue;
    const std::string parameter = name.substr(7);
    const double decay = golden.number("weight_decay." + parameter);
    config.weight_decay = std::max(config.weight_decay, decay);
    undecayed = undecayed || decay == 0;
    parameters.push_back({parameter, make_tensor(ctx, tensor.shape, DType::F32, tensor.values, "weight"),
                          Tensor::zeros(ctx, tensor.shape, DType::F32, "gradient"), decay != 0});
  }
  Optimizer optimizer(ctx, config, parameters);
  const auto compare = [&](const std::string& name, const Tensor& ours) {
    const Values& expected = golden.values(name);
    const Values values = to_doubles(ctx, ours);
    ASSERT_EQ(values.size(), expected.size());
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += (values[i] - expected[i]) * (values[i] - expected[i]);
      size += expected[i] * expected[i];
    }
    EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(size)) << name;
  };
  for (std::size_t step = 0; step < rates.size(); ++step) {
    const std::string number = std::to_string(step);
    for (const OptimizedParameter& p : parameters) from_doubles(ctx, p.gradient, golden.values("grad." + number + "." + p.name));
    optimizer.step(ctx, rates[step].get<double>());
    const double norm = golden.values("grad_norm." + number).front();
    clipped = clipped || norm > config.clip_grad;
    EXPECT_NEAR(optimizer.gradient_norm(ctx), norm, 1e-6 * norm);
    for (const OptimizedParameter& p : parameters) compare("param." + number + "." + p.name, p.weight);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    compare("exp_avg." + parameters[i].name, optimizer.state()[i].exp_avg);
    compare("exp_avg_sq." + parameters[i].name, optimizer.state()[i].exp_avg_sq);
  }
  EXPECT_TRUE(clipped && undecayed) << "the file must reach clipping and a parameter without decay";
  EXPECT_EQ(optimizer.updates(), 6);
}

}  // namespace
}  // namespace deltron
