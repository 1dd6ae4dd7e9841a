// What ties configuration keys together: one function a rule, one table of rules, every violation reported together.
// Read by the loader, by `plan`, by tests and by the rules page. Must not know tensors or devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/config/loader.h"
#include "src/config/run_config.h"

namespace deltron {

// Formatted violations of all rules, empty where the configuration is legal. Keys that could not be read (sources.unreadable) are
// reported already, so rules that involve them keep silent. `world_size`: all ranks of the job; 0: not known yet, taken to be one copy of
// the model.
std::vector<std::string> validate(const RunConfig& config, const ConfigSources& sources = {}, std::int64_t world_size = 1);
// Only what concerns the network, for models that do not come from a configuration file.
std::vector<std::string> validate_model(const TransformerConfig& model);
// Throws ConfigInvalid with all violations.
void validate_or_throw(const RunConfig& config, const ConfigSources& sources = {}, std::int64_t world_size = 1);

// For the rules page and for tests.
struct RuleInfo {
  std::string id;
  std::vector<int> numbers;  // up to 105: rows of Megatron's rules; from 200: our own
  std::string description;
};
std::vector<RuleInfo> validation_rules();

// Rows of Megatron's rules that no rule here carries.
struct RowElsewhere {
  int first;
  int last;
  bool checked;         // elsewhere in Deltron; false: does not apply
  std::string subject;  // of the row
  std::string answer;   // where it is checked, or why it does not apply
};
constexpr int kMegatronRows = 105;
const std::vector<RowElsewhere>& rows_elsewhere();

// docs/config_rules.md
std::string config_rules_markdown();

}  // namespace deltron
