// Qwen3.5 folders: the config, the published weight layout row by row, both directions, names and shapes that do not fit.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "src/checkpoint/hf_config.h"
#include "src/checkpoint/hf_model.h"
#include "src/checkpoint/json_strict.h"
#include "tests/checkpoint/temp_folder.h"

namespace deltron {
namespace {

using nlohmann::json;

const std::string& golden() {
  static const std::string path = std::string(DELTRON_SOURCE_DIR) + "/tests/golden/hf_qwen3_5_tiny";
  return path;
}

// h 6, two layers (one of each kind), q/k 2 heads of 3, v 4 heads of 2, softmax 3 heads of 4 in 1 group.
json small_config() {
  return {{"model_type", "qwen3_5_text"},
          {"num_hidden_layers", 2},
          {"hidden_size", 6},
          {"intermediate_size", 5},
          {"vocab_size", 7},
          {"layer_types", {"linear_attention", "full_attention"}},
          {"linear_num_key_heads", 2},
          {"linear_num_value_heads", 4},
          {"linear_key_head_dim", 3},
          {"linear_value_head_dim", 2},
          {"linear_conv_kernel_dim", 4},
          {"num_attention_heads", 3},
          {"num_key_value_heads", 1},
          {"head_dim", 4},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"tie_word_embeddings", false},
          {"rms_norm_eps", 1e-5},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500.0}, {"partial_rotary_factor", 0.5}}}};
}

// The tensors of small_config in the published layout (key dimension 6, value dimension 8).
std::map<std::string, std::vector<std::int64_t>> small_shapes() {
  return {{"model.embed_tokens.weight", {7, 6}},
          {"model.norm.weight", {6}},
          {"lm_head.weight", {7, 6}},
          {"model.layers.0.input_layernorm.weight", {6}},
          {"model.layers.0.post_attention_layernorm.weight", {6}},
          {"model.layers.0.mlp.gate_proj.weight", {5, 6}},
          {"model.layers.0.mlp.up_proj.weight", {5, 6}},
          {"model.layers.0.mlp.down_proj.weight", {6, 5}},
          {"model.layers.0.linear_attn.in_proj_qkv.weight", {20, 6}},
          {"model.layers.0.linear_attn.in_proj_z.weight", {8, 6}},
          {"model.layers.0.linear_attn.in_proj_b.weight", {4, 6}},
          {"model.layers.0.linear_attn.in_proj_a.weight", {4, 6}},
          {"model.layers.0.linear_attn.conv1d.weight", {20, 1, 4}},
          {"model.layers.0.linear_attn.A_log", {4}},
          {"model.layers.0.linear_attn.dt_bias", {4}},
          {"model.layers.0.linear_attn.norm.weight", {2}},
          {"model.layers.0.linear_attn.out_proj.weight", {6, 8}},
          {"model.layers.1.input_layernorm.weight", {6}},
          {"model.layers.1.post_attention_layernorm.weight", {6}},
          {"model.layers.1.mlp.gate_proj.weight", {5, 6}},
          {"model.layers.1.mlp.up_proj.weight", {5, 6}},
          {"model.layers.1.mlp.down_proj.weight", {6, 5}},
          {"model.layers.1.self_attn.q_proj.weight", {24, 6}},
          {"model.layers.1.self_attn.k_proj.weight", {4, 6}},
          {"model.layers.1.self_attn.v_proj.weight", {4, 6}},
          {"model.layers.1.self_attn.o_proj.weight", {6, 12}},
          {"model.layers.1.self_attn.q_norm.weight", {4}},
          {"model.layers.1.self_attn.k_norm.weight", {4}}};
}

// Every value is its row: 1000 * (number of the tensor) + row.
std::map<std::string, HostArray> indexed_weights(const std::map<std::string, std::vector<std::int64_t>>& shapes) {
  std::map<std::string, HostArray> weights;
  double number = 1;
  for (const auto& [name, shape] : shapes) {
    const std::int64_t row = element_count(shape) / shape[0];
    std::vector<double> values;
    for (std::int64_t i = 0; i < element_count(shape); ++i) values.push_back(1000 * number + static_cast<double>(i / row));
    weights.emplace(name, from_doubles(name, DType::F32, shape, values));
    ++number;
  }
  return weights;
}

