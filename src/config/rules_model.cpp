// Rules about the network: section `model` alone.
#include <cmath>

#include "src/base/human.h"
#include "src/config/rules.h"

namespace deltron {
namespace {

using std::to_string;

constexpr const char* kVariant = "model.experimental_attention_variant";
constexpr const char* kFreq = "model.linear_attention_freq";

// The keys that decide which layers are linear.
std::vector<std::string> pattern_keys() { return {"model.num_layers", kVariant, kFreq}; }

bool linear_variant(const TransformerConfig& model) { return model.experimental_attention_variant != ExperimentalAttentionVariant::None; }

// "4 or 8": the multiples of `unit` around `value`.
std::string around(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  return (below > 0 ? to_string(below) + " or " : "") + to_string(below + unit);
}

void sizes_are_set(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  if (model.num_layers == 0) context.missing("model.num_layers", "every model has it");
  if (model.hidden_size == 0) context.missing("model.hidden_size", "every model has it");
  if (model.ffn_hidden_size == 0) context.missing("model.ffn_hidden_size", "every model has it");
  if (model.vocab_size == 0) context.missing("model.vocab_size", "every model has it");
}

void freq_is_set(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  if (!linear_variant(model) || !model.linear_attention_freq.pattern.empty() || model.linear_attention_freq.interval >= 0) return;
  context.missing(kFreq, "a linear variant needs its layer pattern: an integer, a list of 0/1, or 0 for linear layers alone", {kVariant});
}

void freq_list_has_every_layer(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  const auto entries = static_cast<std::int64_t>(model.linear_attention_freq.pattern.size());
  if (!linear_variant(model) || entries == 0 || model.num_layers == 0 || entries == model.num_layers) return;
  context.report(ErrorCode::ConfigInconsistent, {kFreq, "model.num_layers"},
                 {std::string(kFreq) + " has the wrong length", "", to_string(entries) + " entries, num_layers " + to_string(model.num_layers),
                  "one entry a layer", "give " + to_string(model.num_layers) + " entries"});
}

void variant_has_a_layer(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  if (!linear_variant(model) || !layers_known(model) || has_linear_layers(model)) return;
  context.report(ErrorCode::ConfigNoEffect, {kVariant, kFreq, "model.num_layers"},
                 {std::string(kVariant) + " has no effect", "", "", "linear_attention_freq makes every layer softmax attention",
                  "set it to none, or choose another linear_attention_freq"});
}

void linear_sizes_are_set(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  if (!linear_variant(model)) return;
  const std::string rule = "a linear variant needs it";
  if (model.linear_num_key_heads == 0) context.missing("model.linear_num_key_heads", rule, {kVariant});
  if (model.linear_num_value_heads == 0) context.missing("model.linear_num_value_heads", rule, {kVariant});
  if (model.linear_key_head_dim == 0) context.missing("model.linear_key_head_dim", rule, {kVariant});
  if (model.linear_value_head_dim == 0) context.missing("model.linear_value_head_dim", rule, {kVariant});
}

void value_heads_divide_by_key_heads(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  const std::int64_t keys = model.linear_num_key_heads;
  const std::int64_t values = model.linear_num_value_heads;
  if (!linear_variant(model) || keys == 0 || values == 0 || values % keys == 0) return;
  context.report(ErrorCode::ConfigInconsistent, {"model.linear_num_value_heads", "model.linear_num_key_heads", kVariant},
                 {"model.linear_num_value_heads is not a multiple of linear_num_key_heads", "", to_string(values) + " and " + to_string(keys),
                  "each key head serves equally many value heads", around(values, keys)});
}

void linear_keys_need_a_variant(RuleContext& context) {
  if (linear_variant(context.config.model)) return;
  context.without_effect({kFreq, "model.linear_num_key_heads", "model.linear_num_value_heads", "model.linear_key_head_dim",
                          "model.linear_value_head_dim", "model.linear_conv_kernel_dim", "model.allow_neg_eigval", "model.linear_dt_bias_init",
                          "model.linear_output_norm_zero_centered_gamma", "model.gdn_pre_gated_delta_rule_fusion",
                          "model.gdn_gated_output_norm_fusion"},
                         "read only by linear layers, and experimental_attention_variant is none", {kVariant},
                         "remove it or set experimental_attention_variant: gdn");
}

void dt_bias_init_needs_gdn(RuleContext& context) {
  if (context.config.model.experimental_attention_variant != ExperimentalAttentionVariant::Gdn2) return;
  context.without_effect({"model.linear_dt_bias_init"}, "gdn2 draws dt_bias log-uniformly, channel by channel", {kVariant},
                         "remove it or set experimental_attention_variant: gdn");
}

void heads_are_set(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  if (!has_softmax_layers(model) || model.num_attention_heads > 0) return;
  context.missing("model.num_attention_heads", to_string(softmax_layer_count(model)) + " of " + to_string(model.num_layers) +
                                                   " layers have softmax attention", pattern_keys());
}

void softmax_keys_need_a_softmax_layer(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  if (!layers_known(model) || has_softmax_layers(model)) return;
  context.without_effect({"model.num_attention_heads", "model.num_query_groups", "model.kv_channels", "model.attention_output_gate",
                          "model.qk_layernorm", "model.position_embedding_type", "model.rotary_percent", "model.rotary_base",
                          "model.attention_dropout", "model.attention_backend"},
                         "read only by softmax attention, and every layer is linear", pattern_keys(), "remove it or choose another linear_attention_freq");
}

void fused_attention_needs_cuda(RuleContext& context) {
  const RunConfig& config = context.config;
  if (config.model.attention_backend != AttentionBackend::Fused || config.training.device == DeviceKind::Cuda) return;
  context.report(ErrorCode::ConfigInconsistent, {"model.attention_backend", "training.device"},
                 {"model.attention_backend: fused needs a GPU", "", std::string("training.device: ") + device_name(config.training.device),
                  "fused attention is cuDNN's", "attention_backend: auto or local, or training.device: cuda"});
}

void heads_divide_by_groups(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  if (!has_softmax_layers(model) || model.num_attention_heads == 0) return;
  if (model.num_query_groups == 0 || model.num_attention_heads % model.num_query_groups == 0) return;
  std::int64_t legal = model.num_query_groups < model.num_attention_heads ? model.num_query_groups : model.num_attention_heads;
  while (model.num_attention_heads % legal != 0) --legal;
  context.report(ErrorCode::ConfigInconsistent, {"model.num_query_groups", "model.num_attention_heads", kVariant, kFreq},
                 {"model.num_query_groups does not divide num_attention_heads", "",
                  to_string(model.num_query_groups) + " and " + to_string(model.num_attention_heads), "each key head serves equally many query heads",
                  "the next lower legal value is " + to_string(legal)});
}

void head_size_is_whole(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  if (!has_softmax_layers(model) || model.num_attention_heads == 0 || model.kv_channels != 0 || model.hidden_size == 0) return;
  if (model.hidden_size % model.num_attention_heads == 0) return;
  context.report(ErrorCode::ConfigInconsistent, {"model.num_attention_heads", "model.hidden_size", "model.kv_channels", kVariant, kFreq},
                 {"model.num_attention_heads does not divide hidden_size, and kv_channels is not set", "",
                  to_string(model.num_attention_heads) + " and " + to_string(model.hidden_size), "kv_channels is hidden_size / num_attention_heads by default",
                  "set kv_channels, or hidden_size " + around(model.hidden_size, model.num_attention_heads)});
}

void rotary_channels_are_even(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  if (!has_softmax_layers(model) || model.position_embedding_type != PositionEmbeddingType::Rope || head_dim(model) == 0) return;
  const double exact = static_cast<double>(head_dim(model)) * model.rotary_percent;
  const std::int64_t channels = rotary_dim(model);
  if (std::fabs(exact - static_cast<double>(channels)) < 1e-6 && channels >= 2 && channels % 2 == 0) return;
  const std::string name = model.rotary_percent == 1.0 ? "model.kv_channels" : "model.rotary_percent";
  context.report(ErrorCode::ConfigInconsistent,
                 {name, "model.rotary_percent", "model.kv_channels", "model.hidden_size", "model.num_attention_heads", kVariant, kFreq,
                  "model.position_embedding_type"},
                 {name + " gives RoPE no even number of channels", "", "head size " + to_string(head_dim(model)) + " x " + shortest(model.rotary_percent) +
                                                                            " = " + shortest(exact),
                  "RoPE turns channels in pairs", "choose kv_channels and rotary_percent whose product is an even integer >= 2"});
}

void rotary_keys_need_rope(RuleContext& context) {
  const TransformerConfig& model = context.config.model;
  if (model.position_embedding_type == PositionEmbeddingType::Rope || !has_softmax_layers(model)) return;
  context.without_effect({"model.rotary_percent", "model.rotary_base"}, "read only with position_embedding_type: rope",
                         {"model.position_embedding_type", kVariant, kFreq}, "remove it or set position_embedding_type: rope");
}

}  // namespace

const std::vector<Rule>& model_rules() {
  static const std::vector<Rule> rules = {
      {"sizes_are_set", {201}, "num_layers, hidden_size, ffn_hidden_size and vocab_size are set", sizes_are_set},
      {"freq_is_set", {9}, "a linear variant has linear_attention_freq", freq_is_set},
      {"freq_list_has_every_layer", {10}, "linear_attention_freq as a list has num_layers entries", freq_list_has_every_layer},
      {"variant_has_a_layer", {202}, "a linear variant has at least one linear layer", variant_has_a_layer},
      {"linear_sizes_are_set", {12, 13, 14, 15}, "a linear variant has its head counts and head sizes", linear_sizes_are_set},
      {"value_heads_divide_by_key_heads", {16}, "linear_num_value_heads is a multiple of linear_num_key_heads", value_heads_divide_by_key_heads},
      {"linear_keys_need_a_variant", {82, 203}, "keys of linear layers are set only with a linear variant; the fusions serve gdn and gdn2 (upstream: gdn)", linear_keys_need_a_variant},
      {"dt_bias_init_needs_gdn", {255}, "linear_dt_bias_init is set only with gdn", dt_bias_init_needs_gdn},
      {"heads_are_set", {204}, "a softmax layer has num_attention_heads", heads_are_set},
      {"softmax_keys_need_a_softmax_layer", {205}, "keys of softmax attention are set only where a layer has it", softmax_keys_need_a_softmax_layer},
      {"fused_attention_needs_cuda", {259}, "attention_backend: fused is set only with training.device: cuda", fused_attention_needs_cuda},
      {"heads_divide_by_groups", {206}, "num_query_groups divides num_attention_heads", heads_divide_by_groups},
      {"head_size_is_whole", {207}, "without kv_channels, num_attention_heads divides hidden_size", head_size_is_whole},
      {"rotary_channels_are_even", {208}, "RoPE turns an even, positive number of channels", rotary_channels_are_even},
      {"rotary_keys_need_rope", {209}, "rotary_* are set only with position_embedding_type: rope", rotary_keys_need_rope},
  };
  return rules;
}

}  // namespace deltron
