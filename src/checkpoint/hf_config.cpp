// See hf_config.h.
#include "src/checkpoint/hf_config.h"

#include <algorithm>

#include "src/base/file.h"
#include "src/checkpoint/json_strict.h"

namespace deltron {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLargestSize = std::uint64_t{1} << 24;  // 2 * heads * head_dim stays far below 2^63

// The object whose keys are read, and where it lies; a key of null counts as absent, as it does for transformers.
class Keys {
 public:
  Keys(const json& object, std::string where, std::string prefix)
      : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {}

  const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[noreturn]] void invalid(const char* key, const std::string& what, const std::string& value = {}) const {
    throw Error(ErrorCode::HfConfigInvalid, ErrorText{"key '" + prefix_ + key + "' " + what, where_, value});
  }
  [[noreturn]] void unsupported(const std::string& key, const std::string& value, const std::string& rule) const {
    throw Error(ErrorCode::HfConfigUnsupported, ErrorText{prefix_ + key + " = " + value + " is not supported", where_, "", rule});
  }
  std::int64_t size(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) invalid(key, "is missing");
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() == 0 || value->get<std::uint64_t>() > kLargestSize) {
      invalid(key, "must be a whole number from 1 to " + std::to_string(kLargestSize), value->dump());
    }
    return value->get<std::int64_t>();
  }
  std::int64_t size_or(const char* key, std::int64_t fallback) const { return find(key) == nullptr ? fallback : size(key); }
  double number_or(const char* key, double fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) invalid(key, "must be a number", value->dump());
    return value->get<double>();
  }
  bool flag_or(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) invalid(key, "must be true or false", value->dump());
    return value->get<bool>();
  }
  std::string text_or(const char* key, const std::string& fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) invalid(key, "must be a string", value->dump());
    return value->get<std::string>();
  }
  Keys inside(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) invalid(key, "is missing");
    if (!value->is_object()) invalid(key, "must be an object", value->dump());
    return Keys(*value, where_, prefix_ + key + ".");
  }

 private:
  const json& object_;
  std::string where_;
  std::string prefix_;
};

LinearAttentionFreq read_layers(const Keys& keys, std::int64_t layers) {
  LinearAttentionFreq freq;
  const json* types = keys.find("layer_types");
  if (types == nullptr) {
    const std::int64_t interval = keys.size_or("full_attention_interval", 4);
    for (std::int64_t layer = 0; layer < layers; ++layer) freq.pattern.push_back((layer + 1) % interval == 0 ? 0 : 1);
    return freq;
  }
  if (!types->is_array() || static_cast<std::int64_t>(types->size()) != layers) {
    keys.invalid("layer_types", "must be a list of num_hidden_layers entries",
                 std::to_string(types->size()) + " entries, " + std::to_string(layers) + " layers");
  }
  for (const json& type : *types) {
    if (type == "linear_attention") {
      freq.pattern.push_back(1);
    } else if (type == "full_attention") {
      freq.pattern.push_back(0);
    } else {
      keys.unsupported("layer_types", type.dump(), "linear_attention or full_attention");
    }
  }
  return freq;
}

// Newer files keep both values in rope_parameters, older ones beside the other keys; both places may hold one.
double read_rope(const Keys& keys, const char* key, double fallback) {
  if (keys.find("rope_parameters") == nullptr) return keys.number_or(key, fallback);
  const Keys rope = keys.inside("rope_parameters");
  if (rope.find(key) == nullptr) return keys.number_or(key, fallback);
  const double value = rope.number_or(key, fallback);
  if (keys.number_or(key, value) != value) keys.invalid(key, "contradicts rope_parameters");
  return value;
}