void write_model(const std::string& folder, const json& config, const std::map<std::string, HostArray>& weights,
                 const std::string& prefix = "model.") {
  std::vector<HostArray> renamed;
  for (const auto& [name, array] : weights) {
    renamed.push_back(array);
    if (name.compare(0, 6, "model.") == 0) renamed.back().name = prefix + name.substr(6);
  }
  std::vector<HostView> views;
  for (const HostArray& array : renamed) views.push_back(array.view());
  write_file_atomically(join_path(folder, "config.json"), config.dump());
  write_safetensors(join_path(folder, "model.safetensors"), views);
}

// First value of every row, less the 1000s of its tensor: the rows a logical tensor was made of.
std::vector<int> rows_of(const HostArray& array) {
  const std::vector<double> values = to_doubles(array.view());
  const std::size_t width = values.size() / static_cast<std::size_t>(array.shape[0]);
  std::vector<int> rows;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % width == 0) rows.push_back(static_cast<int>(std::fmod(values[i], 1000)));
    EXPECT_EQ(values[i], values[i - i % width]) << array.name;  // a row stays whole
  }
  return rows;
}

std::vector<int> count_from(int first, int count) {
  std::vector<int> rows;
  for (int i = 0; i < count; ++i) rows.push_back(first + i);
  return rows;
}

