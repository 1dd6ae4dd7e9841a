// See flops.h.
#include "src/model/flops.h"

namespace deltron {

FlopsPerToken training_flops_per_token(const TransformerConfig& config) {
  constexpr double kTraining = 6;  // 3 products (forward, two backward) of 2 operations
  FlopsPerToken flops;
  const auto h = static_cast<double>(config.hidden_size);
  const double dq = static_cast<double>(config.linear_num_key_heads * config.linear_key_head_dim);
  const double dv = static_cast<double>(config.linear_num_value_heads * config.linear_value_head_dim);
  const auto hv = static_cast<double>(config.linear_num_value_heads);
  const bool gdn2 = config.experimental_attention_variant == ExperimentalAttentionVariant::Gdn2;
  const double projection = gdn2 ? 4 * dq + 3 * dv : 2 * dq + 2 * dv + 2 * hv;
  const double rule = 4 * hv * static_cast<double>(config.linear_key_head_dim * config.linear_value_head_dim);
  const double linear_layer =
      h * projection + static_cast<double>(config.linear_conv_kernel_dim) * (2 * dq + dv) + rule + h * dv;
  const double q = static_cast<double>(config.num_attention_heads * head_dim(config));
  const double kv = static_cast<double>(query_groups(config) * head_dim(config));
  const double softmax_layer = h * (q + 2 * kv + (config.attention_output_gate ? q : 0)) + q * h;
  flops.linear_mixers = kTraining * linear_layer * static_cast<double>(linear_layer_count(config));
  flops.softmax_projections = kTraining * softmax_layer * static_cast<double>(softmax_layer_count(config));
  flops.mlp = kTraining * h * static_cast<double>(config.ffn_hidden_size) * 3 * static_cast<double>(config.num_layers);
  flops.logits = kTraining * h * static_cast<double>(config.vocab_size);
  return flops;
}

double attention_core_flops(const TransformerConfig& config, const std::vector<std::int64_t>& document_lengths) {
  const double q = static_cast<double>(config.num_attention_heads * head_dim(config));
  double squares = 0;
  for (std::int64_t length : document_lengths) squares += static_cast<double>(length) * static_cast<double>(length);
  return 6 * q * squares * static_cast<double>(softmax_layer_count(config));
}

}  // namespace deltron
