// The inside of validate.h: what a rule is, what it is given, and where the tables of rules are. For src/config/rules_*.cpp.
#pragma once

#include <string>
#include <vector>

#include "src/config/region_table.h"
#include "src/config/schema.h"
#include "src/config/validate.h"

namespace deltron {

class RuleContext {
 public:
  RuleContext(const RunConfig& run_config, const ConfigSources& sources, std::int64_t ranks)
      : config(run_config), world_size(ranks > 0 ? ranks : model_ranks(run_config.parallel)), sources_(sources) {}
  // Ranks that hold one copy of the model.
  static std::int64_t model_ranks(const ParallelConfig& parallel) {
    return parallel.tensor_model_parallel_size * parallel.context_parallel_size * parallel.pipeline_model_parallel_size;
  }

  // `names`: the keys involved ("section.key"); the first gives the place. Silent if one of them could not be read.
  void report(ErrorCode code, const std::vector<std::string>& names, ErrorText text);
  void missing(const std::string& name, const std::string& rule, const std::vector<std::string>& because = {});
  // Reports each of `names` that is not at its default: nothing reads it while `governing` is as it is.
  void without_effect(const std::vector<std::string>& names, const std::string& rule, const std::vector<std::string>& governing,
                      const std::string& fix);

  const RunConfig& config;
  const std::int64_t world_size;
  std::vector<std::string> faults = {};

 private:
  const ConfigSources& sources_;
};

struct Rule {
  const char* id;
  std::vector<int> numbers;  // up to 105: rows of Megatron's rules; from 200: our own. docs/config_rules.md lists them
  const char* description;
  void (*check)(RuleContext&);
};

const Field& field_of(const std::string& name);  // "section.key"
bool is_default(const RunConfig& config, const std::string& name);

// The layer pattern can be asked for: layers, variant and linear_attention_freq fit together.
bool layers_known(const TransformerConfig& model);
bool has_linear_layers(const TransformerConfig& model);   // false while the pattern is not known
bool has_softmax_layers(const TransformerConfig& model);  // false while the pattern is not known

// Reports every pair of active_modules() that the table of region_table.h forbids by one of `numbers`.
void refuse_pairs(RuleContext& context, const std::vector<int>& numbers);
// Reports the active modules of this use that need layers of a kind that the model lacks.
void refuse_without_layers(RuleContext& context, ModuleUse use, LayerNeed need);
// Reports the words that `name` ("section.key", a list) has more than once.
void refuse_repetitions(RuleContext& context, const std::string& name);

// All rules but those of not_yet.cpp: whether the configuration is coherent, be its features there or not.
std::vector<std::string> incoherences(const RunConfig& config, const ConfigSources& sources = {}, std::int64_t world_size = 1);

const std::vector<Rule>& model_rules();
const std::vector<Rule>& training_rules();
const std::vector<Rule>& data_rules();
const std::vector<Rule>& recompute_rules();
const std::vector<Rule>& offload_rules();
const std::vector<Rule>& parallel_rules();
const std::vector<Rule>& not_yet_rules();

}  // namespace deltron