class SmallModel : public ::testing::Test {
 protected:
  void expect_rows(const HfModel& model, const std::string& logical, const std::string& hf, const std::vector<int>& rows,
                   const std::vector<std::int64_t>& shape) {
    const HostArray array = model.read_logical(logical);
    EXPECT_EQ(array.shape, shape) << logical;
    EXPECT_EQ(rows_of(array), rows) << logical;
    const double first = to_doubles(array.view()).at(0);
    EXPECT_EQ(std::floor(first / 1000), std::floor(to_doubles(weights_.at(hf).view()).at(0) / 1000))
        << logical << " is not from " << hf;
  }
  void check_layout(const HfModel& model) {
    const std::string gdn = "decoder.layers.0.self_attention.";
    const std::string linear = "model.layers.0.linear_attn.";
    expect_rows(model, gdn + "in_proj.weight.query", linear + "in_proj_qkv.weight", count_from(0, 6), {6, 6});
    expect_rows(model, gdn + "in_proj.weight.key", linear + "in_proj_qkv.weight", count_from(6, 6), {6, 6});
    expect_rows(model, gdn + "in_proj.weight.value", linear + "in_proj_qkv.weight", count_from(12, 8), {8, 6});
    expect_rows(model, gdn + "in_proj.weight.z", linear + "in_proj_z.weight", count_from(0, 8), {8, 6});
    expect_rows(model, gdn + "in_proj.weight.beta", linear + "in_proj_b.weight", count_from(0, 4), {4, 6});
    expect_rows(model, gdn + "in_proj.weight.alpha", linear + "in_proj_a.weight", count_from(0, 4), {4, 6});
    expect_rows(model, gdn + "conv1d.weight.query", linear + "conv1d.weight", count_from(0, 6), {6, 4});
    expect_rows(model, gdn + "conv1d.weight.key", linear + "conv1d.weight", count_from(6, 6), {6, 4});
    expect_rows(model, gdn + "conv1d.weight.value", linear + "conv1d.weight", count_from(12, 8), {8, 4});
    expect_rows(model, gdn + "A_log", linear + "A_log", count_from(0, 4), {4});
    expect_rows(model, gdn + "dt_bias", linear + "dt_bias", count_from(0, 4), {4});
    expect_rows(model, gdn + "out_norm.weight", linear + "norm.weight", count_from(0, 2), {2});
    expect_rows(model, gdn + "out_proj.weight", linear + "out_proj.weight", count_from(0, 6), {6, 8});
    const std::string attention = "decoder.layers.1.self_attention.";
    const std::string full = "model.layers.1.self_attn.";
    const std::vector<int> queries = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19};
    const std::vector<int> gates = {4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23};
    expect_rows(model, attention + "linear_qkv.weight.query", full + "q_proj.weight", queries, {12, 6});
    expect_rows(model, attention + "linear_qkv.weight.gate", full + "q_proj.weight", gates, {12, 6});
    expect_rows(model, attention + "linear_qkv.weight.key", full + "k_proj.weight", count_from(0, 4), {4, 6});
    expect_rows(model, attention + "linear_qkv.weight.value", full + "v_proj.weight", count_from(0, 4), {4, 6});
    expect_rows(model, attention + "q_layernorm.weight", full + "q_norm.weight", count_from(0, 4), {4});
    expect_rows(model, attention + "k_layernorm.weight", full + "k_norm.weight", count_from(0, 4), {4});
    expect_rows(model, attention + "linear_proj.weight", full + "o_proj.weight", count_from(0, 6), {6, 12});
    for (const std::string layer : {"0", "1"}) {
      const std::string ours = "decoder.layers." + layer + ".";
      const std::string theirs = "model.layers." + layer + ".";
      expect_rows(model, ours + "input_layernorm.weight", theirs + "input_layernorm.weight", count_from(0, 6), {6});
      expect_rows(model, ours + "pre_mlp_layernorm.weight", theirs + "post_attention_layernorm.weight", count_from(0, 6), {6});
      expect_rows(model, ours + "mlp.linear_fc1.weight.gate", theirs + "mlp.gate_proj.weight", count_from(0, 5), {5, 6});
      expect_rows(model, ours + "mlp.linear_fc1.weight.up", theirs + "mlp.up_proj.weight", count_from(0, 5), {5, 6});
      expect_rows(model, ours + "mlp.linear_fc2.weight", theirs + "mlp.down_proj.weight", count_from(0, 6), {6, 5});
    }
    expect_rows(model, "embedding.word_embeddings.weight", "model.embed_tokens.weight", count_from(0, 7), {7, 6});
    expect_rows(model, "decoder.final_layernorm.weight", "model.norm.weight", count_from(0, 6), {6});
    expect_rows(model, "output_layer.weight", "lm_head.weight", count_from(0, 7), {7, 6});
    EXPECT_EQ(model.names().size(), 33u);
  }
  std::map<std::string, HostArray> weights_ = indexed_weights(small_shapes());
  TempFolder folder_;
};

TEST_F(SmallModel, every_logical_tensor_has_the_rows_of_the_published_layout) {
  write_model(folder_.path(), small_config(), weights_);
  check_layout(HfModel(folder_.path()));
}

TEST_F(SmallModel, multimodal_folders_read_the_same_and_pass_over_vision_and_mtp) {
  const json config = {{"model_type", "qwen3_5"}, {"text_config", small_config()}, {"tie_word_embeddings", false}};
  weights_.emplace("visual.patch.weight", from_doubles("model.visual.patch.weight", DType::BF16, {2}, {1, 2}));
  weights_.emplace("mtp.fc.weight", from_doubles("mtp.fc.weight", DType::BF16, {2}, {1, 2}));
  write_model(folder_.path(), config, weights_, "model.language_model.");
  const HfModel model(folder_.path());
  EXPECT_EQ(model.passed_over(), (std::vector<std::string>{"model.visual.patch.weight", "mtp.fc.weight"}));
  check_layout(model);
}

