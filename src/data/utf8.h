// UTF-8: validity and counting of characters (code points).
#pragma once

#include <cstdint>
#include <string_view>

namespace deltron {

// Byte offset of the first ill-formed sequence (overlong forms, surrogates and values above U+10FFFF count), or -1.
std::int64_t find_invalid_utf8(std::string_view text);
// Code points; in ill-formed text, bytes that are no continuation bytes.
std::int64_t count_characters(std::string_view text);

}  // namespace deltron
