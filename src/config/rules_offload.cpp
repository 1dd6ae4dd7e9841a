// Rules of section `offload`, alone, with the network and with recompute.
#include <algorithm>

#include "src/config/rules.h"

namespace deltron {
namespace {

constexpr const char* kFlag = "offload.fine_grained_activation_offloading";
constexpr const char* kModules = "offload.offload_modules";

bool offloading(const RuleContext& context) { return context.config.offload.fine_grained_activation_offloading; }

void offload_modules_need_the_flag(RuleContext& context) {
  if (offloading(context)) return;
  context.without_effect({kModules}, "rule 103: fine_grained_activation_offloading is false", {kFlag},
                         "remove it or set fine_grained_activation_offloading: true");
}

void offload_keys_need_the_flag(RuleContext& context) {
  if (offloading(context)) return;
  context.without_effect({"offload.min_offloaded_tensor_size", "offload.activation_offload_fraction",
                          "offload.fine_grained_offloading_max_inflight_offloads"},
                         "read only with fine_grained_activation_offloading: true", {kFlag},
                         "remove it or set fine_grained_activation_offloading: true");
}

void offload_has_modules(RuleContext& context) {
  if (!offloading(context) || !context.config.offload.offload_modules.empty()) return;
  context.missing(kModules, "fine_grained_activation_offloading copies what the modules of this list save", {kFlag});
}

void offload_modules_are_unique(RuleContext& context) { refuse_repetitions(context, kModules); }

void gdn_offload_needs_linear_layers(RuleContext& context) {
  refuse_without_layers(context, ModuleUse::Offload, LayerNeed::Linear);
}
void core_attn_offload_needs_softmax_layers(RuleContext& context) {
  refuse_without_layers(context, ModuleUse::Offload, LayerNeed::Softmax);
}

// `name` is offloaded without what the table says that it needs.
const ModuleRequirement* unmet(const RuleContext& context, const std::string& name) {
  const std::vector<MemoryModule> active = active_modules(context.config);
  const auto on = [&](ModuleUse use, const std::string& wanted) {
    return std::any_of(active.begin(), active.end(),
                       [&](const MemoryModule& module) { return module.use == use && module.name == wanted; });
  };
  for (const ModuleRequirement& requirement : module_requirements()) {
    if (requirement.name != name || !on(requirement.use, requirement.name)) continue;
    if (!on(requirement.needed_use, requirement.needed)) return &requirement;
  }
  return nullptr;
}

void attn_proj_needs_core_attn(RuleContext& context) {
  const ModuleRequirement* requirement = unmet(context, "attn_proj");
  if (requirement == nullptr) return;
  context.report(ErrorCode::ConfigInconsistent, {kModules, kFlag},
                 {"attn_proj offload without core_attn offload", "", "",
                  "rule " + std::to_string(requirement->number) + ": " + requirement->why,
                  "add core_attn to offload.offload_modules, or remove attn_proj"});
}

void layer_input_needs_full(RuleContext& context) {
  const ModuleRequirement* requirement = unmet(context, "layer_input");
  if (requirement == nullptr) return;
  context.report(ErrorCode::ConfigInconsistent, {kModules, kFlag, "recompute.recompute_granularity"},
                 {"layer_input offload without full recompute", "", "",
                  "rule " + std::to_string(requirement->number) + ": " + requirement->why,
                  "set recompute.recompute_granularity: full, or remove layer_input from offload.offload_modules"});
}

void full_offloads_layer_input_alone(RuleContext& context) { refuse_pairs(context, {81, 323}); }
void qkv_offload_excludes_fusion(RuleContext& context) { refuse_pairs(context, {52}); }
void offloaded_storage_is_kept(RuleContext& context) { refuse_pairs(context, {53, 324}); }

}  // namespace

const std::vector<Rule>& offload_rules() {
  static const std::vector<Rule> rules = {
      {"offload_modules_need_the_flag",
       {103},
       "offload_modules is set only with fine_grained_activation_offloading",
       offload_modules_need_the_flag},
      {"offload_keys_need_the_flag",
       {321},
       "sizes, fraction and cap of offload are set only with fine_grained_activation_offloading",
       offload_keys_need_the_flag},
      {"offload_has_modules", {66}, "fine_grained_activation_offloading has a list of offload_modules", offload_has_modules},
      {"offload_modules_are_unique", {104}, "offload_modules names each module once", offload_modules_are_unique},
      {"gdn_offload_needs_linear_layers",
       {49, 81},
       "offload of the linear mixer goes with a model that has linear layers; gdn and gdn2, fp32 and bf16, always deterministic (upstream: gdn in bf16)",
       gdn_offload_needs_linear_layers},
      {"core_attn_offload_needs_softmax_layers",
       {326},
       "core_attn and attn_proj offload go with a model that has softmax attention",
       core_attn_offload_needs_softmax_layers},
      {"attn_proj_needs_core_attn", {68}, "attn_proj offload goes with core_attn offload", attn_proj_needs_core_attn},
      {"layer_input_needs_full", {322}, "layer_input offload goes with full recompute", layer_input_needs_full},
      {"full_offloads_layer_input_alone",
       {81, 323},
       "with full recompute only layer_input is offloaded",
       full_offloads_layer_input_alone},
      {"qkv_offload_excludes_fusion",
       {52},
       "gdn_qkv offload goes without gdn_pre_gated_delta_rule_fusion",
       qkv_offload_excludes_fusion},
      {"offloaded_storage_is_kept", {53, 324}, "no recompute region frees a storage that is offloaded", offloaded_storage_is_kept},
  };
  return rules;
}

}  // namespace deltron
