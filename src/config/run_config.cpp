// What follows from the keys alone; see run_config.h.
#include "src/config/run_config.h"

#include <charconv>
#include <cmath>

#include "src/base/check.h"

namespace deltron {
namespace {

// The whole of `text` as a finite number.
template <class Number>
bool whole_number(const std::string& text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

bool finite_number(const std::string& text, double& value) { return whole_number(text, value) && std::isfinite(value); }

std::string without_spaces(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c != ' ') result += c;
  }
  return result;
}

}  // namespace

bool is_linear_layer(const TransformerConfig& model, std::int64_t layer) {
  DELTRON_CHECK(layer >= 0 && layer < model.num_layers, "layer ", layer, " of ", model.num_layers);
  if (model.experimental_attention_variant == ExperimentalAttentionVariant::None) return false;
  const LinearAttentionFreq& freq = model.linear_attention_freq;
  if (!freq.pattern.empty()) {
    DELTRON_CHECK_EQ(static_cast<std::int64_t>(freq.pattern.size()), model.num_layers, "linear_attention_freq");
    return freq.pattern[static_cast<std::size_t>(layer)] == 1;
  }
  DELTRON_CHECK_GE(freq.interval, 0, "linear_attention_freq is not set");
  return freq.interval == 0 || (layer + 1) % freq.interval != 0;
}

std::int64_t linear_layer_count(const TransformerConfig& model) {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) count += is_linear_layer(model, layer) ? 1 : 0;
  return count;
}

std::int64_t softmax_layer_count(const TransformerConfig& model) { return model.num_layers - linear_layer_count(model); }

std::int64_t query_groups(const TransformerConfig& model) {
  return model.num_query_groups != 0 ? model.num_query_groups : model.num_attention_heads;
}

std::int64_t head_dim(const TransformerConfig& model) {
  if (model.num_attention_heads == 0) return 0;
  return model.kv_channels != 0 ? model.kv_channels : model.hidden_size / model.num_attention_heads;
}

std::int64_t rotary_dim(const TransformerConfig& model) {
  if (model.position_embedding_type == PositionEmbeddingType::None) return 0;
  return std::llround(static_cast<double>(head_dim(model)) * model.rotary_percent);
}

std::int64_t decay_iters(const RunConfig& config) {
  return config.optimizer.lr_decay_iters != 0 ? config.optimizer.lr_decay_iters : config.training.train_iters;
}

bool blend(const DataConfig& data, std::vector<BlendPart>& parts) {
  parts.clear();
  double weight = 0.0;
  if (data.data_path.empty() || !finite_number(data.data_path.front(), weight)) {
    for (const std::string& prefix : data.data_path) {
      if (prefix.empty() || finite_number(prefix, weight)) return false;
      parts.push_back({1.0, prefix});
    }
    return true;
  }
  if (data.data_path.size() % 2 != 0) return false;
  for (std::size_t i = 0; i < data.data_path.size(); i += 2) {
    const std::string& prefix = data.data_path[i + 1];
    double ignored = 0.0;
    if (!finite_number(data.data_path[i], weight) || !(weight > 0.0)) return false;
    if (prefix.empty() || finite_number(prefix, ignored)) return false;
    parts.push_back({weight, prefix});
  }
  return true;
}

bool split_weights(const std::string& split, std::array<double, 3>& weights) {
  const std::string text = without_spaces(split);
  std::size_t begin = 0;
  double sum = 0.0;
  for (std::size_t i = 0; i < 3; ++i) {
    const std::size_t comma = text.find(',', begin);
    if ((comma == std::string::npos) != (i == 2)) return false;
    const std::string part = text.substr(begin, comma == std::string::npos ? comma : comma - begin);
    if (!finite_number(part, weights[i]) || weights[i] < 0.0) return false;
    sum += weights[i];
    begin = comma + 1;
  }
  return sum > 0.0;
}

bool resume_request(const std::string& resume, ResumeRequest& request) {
  if (resume == "auto" || resume == "never") {
    request = {resume == "auto" ? ResumeRequest::Kind::Auto : ResumeRequest::Kind::Never, 0};
    return true;
  }
  std::int64_t step = 0;
  if (!whole_number(resume, step) || step < 0) return false;
  request = {ResumeRequest::Kind::Step, step};
  return true;
}

}  // namespace deltron
