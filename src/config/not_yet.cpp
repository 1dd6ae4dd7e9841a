// Keys, or words of keys, that this version refuses because what they ask for does not exist yet.
// Delete an entry when its feature lands; nothing else needs to change.
#include <algorithm>

#include "src/config/rules.h"

namespace deltron {
namespace {

struct NotYet {
  const char* name;
  std::vector<const char*> words;  // the refused words; empty: every value but the default
};

const std::vector<NotYet>& run_entries() {
  static const std::vector<NotYet> entries = {
      {"parallel.pipeline_model_parallel_size", {}},
  };
  return entries;
}

void refuse(RuleContext& context, const std::vector<NotYet>& entries) {
  for (const NotYet& entry : entries) {
    if (is_default(context.config, entry.name)) continue;
    const Field& field = field_of(entry.name);
    const std::string value = value_text(field, field.get(context.config));
    if (!entry.words.empty() && std::find(entry.words.begin(), entry.words.end(), value) == entry.words.end()) continue;
    context.report(ErrorCode::ConfigNotAvailable, {entry.name},
                   {field.name() + " is not available in this version", "", value, "", "leave it at " + value_text(field, field.default_value)});
  }
}

void refuse_in_run(RuleContext& context) { refuse(context, run_entries()); }

}  // namespace

const std::vector<Rule>& not_yet_rules() {
  static const std::vector<Rule> rules = {{"features_exist", {392}, "features of the run that this version lacks are refused", refuse_in_run}};
  return rules;
}

}  // namespace deltron
