// See human.h.
#include "src/base/human.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace deltron {
namespace {

std::string print(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

}  // namespace

std::string human_bytes(std::uint64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return (unit == 0 ? std::to_string(bytes) : print("%.2f", value)) + " " + units[unit];
}

std::string human_count(double count) {
  const char* units[] = {"", " K", " M", " B", " T"};
  int unit = 0;
  while (std::fabs(count) >= 1000 && unit < 4) {
    count /= 1000;
    ++unit;
  }
  return (unit == 0 ? print("%.0f", count) : print("%.2f", count)) + units[unit];
}

std::string human_seconds(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 60) return print("%.1f s", seconds);
  const auto total = static_cast<std::int64_t>(seconds + 0.5);
  char text[64];
  if (total < 3600) {
    std::snprintf(text, sizeof(text), "%lld min %02lld s", static_cast<long long>(total / 60), static_cast<long long>(total % 60));
  } else {
    std::snprintf(text, sizeof(text), "%lld h %02lld min", static_cast<long long>(total / 3600),
                  static_cast<long long>(total % 3600 / 60));
  }
  return text;
}

std::string shortest(double value) {
  char text[64];
  const auto result = std::to_chars(text, text + sizeof(text), value);
  return std::string(text, result.ptr);
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string thousands(std::int64_t value) {
  std::string digits = std::to_string(value < 0 ? -value : value);
  for (std::ptrdiff_t place = static_cast<std::ptrdiff_t>(digits.size()) - 3; place > 0; place -= 3) {
    digits.insert(static_cast<std::size_t>(place), ",");
  }
  return value < 0 ? "-" + digits : digits;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t dim = 0; dim < shape.size(); ++dim) text += (dim > 0 ? "," : "") + std::to_string(shape[dim]);
  return text + "]";
}

}  // namespace deltron
