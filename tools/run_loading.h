// A trained run as commands that only read it want it: configuration and newest complete weights.
#pragma once

#include <string>
#include <vector>

#include "src/train/session.h"

namespace deltron::tools {

struct LoadedModel {
  Session session;
  std::int64_t step = 0;
};
// `step` "" : the newest complete checkpoint. Touches nothing in the run folder.
LoadedModel load_model(const std::string& run, const std::string& step, const std::vector<std::string>& overrides);

}  // namespace deltron::tools
