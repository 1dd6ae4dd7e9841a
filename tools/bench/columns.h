// Columns of the tables of `deltron bench`.
#pragma once

#include <algorithm>
#include <string>

#include "src/base/human.h"

namespace deltron::tools {

inline std::string left(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size() + 1), ' ');
  return text;
}
inline std::string right(const std::string& text, std::size_t width) { return (text.size() < width ? std::string(width - text.size(), ' ') : "") + text; }
inline std::string bytes_text(std::int64_t bytes) { return human_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(bytes, 0))); }

}  // namespace deltron::tools
