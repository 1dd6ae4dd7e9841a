// Rows of the table-driven test of rules: a configuration, and the one fault that a rule finds in it.
#pragma once

#include <string>
#include <vector>

#include "src/base/error.h"
#include "tests/config/config_text.h"

namespace deltron::testing {

struct RuleRow {
  std::string rule;
  std::vector<Edit> config;
  ErrorCode code;
  std::string at;    // whose place the message has
  std::string part;  // of the message
};

std::vector<RuleRow> recompute_rows();
std::vector<RuleRow> offload_rows();
std::vector<RuleRow> parallel_rows();

// A legal base with recompute and offload switched on for what is listed; "full" asks for full recompute.
std::vector<Edit> with_modules(const std::vector<Edit>& base, const std::vector<std::string>& recompute,
                               const std::vector<std::string>& offload);

}  // namespace deltron::testing
