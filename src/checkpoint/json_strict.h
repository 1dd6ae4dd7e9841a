// JSON of files that may be damaged or hostile: duplicate keys, deep nesting and numbers out of range are errors.
// Knows nothing of what the JSON means.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "src/base/error.h"

namespace deltron {

inline constexpr int kJsonDepthLimit = 64;

// Parses the whole text; throws Error(code) with `where` and the byte position.
nlohmann::json parse_json_strict(std::string_view text, const std::string& where, ErrorCode code);

// A string as a JSON literal, quotes included.
std::string json_quoted(const std::string& text);

}  // namespace deltron
