// See split.h.
#include "src/data/split.h"

#include <cmath>
#include <cstdlib>
#include <vector>

#include "src/base/error.h"

namespace deltron {
namespace {

[[noreturn]] void invalid(const std::string& text, const std::string& rule) {
  throw Error(ErrorCode::DataOptionInvalid,
              ErrorText{"is invalid", "data.split", "\"" + text + "\"", rule, "write for example \"90,10,0\""});
}

}  // namespace

const char* split_name(Split split) {
  switch (split) {
    case Split::Train:
      return "train";
    case Split::Valid:
      return "valid";
    case Split::Test:
      return "test";
  }
  return "?";
}

Split parse_split_name(const std::string& name) {
  if (name == "train") return Split::Train;
  if (name == "valid") return Split::Valid;
  if (name == "test") return Split::Test;
  throw Error(ErrorCode::DataOptionInvalid,
              ErrorText{"unknown split", "", "'" + name + "'", "train, valid or test", "choose one of these"});
}

std::array<double, 3> parse_split(const std::string& text) {
  std::array<double, 3> weights = {0, 0, 0};
  std::size_t count = 0, at = 0;
  while (at <= text.size()) {
    std::size_t comma = text.find(',', at);
    if (comma == std::string::npos) comma = text.size();
    const std::string item = text.substr(at, comma - at);
    char* end = nullptr;
    const double value = std::strtod(item.c_str(), &end);
    while (end != nullptr && *end == ' ') ++end;
    if (item.empty() || end == item.c_str() || *end != '\0' || !std::isfinite(value) || value < 0) {
      invalid(text, "one to three numbers, none negative");
    }
    if (count == 3) invalid(text, "at most three numbers: train, valid, test");
    weights[count++] = value;
    at = comma + 1;
  }
  const double sum = weights[0] + weights[1] + weights[2];
  if (!(sum > 0)) invalid(text, "at least one number is above 0");
  for (double& weight : weights) weight /= sum;
  return weights;
}

DocumentRange split_range(const std::string& split_text, Split split, std::int64_t documents) {
  const std::array<double, 3> weights = parse_split(split_text);
  std::array<double, 4> ends = {0, weights[0], weights[0] + weights[1], weights[0] + weights[1] + weights[2]};
  const std::size_t i = static_cast<std::size_t>(split);
  auto bound = [&](double share) { return static_cast<std::int64_t>(std::nearbyint(share * static_cast<double>(documents))); };
  return DocumentRange{bound(ends[i]), bound(ends[i + 1])};
}

}  // namespace deltron