TEST_F(SmallModel, logical_tensors_give_the_files_tensors_back) {
  write_model(folder_.path(), small_config(), weights_);
  const HfModel model(folder_.path());
  std::vector<HostArray> logical;
  std::vector<HostView> views;
  for (const std::string& name : model.names()) logical.push_back(model.read_logical(name));
  for (const HostArray& array : logical) views.push_back(array.view());
  const std::vector<HostArray> back = to_hf_layout(model.pieces(), views);
  EXPECT_EQ(back.size(), weights_.size());
  for (const HostArray& array : back) {
    EXPECT_EQ(array.shape, weights_.at(array.name).shape) << array.name;
    EXPECT_EQ(array.bytes, weights_.at(array.name).bytes) << array.name;
  }
  views.pop_back();
  EXPECT_ERROR(to_hf_layout(model.pieces(), views), ErrorCode::CheckpointTensorNames, "missing 'output_layer.weight'");
}

TEST_F(SmallModel, every_row_of_every_tensor_is_used_exactly_once) {
  std::map<std::string, std::multiset<std::int64_t>> used;
  for (const LogicalPiece& piece : hf_pieces(parse_hf_config(small_config().dump(), "config.json"))) {
    for (std::int64_t run = 0; run < piece.rows.runs; ++run) {
      for (std::int64_t row = 0; row < piece.rows.run_rows; ++row)
        used[piece.hf].insert(piece.rows.first + run * piece.rows.stride + row);
    }
  }
  const auto shapes = small_shapes();
  EXPECT_EQ(used.size(), shapes.size());
  for (const auto& [name, shape] : shapes) {
    ASSERT_EQ(static_cast<std::int64_t>(used[name].size()), shape[0]) << name;
    std::int64_t expected = 0;
    for (const std::int64_t row : used[name]) EXPECT_EQ(row, expected++) << name;
  }
}

TEST_F(SmallModel, unknown_and_missing_names_are_one_error_with_the_nearest) {
  weights_.erase("model.layers.0.linear_attn.dt_bias");
  weights_.emplace("model.layers.0.linear_attn.dt_bais",
                   from_doubles("model.layers.0.linear_attn.dt_bais", DType::F32, {4}, {1, 2, 3, 4}));
  write_model(folder_.path(), small_config(), weights_);
  EXPECT_ERROR(HfModel(folder_.path()), ErrorCode::HfTensorNames,
               "missing 'model.layers.0.linear_attn.dt_bias' (nearest: model.layers.0.linear_attn.dt_bais",
               "unknown 'model.layers.0.linear_attn.dt_bais' (nearest: model.layers.0.linear_attn.dt_bias");
}

TEST_F(SmallModel, a_wrong_shape_names_tensor_found_and_expected) {
  HostArray& array = weights_.at("model.layers.1.self_attn.q_proj.weight");
  array = make_array(array.name, DType::F32, {12, 6});
  write_model(folder_.path(), small_config(), weights_);
  EXPECT_ERROR(HfModel(folder_.path()), ErrorCode::HfTensorShape, "q_proj.weight", "found [12,6], expected [24,6]");
}

TEST_F(SmallModel, a_tied_output_may_be_there_twice_but_not_differ) {
  json config = small_config();
  config["tie_word_embeddings"] = true;
  write_model(folder_.path(), config, weights_);
  EXPECT_ERROR(HfModel(folder_.path()), ErrorCode::HfTensorNames, "lm_head.weight differs from the embedding");
  weights_.at("lm_head.weight").bytes = weights_.at("model.embed_tokens.weight").bytes;
  write_model(folder_.path(), config, weights_);
  EXPECT_EQ(HfModel(folder_.path()).names().size(), 32u);
  weights_.erase("lm_head.weight");
  write_model(folder_.path(), config, weights_);
  EXPECT_EQ(HfModel(folder_.path()).names().size(), 32u);
  write_model(folder_.path(), small_config(), weights_);  // untied, and no output matrix
  EXPECT_ERROR(HfModel(folder_.path()), ErrorCode::HfTensorNames, "missing 'lm_head.weight'");
}

