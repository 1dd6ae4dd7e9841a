// The gradient of every parameter of a whole hybrid model against finite differences in fp64, with each switch turned; lower
// precisions against fp64.
#include "tests/support/tiny_model.h"

namespace deltron {
namespace {

using test::ModelRun;

constexpr double kLimit = 1e-6;  // relative to the largest element of the same parameter's gradient

class ModelGradients : public ::testing::TestWithParam<std::size_t> {};

TEST_P(ModelGradients, of_every_parameter_agree_with_finite_differences) {
  TransformerConfig config = test::tiny_config();
  test::switches()[GetParam()].turn(config);
  ModelRun run(config, DType::F64);
  const test::Batch batch = test::packed_batch({1, 5, 68}, config.vocab_size);  // the last one crosses a chunk's border
  run.loss_and_gradients(batch);
  GradModeGuard off(run.ctx, false);
  const auto loss = [&] { return to_doubles(run.ctx, run.loss(batch))[0]; };
  for (const ParameterPtr& parameter : run.model.parameters().all()) {
    const std::vector<double> gradient = to_doubles(run.ctx, parameter->main_gradient);
    const double scale = test::largest(gradient);
    ASSERT_GT(scale, 1e-7) << parameter->spec.name << " has no influence";
    double* data = parameter->value.data_as<double>();
    const auto count = static_cast<std::size_t>(parameter->value.count());
    // Six elements spread over the parameter, and the one that matters most.
    std::vector<std::size_t> elements = {0};
    for (std::size_t i = 0; i < count; ++i) {
      if (std::fabs(gradient[i]) == scale) elements[0] = i;
    }
    for (std::size_t i = 0; i < 6; ++i) elements.push_back((i * count + i * 5) / 6 % count);
    for (std::size_t i : elements) {
      const double before = data[i], step = 1e-4;
      const auto slope = [&](double width) {
        data[i] = before + width;
        const double above = loss();
        data[i] = before - width;
        const double below = loss();
        data[i] = before;
        return (above - below) / (2 * width);
      };
      // Fourth order: what is left of the differences is their rounding, about 1e-16 |loss| / step.
      const double expected = (4 * slope(step) - slope(2 * step)) / 3;
      EXPECT_NEAR(expected, gradient[i], kLimit * scale + 1e-10) << parameter->spec.name << "[" << i << "]";
    }
  }
}

std::string switch_name(const ::testing::TestParamInfo<std::size_t>& info) { return test::switches()[info.param].name; }
INSTANTIATE_TEST_SUITE_P(Switches, ModelGradients, ::testing::Range(std::size_t{0}, test::switches().size()), switch_name);

// Copies the values of one model into another of a different type, section by section.
void copy_parameters(ModelRun& from, ModelRun& to) {
  for (std::size_t i = 0; i < from.model.parameters().all().size(); ++i) {
    from_doubles(to.ctx, to.model.parameters().all()[i]->value, to_doubles(from.ctx, from.model.parameters().all()[i]->value));
  }
}

TEST(ModelPrecision, fp32_is_close_to_fp64_and_bf16_within_a_few_percent) {
  TransformerConfig config = test::tiny_config();
  // Heads of three values come close to zero together, where a norm is ill-conditioned in any precision: wider ones here.
  config.hidden_size = 64;
  config.ffn_hidden_size = 96;
  config.linear_key_head_dim = config.linear_value_head_dim = config.kv_channels = 16;
  config.init_method_std = 0.1;
  config.hidden_dropout = 0.1;
  config.attention_dropout = 0.1;
  const test::Batch batch = test::packed_batch({3, 90, 20}, config.vocab_size);
  ModelRun half(config, DType::BF16), single(config, DType::F32), twice(config, DType::F64);
  // Long memory: where a state forgets at once, outputs are parallel to v and the output norm takes away what q and k did, so that
  // their gradients are small remainders, which no 8-bit mantissa can resolve.
  for (const ParameterPtr& parameter : half.model.parameters().all()) {
    if (parameter->spec.name.find("dt_bias") == std::string::npos) continue;
    from_doubles(half.ctx, parameter->value, std::vector<double>(static_cast<std::size_t>(parameter->value.count()), -5.0));
  }
  copy_parameters(half, single);  // bf16 values are exact in the wider types
  copy_parameters(half, twice);
  const std::vector<double> h = half.loss_and_gradients(batch), s = single.loss_and_gradients(batch), t = twice.loss_and_gradients(batch);
  EXPECT_NEAR(s[0], t[0], 1e-5 * t[0]);
  EXPECT_NEAR(h[0], t[0], 0.01 * t[0]);
  std::size_t begin = 1;
  for (const ParameterPtr& parameter : twice.model.parameters().all()) {
    const std::size_t count = static_cast<std::size_t>(parameter->value.count());
    const auto part = [&](const std::vector<double>& all) {
      return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(begin + count));
    };
    EXPECT_LE(test::relative_difference(part(s), part(t)), 2e-5) << parameter->spec.name;
    double difference = 0, size = 0;  // in norm: single elements of a tiny bf16 gradient may be further off
    for (std::size_t i = begin; i < begin + count; ++i) {
      difference += (h[i] - t[i]) * (h[i] - t[i]);
      size += t[i] * t[i];
    }
    // Decay parameters collect terms of both signs over all tokens of a head, which nearly cancel: rounding weighs more there.
    const bool decay = parameter->spec.name.find("A_log") != std::string::npos || parameter->spec.name.find("dt_bias") != std::string::npos;
    EXPECT_LE(std::sqrt(difference / size), decay ? 0.2 : 0.05) << parameter->spec.name;
    begin += count;
  }
}

}  // namespace
}  // namespace deltron