void refuse_other_forms(const Keys& keys) {
  const std::string type = keys.text_or("model_type", "(missing)");
  if (type != "qwen3_5_text") keys.unsupported("model_type", type, "qwen3_5_text, or qwen3_5 with a text_config of that type");
  const std::string act = keys.text_or("hidden_act", "silu");
  if (act != "silu") keys.unsupported("hidden_act", act, "silu");
  if (keys.flag_or("attention_bias", false)) keys.unsupported("attention_bias", "true", "false");
  const json* experts = keys.find("num_experts");
  if (experts != nullptr && *experts != 0) keys.unsupported("num_experts", experts->dump(), "a dense MLP");
  for (const char* place : {"rope_parameters", "rope_scaling"}) {
    if (keys.find(place) == nullptr) continue;
    const Keys rope = keys.inside(place);
    for (const char* name : {"rope_type", "type"}) {
      const std::string rope_type = rope.text_or(name, "default");
      if (rope_type != "default") rope.unsupported(name, rope_type, "default");
    }
  }
}

}  // namespace

TransformerConfig parse_hf_config(std::string_view text, const std::string& where) {
  const json root = parse_json_strict(text, where, ErrorCode::HfConfigInvalid);
  if (!root.is_object()) throw Error(ErrorCode::HfConfigInvalid, ErrorText{"is not an object", where});
  const Keys outer(root, where, "");
  const bool nested = outer.find("text_config") != nullptr;
  if (nested && outer.text_or("model_type", "qwen3_5") != "qwen3_5") {
    outer.unsupported("model_type", outer.text_or("model_type", ""), "qwen3_5_text, or qwen3_5 with a text_config of that type");
  }
  const Keys keys = nested ? outer.inside("text_config") : outer;
  refuse_other_forms(keys);

  TransformerConfig config;
  config.num_layers = keys.size("num_hidden_layers");
  if (config.num_layers > 100000) keys.invalid("num_hidden_layers", "is beyond 100000", std::to_string(config.num_layers));
  config.hidden_size = keys.size("hidden_size");
  config.ffn_hidden_size = keys.size("intermediate_size");
  config.vocab_size = keys.size("vocab_size");
  config.linear_attention_freq = read_layers(keys, config.num_layers);
  config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn;
  config.linear_num_key_heads = keys.size("linear_num_key_heads");
  config.linear_num_value_heads = keys.size("linear_num_value_heads");
  if (config.linear_num_value_heads % config.linear_num_key_heads != 0) {
    keys.unsupported("linear_num_value_heads", std::to_string(config.linear_num_value_heads),
                     "a multiple of linear_num_key_heads = " + std::to_string(config.linear_num_key_heads));
  }
  config.linear_key_head_dim = keys.size("linear_key_head_dim");
  config.linear_value_head_dim = keys.size("linear_value_head_dim");
  config.linear_conv_kernel_dim = keys.size_or("linear_conv_kernel_dim", 4);
  config.num_attention_heads = keys.size("num_attention_heads");
  config.num_query_groups = keys.size_or("num_key_value_heads", config.num_attention_heads);
  if (config.num_attention_heads % config.num_query_groups != 0) {
    keys.unsupported("num_key_value_heads", std::to_string(config.num_query_groups),
                     "a divisor of num_attention_heads = " + std::to_string(config.num_attention_heads));
  }
  config.kv_channels = keys.size_or("head_dim", config.hidden_size / config.num_attention_heads);
  config.attention_output_gate = true;
  config.qk_layernorm = true;
  config.rotary_percent = read_rope(keys, "partial_rotary_factor", 0.25);
  config.rotary_base = read_rope(keys, "rope_theta", 1e7);
  config.layernorm_epsilon = keys.number_or("rms_norm_eps", 1e-6);
  config.layernorm_zero_centered_gamma = true;
  config.linear_output_norm_zero_centered_gamma = false;
  config.attention_dropout = keys.number_or("attention_dropout", 0.0);
  config.init_method_std = keys.number_or("initializer_range", 0.02);
  // The outer model class ties the output, so its key counts first.
  config.untie_embeddings_and_output_weights = !outer.flag_or("tie_word_embeddings", keys.flag_or("tie_word_embeddings", false));
  return config;
}

TransformerConfig read_hf_config(const std::string& path) { return parse_hf_config(read_file(path), path); }

}  // namespace deltron
