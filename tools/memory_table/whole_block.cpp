// See whole_block.h.
#include "tools/memory_table/whole_block.h"

#include "src/model/flops.h"
#include "src/train/plan.h"
#include "tools/memory_table/measure.h"

namespace deltron::tools {
namespace {

constexpr std::int64_t kElement = 2, kStatistic = 4;  // bf16, fp32

MemorySetting layer_of(const WholeBlockSetting& setting) {
  MemorySetting layer;
  layer.hidden_size = setting.hidden_size;
  layer.key_heads = setting.key_heads;
  layer.value_heads = setting.value_heads;
  layer.key_dim = setting.key_dim;
  layer.value_dim = setting.value_dim;
  layer.seq_length = setting.seq_length;
  layer.micro_batch_size = setting.micro_batch_size;
  return layer;
}

// GDN layers alone; experts, attention and vocabulary of the proxy are left out, as both runs have them alike.
Plan plan_of(const WholeBlockSetting& setting, std::int64_t layers, const std::vector<std::string>& regions) {
  RunConfig config = config_of(layer_of(setting), {}, {regions, {}});
  config.model.num_layers = layers;
  config.model.ffn_hidden_size = 8;
  return make_plan(config);
}

std::int64_t kept_after_forward(const Plan& plan) {
  std::int64_t sum = 0;
  for (const ScopeBytes& row : plan.activations) sum += row.bytes;
  return sum;
}

}  // namespace

std::vector<BytesPerToken> whole_block_tensors(const WholeBlockSetting& s) {
  const std::int64_t P = layer_of(s).projection_width();
  return {{"projection output", "2 P", kElement * P, false},
          {"q and k before the L2 norm", "2 (2 Hk K)", kElement * 2 * s.key_heads * s.key_dim, false},
          {"statistics of the L2 norm", "4 (2 Hk)", kStatistic * 2 * s.key_heads, false},
          {"normalised input of in_proj", "2 h", kElement * s.hidden_size, false},
          {"input of softplus", "4 Hv", kStatistic * s.value_heads, false},
          {"q, k (heads repeated) and v", "2 Hv (2 K + V)", kElement * s.value_heads * (2 * s.key_dim + s.value_dim), true},
          {"output gate", "2 Hv V", kElement * s.value_heads * s.value_dim, true},
          {"g", "4 Hv", kStatistic * s.value_heads, true},
          {"beta", "2 Hv", kElement * s.value_heads, true}};
}

WholeBlock whole_block(const WholeBlockSetting& setting) {
  WholeBlock result;
  result.setting = setting;
  std::int64_t ordinary = 0, discard = 0;
  for (const BytesPerToken& tensor : whole_block_tensors(setting)) {
    discard += tensor.bytes * setting.tokens();
    if (!tensor.output) ordinary += tensor.bytes * setting.tokens();
  }
  for (const std::int64_t layers : {1, 3, 4, 9}) {
    const Plan without = plan_of(setting, layers, {}), with = plan_of(setting, layers, {"gdn_qkv_block"});
    result.plans.push_back({layers, layers * ordinary, layers * discard, kept_after_forward(without) - kept_after_forward(with),
                            without.memory.peak - with.memory.peak});
  }
  const double difference = (result.published_before_gb - result.published_after_gb) * 1e9;
  result.layers_ordinary = difference / static_cast<double>(ordinary);
  result.layers_discard = difference / static_cast<double>(discard);
  // One more layer frees this much of the peak: the first pays for the replay's own memory.
  const double per_layer = static_cast<double>(result.plans[2].ours_peak - result.plans[1].ours_peak);
  result.layers_ours = 1 + (difference - static_cast<double>(result.plans[0].ours_peak)) / per_layer;
  const MemorySetting layer = layer_of(setting);
  const TransformerConfig model = config_of(layer, {}, {}).model;
  const auto projection = static_cast<double>(setting.hidden_size * layer.projection_width());
  result.extra_share_of_mixer = 2 * projection / training_flops_per_token(model).linear_mixers;
  return result;
}

}  // namespace deltron::tools
