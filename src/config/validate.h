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
// reported already, so rules that involve them keep silent. `world_size`: all ranks of the job.
std::vector<std::string> validate(const RunConfig& config, const ConfigSources& sources = {}, std::int64_t world_size = 1);
// Only what concerns the network, for models that do not come from a configuration file.
std::vector<std::string> validate_model(const TransformerConfig& model);
// Throws ConfigInvalid with all violations.
void validate_or_throw(const RunConfig& config, const ConfigSources& sources = {}, std::int64_t world_size = 1);

// For the rules page and for tests.
struct RuleInfo {
  std::string id;
  std::string description;
};
std::vector<RuleInfo> validation_rules();

}  // namespace deltron
