// Rules of section `recompute`, alone and with the network; with offload: rules_offload.cpp.
#include "src/config/rules.h"

namespace deltron {
namespace {

constexpr const char* kGranularity = "recompute.recompute_granularity";
constexpr const char* kMethod = "recompute.recompute_method";
constexpr const char* kNumLayers = "recompute.recompute_num_layers";
constexpr const char* kModules = "recompute.recompute_modules";

bool granularity_is(const RuleContext& context, RecomputeGranularity granularity) {
  return context.config.recompute.recompute_granularity == granularity;
}

void full_has_a_method(RuleContext& context) {
  if (!granularity_is(context, RecomputeGranularity::Full) || context.config.recompute.recompute_method != RecomputeMethod::None)
    return;
  context.missing(kMethod, "recompute_granularity: full repeats groups of layers (uniform) or the first ones (block)",
                  {kGranularity});
}

void full_has_num_layers(RuleContext& context) {
  if (!granularity_is(context, RecomputeGranularity::Full) || context.config.recompute.recompute_num_layers != 0) return;
  context.missing(kNumLayers, "recompute_granularity: full needs the layers of a group (uniform) or the layers repeated (block)",
                  {kGranularity});
}

void num_layers_needs_full(RuleContext& context) {
  if (granularity_is(context, RecomputeGranularity::Full)) return;
  context.without_effect({kNumLayers}, "read only with recompute_granularity: full", {kGranularity},
                         "remove it or set recompute_granularity: full");
}

void method_needs_full(RuleContext& context) {
  if (granularity_is(context, RecomputeGranularity::Full)) return;
  context.without_effect({kMethod}, "read only with recompute_granularity: full", {kGranularity},
                         "remove it or set recompute_granularity: full");
}

void num_layers_fits(RuleContext& context) {
  const std::int64_t layers = context.config.model.num_layers;
  const std::int64_t asked = context.config.recompute.recompute_num_layers;
  if (!granularity_is(context, RecomputeGranularity::Full) || layers == 0 || asked <= layers) return;
  context.report(
      ErrorCode::ConfigInconsistent, {kNumLayers, "model.num_layers", kGranularity},
      {std::string(kNumLayers) + " is more than the model has", "", std::to_string(asked) + " of " + std::to_string(layers),
       "layers are recomputed once", "the largest legal value is " + std::to_string(layers)});
}

void modules_need_selective(RuleContext& context) {
  if (granularity_is(context, RecomputeGranularity::Selective)) return;
  const bool full = granularity_is(context, RecomputeGranularity::Full);
  context.without_effect(
      {kModules}, full ? "rule 103: recompute_granularity: full repeats whole layers" : "rule 103: recompute_granularity is none",
      {kGranularity}, "remove it or set recompute_granularity: selective");
}

void selective_has_modules(RuleContext& context) {
  if (!granularity_is(context, RecomputeGranularity::Selective) || !context.config.recompute.recompute_modules.empty()) return;
  context.missing(kModules, "recompute_granularity: selective recomputes the regions of this list, and nothing is implied",
                  {kGranularity});
}

void recompute_modules_are_unique(RuleContext& context) { refuse_repetitions(context, kModules); }

void gdn_regions_need_linear_layers(RuleContext& context) {
  refuse_without_layers(context, ModuleUse::Recompute, LayerNeed::Linear);
}
void core_attn_needs_softmax_layers(RuleContext& context) {
  refuse_without_layers(context, ModuleUse::Recompute, LayerNeed::Softmax);
}
void regions_do_not_overlap(RuleContext& context) { refuse_pairs(context, {46, 50, 304}); }
void qkv_recompute_excludes_fusion(RuleContext& context) { refuse_pairs(context, {51}); }

}  // namespace

const std::vector<Rule>& recompute_rules() {
  static const std::vector<Rule> rules = {
      {"full_has_a_method", {34}, "recompute_granularity full has recompute_method", full_has_a_method},
      {"full_has_num_layers", {35}, "recompute_granularity full has recompute_num_layers", full_has_num_layers},
      {"num_layers_needs_full", {36}, "recompute_num_layers is set only with recompute_granularity full", num_layers_needs_full},
      {"method_needs_full", {37}, "recompute_method is set only with recompute_granularity full", method_needs_full},
      {"num_layers_fits", {301}, "recompute_num_layers is at most num_layers", num_layers_fits},
      {"modules_need_selective",
       {103},
       "recompute_modules is set only with recompute_granularity selective",
       modules_need_selective},
      {"selective_has_modules", {302}, "recompute_granularity selective has a list of recompute_modules", selective_has_modules},
      {"recompute_modules_are_unique", {104}, "recompute_modules names each region once", recompute_modules_are_unique},
      {"gdn_regions_need_linear_layers",
       {44, 45, 47, 48, 306},
       "regions of the linear mixer go with a model that has linear layers",
       gdn_regions_need_linear_layers},
      {"core_attn_needs_softmax_layers",
       {303},
       "core_attn recompute goes with a model that has softmax attention",
       core_attn_needs_softmax_layers},
      {"regions_do_not_overlap", {46, 50, 304}, "no region of recompute_modules covers another", regions_do_not_overlap},
      {"qkv_recompute_excludes_fusion",
       {51},
       "gdn_qkv recompute goes without gdn_pre_gated_delta_rule_fusion",
       qkv_recompute_excludes_fusion},
  };
  return rules;
}

}  // namespace deltron
