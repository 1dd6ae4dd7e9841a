// Runs the tables of rules; see validate.h and rules.h.
#include "src/config/validate.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/config/rules.h"

namespace deltron {
namespace {

// Configurations made in code never passed the loader's checks of single values.
void check_single_values(RuleContext& context) {
  for (const Field& field : config_fields()) {
    const auto fault = check_value(field, field.get(context.config));
    if (!fault) continue;
    context.report(fault->code, {field.name()}, {field.name() + " " + fault->what, "", fault->values, fault->rule, fault->fix});
  }
}

const std::vector<Rule>& value_rules() {
  static const std::vector<Rule> rules = {{"single_values", {3, 7, 11, 32, 33, 40, 67, 70, 71, 73, 200, 305, 325}, "every value is in its key's range and among its words: pipeline size (3), variant (7), convolution taps (11), granularity (32), "
       "method (33), regions (40), offload modules (67), size (70), fraction (71), cap (73), every other key (200); layernorm (305), attn_norm and "
       "mlp_norm (325) are refused with the reason", check_single_values}};
  return rules;
}

const std::vector<const std::vector<Rule>*>& coherence_tables() {
  static const std::vector<const std::vector<Rule>*> tables = {&model_rules(),   &recompute_rules(), &offload_rules(),
                                                               &parallel_rules(), &training_rules(),  &data_rules()};
  return tables;
}

// Rules assume values in range, so they run only where single values are legal.
std::vector<std::string> run(const std::vector<const std::vector<Rule>*>& tables, RuleContext& context) {
  check_single_values(context);
  if (!context.faults.empty()) return context.faults;
  for (const std::vector<Rule>* table : tables) {
    for (const Rule& rule : *table) rule.check(context);
  }
  return context.faults;
}

}  // namespace

void RuleContext::report(ErrorCode code, const std::vector<std::string>& names, ErrorText text) {
  for (const std::string& name : names) {
    if (sources_.unreadable.count(name) != 0) return;
  }
  const Field& field = field_of(names.front());
  text.where = sources_.where(field.section, field.key);
  faults.push_back(format_error(code, text));
}

void RuleContext::missing(const std::string& name, const std::string& rule, const std::vector<std::string>& because) {
  std::vector<std::string> names = {name};
  names.insert(names.end(), because.begin(), because.end());
  const Field& field = field_of(name);
  report(ErrorCode::ConfigMissingKey, names, {name + " is not set", "", "", rule, "add " + field.key + " to section '" + field.section + "'"});
}

void RuleContext::without_effect(const std::vector<std::string>& names, const std::string& rule, const std::vector<std::string>& governing,
                                 const std::string& fix) {
  for (const std::string& name : names) {
    if (is_default(config, name)) continue;
    std::vector<std::string> involved = {name};
    involved.insert(involved.end(), governing.begin(), governing.end());
    const Field& field = field_of(name);
    report(ErrorCode::ConfigNoEffect, involved, {name + " has no effect", "", value_text(field, field.get(config)), rule, fix});
  }
}

const Field& field_of(const std::string& name) {
  const std::size_t dot = name.find('.');
  const Field* field = find_field(name.substr(0, dot), name.substr(dot + 1));
  DELTRON_CHECK(field != nullptr, "no key ", name);
  return *field;
}

bool is_default(const RunConfig& config, const std::string& name) {
  const Field& field = field_of(name);
  return field.get(config) == field.default_value;
}

bool layers_known(const TransformerConfig& model) {
  if (model.num_layers == 0) return false;
  if (model.experimental_attention_variant == ExperimentalAttentionVariant::None) return true;
  const LinearAttentionFreq& freq = model.linear_attention_freq;
  if (freq.pattern.empty()) return freq.interval >= 0;
  return static_cast<std::int64_t>(freq.pattern.size()) == model.num_layers;
}

bool has_linear_layers(const TransformerConfig& model) { return layers_known(model) && linear_layer_count(model) > 0; }
bool has_softmax_layers(const TransformerConfig& model) { return layers_known(model) && softmax_layer_count(model) > 0; }

std::vector<std::string> validate(const RunConfig& config, const ConfigSources& sources, std::int64_t world_size) {
  RuleContext context(config, sources, world_size);
  std::vector<const std::vector<Rule>*> tables = coherence_tables();
  tables.push_back(&not_yet_rules());
  return run(tables, context);
}

std::vector<std::string> incoherences(const RunConfig& config, const ConfigSources& sources, std::int64_t world_size) {
  RuleContext context(config, sources, world_size);
  return run(coherence_tables(), context);
}

std::vector<std::string> validate_model(const TransformerConfig& model) {
  RunConfig config;
  config.model = model;
  const ConfigSources sources;
  RuleContext context(config, sources, 1);
  return run({&model_rules()}, context);
}

void validate_or_throw(const RunConfig& config, const ConfigSources& sources, std::int64_t world_size) {
  const std::vector<std::string> faults = validate(config, sources, world_size);
  if (!faults.empty()) throw Error::together(ErrorCode::ConfigInvalid, faults);
}

std::vector<RuleInfo> validation_rules() {
  std::vector<RuleInfo> infos;
  std::vector<const std::vector<Rule>*> tables = {&value_rules()};
  tables.insert(tables.end(), coherence_tables().begin(), coherence_tables().end());
  tables.push_back(&not_yet_rules());
  for (const std::vector<Rule>* table : tables) {
    for (const Rule& rule : *table) infos.push_back({rule.id, rule.numbers, rule.description});
  }
  return infos;
}

}  // namespace deltron
