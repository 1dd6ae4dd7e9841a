// Reports on checkpoints as text for people and as JSON; the command line prints them.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/checkpoint/catalog.h"
#include "src/checkpoint/verify.h"

namespace deltron {

struct InspectReport {
  std::string path;
  Manifest manifest;
  std::int64_t elements = 0;  // over all tensors
};
// `path` is a step folder; throws where it has no intact manifest.
InspectReport inspect_checkpoint(const std::string& path);

std::string to_text(const std::vector<CheckpointSummary>& checkpoints);
std::string to_text(const InspectReport& report);
std::string to_text(const VerifyReport& report);
nlohmann::json to_json(const std::vector<CheckpointSummary>& checkpoints);
nlohmann::json to_json(const InspectReport& report);
nlohmann::json to_json(const VerifyReport& report);

}  // namespace deltron
