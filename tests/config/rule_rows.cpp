// Rows for the rules of recompute, offload and parallel.
#include "tests/config/rule_rows.h"

namespace deltron::testing {
namespace {

const char* const kGranularity = "recompute.recompute_granularity";
const char* const kMethod = "recompute.recompute_method";
const char* const kNumLayers = "recompute.recompute_num_layers";
const char* const kRegions = "recompute.recompute_modules";
const char* const kFlag = "offload.fine_grained_activation_offloading";
const char* const kModules = "offload.offload_modules";
const char* const kFusion = "model.gdn_pre_gated_delta_rule_fusion";

constexpr ErrorCode kMissing = ErrorCode::ConfigMissingKey;
constexpr ErrorCode kInconsistent = ErrorCode::ConfigInconsistent;
constexpr ErrorCode kNoEffect = ErrorCode::ConfigNoEffect;

std::string list_text(const std::vector<std::string>& words) {
  std::string text = "[";
  for (const std::string& word : words) text += (text.size() > 1 ? ", " : "") + word;
  return text + "]";
}

std::vector<Edit> gdn(const std::vector<Edit>& edits) { return edited(gdn_base(), edits); }
std::vector<Edit> hybrid(const std::vector<Edit>& edits) { return edited(hybrid_base(), edits); }

}  // namespace

std::vector<Edit> with_modules(const std::vector<Edit>& base, const std::vector<std::string>& recompute,
                               const std::vector<std::string>& offload) {
  std::vector<Edit> edits = base;
  std::vector<std::string> regions;
  bool full = false;
  for (const std::string& word : recompute) {
    full = full || word == "full";
    if (word != "full") regions.push_back(word);
  }
  if (full) edits = edited(edits, {{kGranularity, "full"}, {kMethod, "uniform"}, {kNumLayers, "1"}});
  if (!regions.empty()) edits = edited(edits, {{kRegions, list_text(regions)}});
  if (!regions.empty() && !full) edits = edited(edits, {{kGranularity, "selective"}});
  if (!offload.empty()) edits = edited(edits, {{kFlag, "true"}, {kModules, list_text(offload)}});
  return edits;
}

std::vector<RuleRow> recompute_rows() {
  std::vector<RuleRow> rows = {
      {"full_has_a_method", gdn({{kGranularity, "full"}, {kNumLayers, "1"}}), kMissing, "recompute",
       "recompute.recompute_method is not set"},
      {"full_has_num_layers", gdn({{kGranularity, "full"}, {kMethod, "block"}}), kMissing, "recompute",
       "recompute.recompute_num_layers is not set"},
      {"num_layers_needs_full", gdn({{kGranularity, "selective"}, {kRegions, "[mlp]"}, {kNumLayers, "2"}}), kNoEffect, kNumLayers,
       "read only with recompute_granularity: full"},
      {"num_layers_needs_full", gdn({{kNumLayers, "2"}}), kNoEffect, kNumLayers, "(2)"},
      {"method_needs_full", gdn({{kGranularity, "selective"}, {kRegions, "[mlp]"}, {kMethod, "block"}}), kNoEffect, kMethod,
       "read only with recompute_granularity: full"},
      {"method_needs_full", gdn({{kMethod, "uniform"}}), kNoEffect, kMethod, "(uniform)"},
      {"num_layers_fits", gdn({{kGranularity, "full"}, {kMethod, "block"}, {kNumLayers, "5"}}), kInconsistent, kNumLayers,
       "(5 of 4)"},
      {"modules_need_selective", gdn({{kRegions, "[mlp]"}}), kNoEffect, kRegions, "rule 103: recompute_granularity is none"},
      {"modules_need_selective", with_modules(gdn_base(), {"full", "gdn_qkv"}, {}), kNoEffect, kRegions,
       "rule 103: recompute_granularity: full repeats whole layers"},
      {"selective_has_modules", gdn({{kGranularity, "selective"}}), kMissing, "recompute",
       "recompute.recompute_modules is not set"},
      {"selective_has_modules", gdn({{kGranularity, "selective"}, {kRegions, "[]"}}), kMissing, kRegions, "nothing is implied"},
      {"recompute_modules_are_unique", with_modules(gdn_base(), {"mlp", "gdn_qkv", "mlp", "mlp"}, {}), kInconsistent, kRegions,
       "names a module twice ('mlp'); rule: rule 104"},
      {"core_attn_needs_softmax_layers", with_modules(gdn_base(), {"core_attn"}, {}), kInconsistent, kRegions,
       "core_attn recompute on a model without softmax attention layers; rule: rule 303"},
      {"qkv_recompute_excludes_fusion", edited(with_modules(gdn_base(), {"gdn_qkv"}, {}), {{kFusion, "true"}}), kInconsistent,
       kRegions, "rule 51"},
  };
  const std::vector<std::pair<std::string, int>> needs = {
      {"gdn_norm_out", 44}, {"gdn", 45}, {"gdn_in_proj", 47}, {"gdn_qkv", 48}, {"gdn_qkv_block", 306}, {"gdn_core_attn", 306}};
  for (const auto& [region, number] : needs) {
    rows.push_back({"gdn_regions_need_linear_layers", with_modules(softmax_base(), {region}, {}), kInconsistent, kRegions,
                    region + " recompute on a model without Gated DeltaNet layers; rule: rule " + std::to_string(number)});
  }
  const std::vector<std::pair<std::vector<std::string>, int>> overlaps = {
      {{"gdn", "gdn_norm_out"}, 46},      {{"gdn", "gdn_in_proj"}, 50},    {{"gdn", "gdn_qkv"}, 50},
      {{"gdn", "gdn_qkv_block"}, 304},    {{"gdn", "gdn_core_attn"}, 304}, {{"gdn_qkv_block", "gdn_in_proj"}, 304},
      {{"gdn_qkv_block", "gdn_qkv"}, 304}};
  for (const auto& [pair, number] : overlaps) {
    rows.push_back({"regions_do_not_overlap", with_modules(gdn_base(), pair, {}), kInconsistent, kRegions,
                    pair[0] + " recompute with " + pair[1] + " recompute; rule: rule " + std::to_string(number)});
  }
  return rows;
}

std::vector<RuleRow> offload_rows() {
  std::vector<RuleRow> rows = {
      {"offload_modules_need_the_flag", gdn({{kModules, "[gdn_qkv]"}}), kNoEffect, kModules,
       "rule 103: fine_grained_activation_offloading is false"},
      {"offload_keys_need_the_flag", gdn({{"offload.min_offloaded_tensor_size", "5"}}), kNoEffect,
       "offload.min_offloaded_tensor_size", "(5)"},
      {"offload_keys_need_the_flag", gdn({{"offload.activation_offload_fraction", "0.5"}}), kNoEffect,
       "offload.activation_offload_fraction", "(0.5)"},
      {"offload_keys_need_the_flag", gdn({{"offload.fine_grained_offloading_max_inflight_offloads", "0"}}), kNoEffect,
       "offload.fine_grained_offloading_max_inflight_offloads", "fine_grained_activation_offloading: true"},
      {"offload_has_modules", gdn({{kFlag, "true"}}), kMissing, "offload", "offload.offload_modules is not set"},
      {"offload_has_modules", gdn({{kFlag, "true"}, {kModules, "[]"}}), kMissing, kModules, "offload.offload_modules is not set"},
      {"offload_modules_are_unique", with_modules(gdn_base(), {}, {"gdn_qkv", "gdn_qkv"}), kInconsistent, kModules,
       "names a module twice ('gdn_qkv'); rule: rule 104"},
      {"gdn_offload_needs_linear_layers", with_modules(softmax_base(), {}, {"gdn_qkv"}), kInconsistent, kModules,
       "gdn_qkv offload on a model without Gated DeltaNet layers; rule: rule 49"},
      {"gdn_offload_needs_linear_layers", with_modules(softmax_base(), {}, {"gdn_core_attn"}), kInconsistent, kModules, "rule 81"},
      {"core_attn_offload_needs_softmax_layers", with_modules(gdn_base(), {}, {"core_attn"}), kInconsistent, kModules,
       "core_attn offload on a model without softmax attention layers; rule: rule 326"},
      {"core_attn_offload_needs_softmax_layers", with_modules(gdn_base(), {}, {"attn_proj"}), kInconsistent, kModules,
       "attn_proj offload on a model without"},
      {"attn_proj_needs_core_attn", with_modules(hybrid_base(), {}, {"attn_proj"}), kInconsistent, kModules,
       "attn_proj offload without core_attn offload; rule: rule 68"},
      {"layer_input_needs_full", with_modules(gdn_base(), {}, {"layer_input"}), kInconsistent, kModules,
       "layer_input offload without full recompute; rule: rule 322"},
      {"layer_input_needs_full", with_modules(gdn_base(), {"mlp"}, {"layer_input"}), kInconsistent, kModules,
       "set recompute.recompute_granularity: full"},
      {"full_offloads_layer_input_alone", with_modules(gdn_base(), {"full"}, {"gdn_qkv"}), kInconsistent, kGranularity,
       "full recompute with gdn_qkv offload; rule: rule 323"},
      {"full_offloads_layer_input_alone", with_modules(gdn_base(), {"full"}, {"layer_input", "gdn_core_attn"}), kInconsistent,
       kGranularity, "rule 81"},
      {"full_offloads_layer_input_alone", with_modules(hybrid_base(), {"full"}, {"core_attn"}), kInconsistent, kGranularity,
       "remove core_attn from offload.offload_modules"},
      {"full_offloads_layer_input_alone", with_modules(hybrid_base(), {"full"}, {"attn_proj"}), kInconsistent, kGranularity,
       "a replayed layer keeps its input alone"},
      {"qkv_offload_excludes_fusion", edited(with_modules(gdn_base(), {}, {"gdn_qkv"}), {{kFusion, "true"}}), kInconsistent,
       kModules, "gdn_qkv offload with gdn_pre_gated_delta_rule_fusion; rule: rule 52"},
  };
  const std::vector<std::vector<std::string>> shared = {
      {"gdn_qkv", "gdn_in_proj", "53"},          {"gdn_qkv", "gdn_qkv_block", "324"}, {"gdn_qkv", "gdn", "324"},
      {"gdn_core_attn", "gdn_core_attn", "324"}, {"gdn_core_attn", "gdn", "324"},     {"gdn_core_attn", "gdn_qkv", "324"},
      {"gdn_core_attn", "gdn_qkv_block", "324"}, {"core_attn", "core_attn", "324"}};
  for (const std::vector<std::string>& row : shared) {
    rows.push_back({"offloaded_storage_is_kept", with_modules(hybrid_base(), {row[1]}, {row[0]}), kInconsistent, kModules,
                    row[0] + " offload with " + row[1] + " recompute; rule: rule " + row[2]});
  }
  return rows;
}

std::vector<RuleRow> parallel_rows() {
  const char* const tensor = "parallel.tensor_model_parallel_size";
  const char* const context = "parallel.context_parallel_size";
  return {
      {"sequence_parallel_needs_tensor_parallel", gdn({{"parallel.sequence_parallel", "true"}}), kNoEffect,
       "parallel.sequence_parallel", "tensor_model_parallel_size to 2"},
      {"attention_heads_divide", hybrid({{context, "8"}}), kInconsistent, "model.num_attention_heads", "(4 and 8)"},
      {"attention_heads_divide", hybrid({{tensor, "2"}, {context, "4"}}), kInconsistent, "model.num_attention_heads", "(4 and 8)"},
      {"query_groups_divide", hybrid({{"model.num_attention_heads", "12"}, {"model.num_query_groups", "3"}, {tensor, "2"}}),
       kInconsistent, "model.num_query_groups", "(3 and 2)"},
      {"query_groups_divide", hybrid({{"model.num_attention_heads", "12"}, {"model.num_query_groups", "3"}, {tensor, "2"}, {context, "3"}}),
       kInconsistent, "model.num_query_groups", "divisor of tensor_model_parallel_size (3 and 2)"},
      {"key_heads_divide", gdn({{tensor, "4"}}), kInconsistent, "model.linear_num_key_heads",
       "(2 and 4); rule: every rank has equally many whole heads; fix: 4"},
      {"value_heads_divide", gdn({{context, "3"}}), kInconsistent, "model.linear_num_value_heads",
       "(4 and 3); rule: every rank has equally many whole heads; fix: 3 or 6"},
      {"sequence_divides", gdn({{context, "2"}, {"training.seq_length", "66"}}), kInconsistent, "training.seq_length",
       "(66 and 4)"},
      {"tokens_divide", gdn({{tensor, "2"}, {"parallel.sequence_parallel", "true"}, {"training.seq_length", "63"}}), kInconsistent,
       "training.seq_length", "(63 and 2)"},
      {"mlp_channels_divide", gdn({{tensor, "2"}, {"model.ffn_hidden_size", "127"}}), kInconsistent, "model.ffn_hidden_size",
       "(127 and 2)"},
      {"nccl_needs_gpus", gdn({{"parallel.distributed_backend", "nccl"}}), kInconsistent, "parallel.distributed_backend", "device: cuda"},
  };
}

}  // namespace deltron::testing
