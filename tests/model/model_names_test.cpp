// Logical names and shapes of all parameters, their types and flags, and the statistics of their initial values.
#include <map>

#include "tests/support/tiny_model.h"

namespace deltron {
namespace {

std::map<std::string, Shape> names_of(const HybridLanguageModel& model) {
  std::map<std::string, Shape> names;
  for (const LogicalTensor& tensor : model.parameters().logical()) {
    EXPECT_EQ(names.count(tensor.name), 0u) << tensor.name;
    EXPECT_EQ(tensor.value().shape(), tensor.shape);
    names[tensor.name] = tensor.shape;
  }
  return names;
}

TEST(ModelNames, are_the_logical_ones_with_the_logical_shapes) {
  Context ctx(test::small_context());
  TransformerConfig config = test::tiny_config();
  config.num_layers = 2;
  config.linear_attention_freq.pattern = {1, 0};
  const HybridLanguageModel model(ctx, config, DType::F32, true, 1);
  const std::string gdn = "decoder.layers.0.", softmax = "decoder.layers.1.";
  // h 10, Dq 5, Dv 6, Hv 2, kc 3, H 4, G 2, d 4, F 7, vocab 13.
  std::map<std::string, Shape> expected = {
      {"embedding.word_embeddings.weight", {13, 10}},
      {gdn + "input_layernorm.weight", {10}},
      {gdn + "self_attention.in_proj.weight.query", {5, 10}},
      {gdn + "self_attention.in_proj.weight.key", {5, 10}},
      {gdn + "self_attention.in_proj.weight.value", {6, 10}},
      {gdn + "self_attention.in_proj.weight.z", {6, 10}},
      {gdn + "self_attention.in_proj.weight.beta", {2, 10}},
      {gdn + "self_attention.in_proj.weight.alpha", {2, 10}},
      {gdn + "self_attention.conv1d.weight.query", {5, 3}},
      {gdn + "self_attention.conv1d.weight.key", {5, 3}},
      {gdn + "self_attention.conv1d.weight.value", {6, 3}},
      {gdn + "self_attention.A_log", {2}},
      {gdn + "self_attention.dt_bias", {2}},
      {gdn + "self_attention.out_norm.weight", {3}},
      {gdn + "self_attention.out_proj.weight", {10, 6}},
      {softmax + "input_layernorm.weight", {10}},
      {softmax + "self_attention.linear_qkv.weight.query", {16, 10}},
      {softmax + "self_attention.linear_qkv.weight.gate", {16, 10}},
      {softmax + "self_attention.linear_qkv.weight.key", {8, 10}},
      {softmax + "self_attention.linear_qkv.weight.value", {8, 10}},
      {softmax + "self_attention.q_layernorm.weight", {4}},
      {softmax + "self_attention.k_layernorm.weight", {4}},
      {softmax + "self_attention.linear_proj.weight", {10, 16}},
      {"decoder.final_layernorm.weight", {10}},
      {"output_layer.weight", {13, 10}},
  };
  for (const std::string& layer : {gdn, softmax}) {
    expected[layer + "pre_mlp_layernorm.weight"] = {10};
    expected[layer + "mlp.linear_fc1.weight.gate"] = {7, 10};
    expected[layer + "mlp.linear_fc1.weight.up"] = {7, 10};
    expected[layer + "mlp.linear_fc2.weight"] = {10, 7};
  }
  EXPECT_EQ(names_of(model), expected);
  config.untie_embeddings_and_output_weights = config.attention_output_gate = config.qk_layernorm = false;
  expected.erase("output_layer.weight");
  expected.erase(softmax + "self_attention.linear_qkv.weight.gate");
  expected.erase(softmax + "self_attention.q_layernorm.weight");
  expected.erase(softmax + "self_attention.k_layernorm.weight");
  EXPECT_EQ(names_of(HybridLanguageModel(ctx, config, DType::F32, true, 1)), expected);
}

TEST(ModelNames, of_gdn2_have_f_b_and_w_and_decay_parameters_by_key_channel) {
  Context ctx(test::small_context());
  TransformerConfig config = test::tiny_config();
  config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
  const HybridLanguageModel model(ctx, config, DType::BF16, true, 1);
  const std::map<std::string, Shape> names = names_of(model);
  const std::string mixer = "decoder.layers.0.self_attention.";
  // h 10, Hk 1, Dq 5, Dv 6
  const std::map<std::string, Shape> expected = {{"in_proj.weight.query", {5, 10}}, {"in_proj.weight.key", {5, 10}}, {"in_proj.weight.value", {6, 10}},
                                                 {"in_proj.weight.z", {6, 10}},     {"in_proj.weight.f", {5, 10}},   {"in_proj.weight.b", {5, 10}},
                                                 {"in_proj.weight.w", {6, 10}},     {"conv1d.weight.query", {5, 3}}, {"conv1d.weight.key", {5, 3}},
                                                 {"conv1d.weight.value", {6, 3}},   {"A_log", {1}},                  {"dt_bias", {5}},
                                                 {"out_norm.weight", {3}},          {"out_proj.weight", {10, 6}}};
  std::map<std::string, Shape> mine;
  for (const auto& [name, shape] : names) {
    if (name.rfind(mixer, 0) == 0) mine[name.substr(mixer.size())] = shape;
  }
  EXPECT_EQ(mine, expected);
  for (const ParameterPtr& parameter : model.parameters().all()) {
    const bool decay = parameter->spec.name == mixer + "A_log" || parameter->spec.name == mixer + "dt_bias";
    if (!decay) continue;
    EXPECT_EQ(parameter->value.dtype(), DType::F32);
    EXPECT_FALSE(parameter->spec.weight_decay);
  }
}

TEST(ModelParameters, of_gdn2_start_with_time_steps_between_a_thousandth_and_a_tenth) {
  TransformerConfig config = test::tiny_config();
  config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
  config.linear_num_key_heads = config.linear_num_value_heads = 64;
  Context ctx(test::small_context());
  HybridLanguageModel model(ctx, config, DType::F32, true, 1);
  model.parameters().initialise(ctx, 9);
  for (const LogicalTensor& tensor : model.parameters().logical()) {
    if (tensor.name != "decoder.layers.0.self_attention.dt_bias") continue;
    double sum = 0;
    const std::vector<double> values = to_doubles(ctx, tensor.value());
    ASSERT_EQ(values.size(), 320u);
    for (double value : values) {
      const double step = std::log1p(std::exp(value));
      EXPECT_GE(step, 0.000999);
      EXPECT_LE(step, 0.1001);
      sum += std::log(step);
    }
    EXPECT_NEAR(sum / 320, std::log(0.01), 0.25);  // log-uniform: the mean of its logarithm is the middle
  }
}

TEST(ModelParameters, of_decay_gate_and_output_norm_stay_fp32_in_a_bf16_model) {
  Context ctx(test::small_context());
  const HybridLanguageModel model(ctx, test::tiny_config(), DType::BF16, true, 1);
  for (const ParameterPtr& parameter : model.parameters().all()) {
    const std::string& name = parameter->spec.name;
    const bool stable = name.find("A_log") != std::string::npos || name.find("dt_bias") != std::string::npos ||
                        name.find("out_norm") != std::string::npos;
    EXPECT_EQ(parameter->value.dtype(), stable ? DType::F32 : DType::BF16) << name;
    EXPECT_EQ(parameter->main_gradient.dtype(), DType::F32) << name;
    EXPECT_EQ(parameter->spec.weight_decay, parameter->value.rank() > 1) << name;
  }
}

TEST(ModelParameters, start_finite_with_the_declared_statistics_whatever_the_model_around_them) {
  TransformerConfig config = test::tiny_config();
  config.hidden_size = 64;
  config.ffn_hidden_size = 96;
  config.vocab_size = 300;
  config.linear_num_key_heads = 4;
  config.linear_num_value_heads = 64;
  config.init_method_std = 0.02;
  Context ctx(test::small_context());
  HybridLanguageModel model(ctx, config, DType::F32, true, 1);
  model.parameters().initialise(ctx, 9);
  std::map<std::string, std::vector<double>> values;
  for (const LogicalTensor& tensor : model.parameters().logical()) {
    values[tensor.name] = to_doubles(ctx, tensor.value());
    for (double value : values[tensor.name]) ASSERT_TRUE(std::isfinite(value)) << tensor.name;
  }
  for (double value : values.at("decoder.layers.0.self_attention.A_log")) {
    EXPECT_GE(value, std::log(1.0));
    EXPECT_LE(value, std::log(16.0) + 1e-6);
  }
  EXPECT_EQ(values.at("decoder.layers.0.self_attention.dt_bias"), std::vector<double>(64, 1.0));
  EXPECT_EQ(values.at("decoder.layers.0.self_attention.out_norm.weight"), std::vector<double>(3, 1.0));
  EXPECT_EQ(values.at("decoder.final_layernorm.weight"), std::vector<double>(64, 1.0));
  EXPECT_LE(test::largest(values.at("decoder.layers.0.self_attention.conv1d.weight.query")), 1 / std::sqrt(3.0));
  const auto deviation = [&](const std::string& name) {
    double square = 0;
    for (double value : values.at(name)) square += value * value;
    return std::sqrt(square / static_cast<double>(values.at(name).size()));
  };
  EXPECT_NEAR(deviation("embedding.word_embeddings.weight"), 0.02, 0.001);
  EXPECT_NEAR(deviation("decoder.layers.0.self_attention.in_proj.weight.z"), 0.02, 0.001);
  EXPECT_NEAR(deviation("decoder.layers.0.self_attention.out_proj.weight"), 0.02 / std::sqrt(6.0), 0.0005);
  EXPECT_NEAR(deviation("decoder.layers.2.mlp.linear_fc2.weight"), 0.02 / std::sqrt(6.0), 0.0005);
  // The first layer starts the same in a model that has another kind of second layer.
  config.linear_attention_freq.pattern = {1, 1, 1};
  HybridLanguageModel other(ctx, config, DType::F32, false, 2);
  other.parameters().initialise(ctx, 9);
  for (const LogicalTensor& tensor : other.parameters().logical()) {
    if (tensor.name.find("layers.0.") != std::string::npos) {
      EXPECT_EQ(to_doubles(ctx, tensor.value()), values.at(tensor.name)) << tensor.name;
    }
  }
  config.layernorm_zero_centered_gamma = config.linear_output_norm_zero_centered_gamma = true;
  HybridLanguageModel centred(ctx, config, DType::F32, false, 2);
  centred.parameters().initialise(ctx, 9);
  for (const LogicalTensor& tensor : centred.parameters().logical()) {
    if (tensor.name.find("norm") != std::string::npos) {
      EXPECT_EQ(test::largest(to_doubles(ctx, tensor.value())), 0) << tensor.name;
    }
  }
}

}  // namespace
}  // namespace deltron
