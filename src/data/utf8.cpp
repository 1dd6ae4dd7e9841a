// See utf8.h.
#include "src/data/utf8.h"

#include <algorithm>
#include <cstddef>

namespace deltron {
namespace {

bool is_continuation(unsigned char byte) { return (byte & 0xc0) == 0x80; }

}  // namespace

std::int64_t find_invalid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const std::size_t size = text.size();
  for (std::size_t i = 0; i < size;) {
    const unsigned char lead = bytes[i];
    if (lead < 0x80) {
      ++i;
      continue;
    }
    std::size_t extra = 0;
    unsigned char low = 0x80, high = 0xbf;  // allowed range of the second byte
    if (lead >= 0xc2 && lead <= 0xdf) {
      extra = 1;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      extra = 2;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      extra = 3;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    } else {
      return static_cast<std::int64_t>(i);
    }
    if (i + extra >= size || bytes[i + 1] < low || bytes[i + 1] > high) return static_cast<std::int64_t>(i);
    for (std::size_t k = 2; k <= extra; ++k) {
      if (!is_continuation(bytes[i + k])) return static_cast<std::int64_t>(i);
    }
    i += extra + 1;
  }
  return -1;
}

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return !is_continuation(static_cast<unsigned char>(byte)); });
}

}  // namespace deltron