TEST(HfConfig, every_key_reaches_the_transformer_config) {
  const TransformerConfig config = parse_hf_config(small_config().dump(), "config.json");
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.hidden_size, 6);
  EXPECT_EQ(config.ffn_hidden_size, 5);
  EXPECT_EQ(config.vocab_size, 7);
  EXPECT_EQ(config.linear_attention_freq.pattern, (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(config.linear_num_key_heads, 2);
  EXPECT_EQ(config.linear_num_value_heads, 4);
  EXPECT_EQ(config.linear_key_head_dim, 3);
  EXPECT_EQ(config.linear_value_head_dim, 2);
  EXPECT_EQ(config.linear_conv_kernel_dim, 4);
  EXPECT_EQ(config.num_attention_heads, 3);
  EXPECT_EQ(config.num_query_groups, 1);
  EXPECT_EQ(config.kv_channels, 4);
  EXPECT_EQ(config.rotary_percent, 0.5);
  EXPECT_EQ(config.rotary_base, 500.0);
  EXPECT_EQ(config.layernorm_epsilon, 1e-5);
  EXPECT_TRUE(config.attention_output_gate && config.qk_layernorm && config.layernorm_zero_centered_gamma);
  EXPECT_FALSE(config.linear_output_norm_zero_centered_gamma);
  EXPECT_TRUE(config.untie_embeddings_and_output_weights);
  EXPECT_EQ(config.experimental_attention_variant, ExperimentalAttentionVariant::Gdn);
}

TEST(HfConfig, an_interval_stands_for_the_layer_types) {
  json config = small_config();
  config.erase("layer_types");
  config["num_hidden_layers"] = 6;
  config["full_attention_interval"] = 3;
  EXPECT_EQ(parse_hf_config(config.dump(), "c").linear_attention_freq.pattern, (std::vector<std::int64_t>{1, 1, 0, 1, 1, 0}));
}

TEST(HfConfig, what_we_do_not_build_is_refused_by_key_and_value) {
  const auto with = [](const char* key, const json& value) {
    json config = small_config();
    config[key] = value;
    return config.dump();
  };
  const ErrorCode unsupported = ErrorCode::HfConfigUnsupported;
  EXPECT_ERROR(parse_hf_config(with("hidden_act", "gelu"), "c"), unsupported, "hidden_act = gelu", "silu");
  EXPECT_ERROR(parse_hf_config(with("attention_bias", true), "c"), unsupported, "attention_bias = true");
  EXPECT_ERROR(parse_hf_config(with("model_type", "qwen3_5_moe_text"), "c"), unsupported, "model_type = qwen3_5_moe_text");
  EXPECT_ERROR(parse_hf_config(with("num_experts", 8), "c"), unsupported, "num_experts = 8");
  EXPECT_ERROR(parse_hf_config(with("layer_types", {"linear_attention", "sliding_attention"}), "c"), unsupported,
               "sliding_attention");
  EXPECT_ERROR(parse_hf_config(with("rope_parameters", {{"rope_type", "yarn"}}), "c"), unsupported,
               "rope_parameters.rope_type = yarn");
  EXPECT_ERROR(parse_hf_config(with("linear_num_value_heads", 3), "c"), unsupported, "linear_num_value_heads = 3");
  EXPECT_ERROR(parse_hf_config(with("num_key_value_heads", 2), "c"), unsupported, "num_key_value_heads = 2");
  const ErrorCode invalid = ErrorCode::HfConfigInvalid;
  EXPECT_ERROR(parse_hf_config(with("hidden_size", nullptr), "c"), invalid, "key 'hidden_size' is missing");
  EXPECT_ERROR(parse_hf_config(with("hidden_size", -4), "c"), invalid, "'hidden_size' must be a whole number", "-4");
  EXPECT_ERROR(parse_hf_config(with("layer_types", {"linear_attention"}), "c"), invalid, "1 entries, 2 layers");
  EXPECT_ERROR(parse_hf_config(with("attention_bias", "no"), "c"), invalid, "true or false");
  EXPECT_ERROR(parse_hf_config(with("rope_theta", 2.0), "c"), invalid, "'rope_theta' contradicts rope_parameters");
  EXPECT_ERROR(parse_hf_config("[]", "c"), invalid, "not an object");
  EXPECT_ERROR(parse_hf_config("{\"a\":1,\"a\":1}", "c"), invalid, "'a' appears twice");
}

TEST(HfMap, model_forms_without_a_qwen_form_are_refused) {
  TransformerConfig config = parse_hf_config(small_config().dump(), "c");
  const auto refused = [&](const std::string& text) { EXPECT_ERROR(hf_pieces(config), ErrorCode::HfConfigUnsupported, text); };
  config.attention_output_gate = false;
  refused("attention_output_gate = false");
  config = parse_hf_config(small_config().dump(), "c");
  config.qk_layernorm = false;
  refused("qk_layernorm = false");
  config = parse_hf_config(small_config().dump(), "c");
  config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
  refused("experimental_attention_variant = gdn2");
  config = parse_hf_config(small_config().dump(), "c");
  config.layernorm_zero_centered_gamma = false;
  refused("layernorm_zero_centered_gamma = false");
  config = parse_hf_config(small_config().dump(), "c");
  config.linear_output_norm_zero_centered_gamma = true;
  refused("linear_output_norm_zero_centered_gamma = true");
}

TEST(HfGolden, the_tiny_model_opens_and_goes_back_to_its_files_tensors) {
  const HfModel model(golden());
  EXPECT_EQ(model.config().linear_attention_freq.pattern, (std::vector<std::int64_t>{1, 1, 1, 0}));
  EXPECT_EQ(model.config().rotary_base, 10000.0);
  EXPECT_EQ(model.read_logical("decoder.layers.3.self_attention.linear_qkv.weight.gate").shape,
            (std::vector<std::int64_t>{64, 48}));
  std::vector<HostArray> logical;
  std::vector<HostView> views;
  for (const std::string& name : model.names()) logical.push_back(model.read_logical(name));
  for (const HostArray& array : logical) views.push_back(array.view());
  const SafetensorsFile file(golden() + "/model.safetensors");
  const std::vector<HostArray> back = to_hf_layout(model.pieces(), views);
  EXPECT_EQ(back.size(), file.names().size());
  for (const HostArray& array : back) EXPECT_EQ(array.bytes, file.read(array.name).bytes) << array.name;

  // The names of the expected gradients are those of the map.
  const json norms = parse_json_strict(read_file(golden() + "/grad_norms.json"), "grad_norms.json", ErrorCode::TensorHeaderInvalid);
  EXPECT_EQ(norms.size(), back.size());
  const SafetensorsFile expected(golden() + "/expected.safetensors");
  int compared = 0;
  for (const HostArray& array : back) {
    ASSERT_TRUE(norms.contains(array.name)) << array.name;
    if (!expected.contains("grad." + array.name)) continue;
    EXPECT_EQ(expected.view("grad." + array.name).shape, array.shape);
    double sum = 0;
    for (const double value : expected.as_doubles("grad." + array.name)) sum += value * value;
    EXPECT_NEAR(std::sqrt(sum) / norms[array.name].get<double>(), 1.0, 1e-5) << array.name;
    ++compared;
  }
  EXPECT_EQ(compared, 15);
}

TEST(HfModel, a_shape_mix_of_dtypes_reads_as_stored) {
  const TempFolder folder;
  auto weights = indexed_weights(small_shapes());
  HostArray& array = weights.at("model.layers.0.linear_attn.dt_bias");
  array = converted(array.view(), DType::BF16);
  write_model(folder.path(), small_config(), weights);
  const HfModel model(folder.path());
  EXPECT_EQ(model.read_logical("decoder.layers.0.self_attention.dt_bias").dtype, DType::BF16);
  EXPECT_EQ(model.read_logical("decoder.layers.0.self_attention.A_log").dtype, DType::F32);
  EXPECT_ERROR(model.read_logical("decoder.layers.0.self_attention.dt_bais"), ErrorCode::TensorNotFound,
               "decoder.layers.0.self_attention.dt_bias");
}

}  // namespace
}  // namespace deltron
