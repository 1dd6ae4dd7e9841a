// What may be combined: the table of regions against the validator, pair by pair, and against the rules written down once more for
// every set of regions and of offload modules. Availability (not_yet.cpp) is left out: `incoherences` judges coherence alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "src/config/rules.h"
#include "tests/config/config_text.h"
#include "tests/config/rule_rows.h"

namespace deltron {
namespace {

using testing::Edit;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RunConfig hybrid_config() { return read_config_text(testing::write_yaml(testing::hybrid_base()).yaml, "test.yaml", {}).config; }

void switch_on(RunConfig& config, const MemoryModule& module) {
  const auto add = [&](std::vector<std::string>& list) {
    for (const std::string& word : list) {
      if (word == module.name) return;
    }
    list.push_back(module.name);
  };
  switch (module.use) {
    case ModuleUse::FullRecompute:
      config.recompute.recompute_granularity = RecomputeGranularity::Full;
      config.recompute.recompute_method = RecomputeMethod::Block;
      config.recompute.recompute_num_layers = 2;
      break;
    case ModuleUse::Recompute:
      add(config.recompute.recompute_modules);
      if (config.recompute.recompute_granularity == RecomputeGranularity::None)
        config.recompute.recompute_granularity = RecomputeGranularity::Selective;
      break;
    case ModuleUse::Offload:
      config.offload.fine_grained_activation_offloading = true;
      add(config.offload.offload_modules);
      break;
    case ModuleUse::Fusion: {
      const Field& field = field_of("model." + module.name);
      field.set(config, true);
      break;
    }
  }
  for (const ModuleRequirement& requirement : module_requirements()) {
    if (requirement.use == module.use && requirement.name == module.name)
      switch_on(config, *find_module(requirement.needed_use, requirement.needed));
  }
}

TEST(Combinations, every_pair_is_accepted_or_refused_as_the_table_says) {
  const std::vector<MemoryModule>& modules = memory_modules();
  int refused = 0;
  for (const MemoryModule& first : modules) {
    for (const MemoryModule& second : modules) {
      SCOPED_TRACE(module_text(first) + " with " + module_text(second));
      RunConfig config = hybrid_config();
      switch_on(config, first);
      switch_on(config, second);
      const std::optional<int> number = excluding_rule(first, second);
      EXPECT_EQ(number, excluding_rule(second, first));
      const std::vector<std::string> faults = incoherences(config);
      if (!number) {
        EXPECT_THAT(faults, IsEmpty());
        continue;
      }
      ++refused;
      EXPECT_THAT(faults, ::testing::Contains(HasSubstr("rule " + std::to_string(*number) + ":")));
    }
  }
  EXPECT_GT(refused, 0);
}

using Names = std::set<std::string>;

Names subset(const std::vector<std::string>& words, unsigned bits) {
  Names chosen;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if ((bits >> i & 1U) != 0) chosen.insert(words[i]);
  }
  return chosen;
}

// Written apart from the table.
bool legal_regions(const Names& r) {
  const bool parts =
      r.count("gdn_in_proj") + r.count("gdn_qkv") + r.count("gdn_norm_out") + r.count("gdn_core_attn") + r.count("gdn_qkv_block") >
      0;
  if (r.count("gdn") != 0 && parts) return false;
  return r.count("gdn_qkv_block") == 0 || r.count("gdn_in_proj") + r.count("gdn_qkv") == 0;
}

bool legal_offload(const Names& r, const Names& o, bool pre_rule_fusion) {
  const auto recompute = [&](const char* name) { return r.count(name) != 0; };
  if (o.count("layer_input") != 0) return false;  // no full recompute here
  if (o.count("attn_proj") != 0 && o.count("core_attn") == 0) return false;
  if (o.count("core_attn") != 0 && recompute("core_attn")) return false;
  if (o.count("gdn_qkv") != 0 && (recompute("gdn") || recompute("gdn_in_proj") || recompute("gdn_qkv_block") || pre_rule_fusion))
    return false;
  if (o.count("gdn_core_attn") != 0 &&
      (recompute("gdn") || recompute("gdn_core_attn") || recompute("gdn_qkv") || recompute("gdn_qkv_block")))
    return false;
  return !(recompute("gdn_qkv") && pre_rule_fusion);
}

TEST(Combinations, every_set_of_regions_offload_modules_and_fusions_is_judged_by_its_pairs) {
  const std::vector<std::string> regions = module_words(ModuleUse::Recompute);
  const std::vector<std::string> offloads = module_words(ModuleUse::Offload);
  ASSERT_EQ(regions.size(), 8u);
  ASSERT_EQ(offloads.size(), 5u);
  RunConfig config = hybrid_config();
  int legal_sets = 0;
  for (unsigned bits = 0; bits < 1U << (regions.size() + offloads.size() + 1); ++bits) {
    const Names r = subset(regions, bits);
    const Names o = subset(offloads, bits >> regions.size());
    const bool fusion = (bits >> (regions.size() + offloads.size()) & 1U) != 0;
    config.recompute.recompute_granularity = r.empty() ? RecomputeGranularity::None : RecomputeGranularity::Selective;
    config.recompute.recompute_modules.assign(r.begin(), r.end());
    config.offload.fine_grained_activation_offloading = !o.empty();
    config.offload.offload_modules.assign(o.begin(), o.end());
    config.model.gdn_pre_gated_delta_rule_fusion = fusion;
    const ConfigSources sources;
    RuleContext context(config, sources, 1);
    for (const std::vector<Rule>* table : {&recompute_rules(), &offload_rules()}) {
      for (const Rule& rule : *table) rule.check(context);
    }
    const bool legal = legal_regions(r) && legal_offload(r, o, fusion);
    legal_sets += legal ? 1 : 0;
    ASSERT_EQ(context.faults.empty(), legal) << ::testing::PrintToString(r) << ::testing::PrintToString(o) << fusion
                                             << ::testing::PrintToString(context.faults);
  }
  EXPECT_GT(legal_sets, 100);
}

TEST(Combinations, full_recompute_takes_layer_input_alone) {
  for (const char* method : {"uniform", "block"}) {
    std::vector<Edit> edits = testing::edited(testing::with_modules(testing::hybrid_base(), {"full"}, {"layer_input"}),
                                              {{"recompute.recompute_method", method}});
    const LoadedConfig loaded = read_config_text(testing::write_yaml(edits).yaml, "test.yaml", {});
    EXPECT_THAT(loaded.faults, IsEmpty());
    EXPECT_THAT(incoherences(loaded.config, loaded.sources), IsEmpty());
  }
}

TEST(Combinations, all_violations_are_reported_together_with_their_places) {
  const testing::Written written = testing::write_yaml(testing::edited(
      testing::with_modules(testing::gdn_base(), {"gdn", "gdn_qkv", "gdn_in_proj", "core_attn", "gdn"}, {"gdn_qkv", "attn_proj"}),
      {{"recompute.recompute_num_layers", "2"}}));
  const LoadedConfig loaded = read_config_text(written.yaml, "test.yaml", {});
  ASSERT_THAT(loaded.faults, IsEmpty());
  const std::vector<std::string> faults = incoherences(loaded.config, loaded.sources);
  const std::string regions = " test.yaml:" + written.places.at("recompute.recompute_modules") + ": ";
  const std::string offloads = " test.yaml:" + written.places.at("offload.offload_modules") + ": ";
  EXPECT_THAT(faults,
              ::testing::UnorderedElementsAre(HasSubstr("recompute.recompute_num_layers has no effect (2)"),
                                              HasSubstr(regions + "recompute.recompute_modules names a module twice ('gdn')"),
                                              HasSubstr(regions + "core_attn recompute on a model without softmax"),
                                              HasSubstr(regions + "gdn recompute with gdn_in_proj recompute"),
                                              HasSubstr(regions + "gdn recompute with gdn_qkv recompute"),
                                              HasSubstr(offloads + "attn_proj offload on a model without softmax"),
                                              HasSubstr(offloads + "attn_proj offload without core_attn offload"),
                                              HasSubstr(offloads + "gdn_qkv offload with gdn_in_proj recompute"),
                                              HasSubstr(offloads + "gdn_qkv offload with gdn recompute")));
}

TEST(Combinations, words_that_would_free_nothing_are_refused_with_the_reason_at_their_place) {
  const struct {
    const char* yaml;
    const char* place;
    const char* part;
  } rows[] = {
      {"recompute: {recompute_modules: [mlp, layernorm]}\n",
       "E122 t.yaml:1:38: ", "('layernorm'); rule: rule 305: it would free nothing"},
      {"offload: {offload_modules: [attn_norm]}\n", "E122 t.yaml:1:29: ", "('attn_norm'); rule: rule 325: it would free nothing"},
      {"offload: {offload_modules: [mlp_norm]}\n", "E122 t.yaml:1:29: ", "normalised inputs are never kept"},
      {"recompute: {recompute_modules: [gdn_qvk]}\n", "E106 t.yaml:1:33: ", "did you mean 'gdn_qkv'?"},
      {"offload: {offload_modules: [moe_act]}\n",
       "E106 t.yaml:1:29: ", "one of gdn_qkv, gdn_core_attn, core_attn, attn_proj, layer_input"},
      {"recompute: {recompute_granularity: selectiv}\n", "E106 t.yaml:1:36: ", "did you mean 'selective'?"},
      {"recompute: {recompute_method: blocks}\n", "E106 t.yaml:1:31: ", "did you mean 'block'?"},
      {"offload: {activation_offload_fraction: 1.5}\n", "E105 t.yaml:1:40: ", "the largest legal value is 1"},
      {"offload: {min_offloaded_tensor_size: -1}\n", "E105 t.yaml:1:38: ", "the smallest legal value is 0"},
      {"offload: {fine_grained_offloading_max_inflight_offloads: -2}\n", "E105 t.yaml:1:58: ", "the smallest legal value is -1"},
  };
  for (const auto& row : rows) {
    const std::vector<std::string> faults = read_config_text(row.yaml, "t.yaml", {}).faults;
    ASSERT_EQ(faults.size(), 1u) << row.yaml;
    EXPECT_EQ(faults.front().substr(0, std::string(row.place).size()), row.place);
    EXPECT_THAT(faults.front(), HasSubstr(row.part));
  }
}

TEST(Combinations, every_wrong_word_of_a_list_is_reported) {
  const LoadedConfig loaded = read_config_text("recompute: {recompute_modules: [layernorm, moe, mlp, gdn_qvk]}\n", "t.yaml", {});
  ASSERT_EQ(loaded.faults.size(), 3u);
  EXPECT_TRUE(loaded.config.recompute.recompute_modules.empty());
  EXPECT_THAT(validate(loaded.config, loaded.sources), ::testing::Each(::testing::Not(HasSubstr("recompute"))));  // said already
}

TEST(Combinations, a_refused_word_is_refused_in_configurations_made_in_code) {
  RunConfig config = hybrid_config();
  config.recompute.recompute_granularity = RecomputeGranularity::Selective;
  config.recompute.recompute_modules = {"layernorm"};
  EXPECT_THAT(
      validate(config),
      ::testing::ElementsAre(HasSubstr("E122 recompute.recompute_modules has a word that would have no effect ('layernorm')")));
}

}  // namespace
}  // namespace deltron
