// See mqar_source.h.
#include "src/data/mqar_source.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <vector>

#include "src/base/error.h"
#include "src/base/rng.h"
#include "src/base/suggest.h"

namespace deltron {
namespace {

[[noreturn]] void invalid(const std::string& what, const std::string& values, const std::string& rule) {
  throw Error(ErrorCode::DataOptionInvalid,
              ErrorText{what, "mqar", values, rule, "the small setting is mqar:vocab_size=64,pairs=4 at seq_length 32"});
}

// The first `count` entries of a random permutation of first .. first+total-1.
std::vector<std::int32_t> draw_distinct(RngStream& random, std::int64_t first, std::int64_t total, std::int64_t count) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(total));
  std::iota(values.begin(), values.end(), static_cast<std::int32_t>(first));
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    std::swap(values[i], values[i + random.below(values.size() - i)]);
  }
  values.resize(static_cast<std::size_t>(count));
  return values;
}

}  // namespace

bool is_mqar_spec(const std::string& text) { return text == "mqar" || text.rfind("mqar:", 0) == 0; }

MqarOptions parse_mqar_spec(const std::string& text, std::int64_t seq_length, std::uint64_t seed, bool validation) {
  MqarOptions options;
  options.seq_length = seq_length;
  options.seed = seed;
  options.validation = validation;
  for (std::size_t at = text.find(':'); at != std::string::npos && at < text.size();) {
    std::size_t end = text.find(',', at + 1);
    if (end == std::string::npos) end = text.size();
    const std::string item = text.substr(at + 1, end - at - 1);
    at = end;
    const std::size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
    char* rest = nullptr;
    const double number = std::strtod(value.c_str(), &rest);
    if (value.empty() || *rest != '\0') invalid("no number", "'" + item + "'", "options are written name=number");
    const bool whole = std::abs(number) < 1e9 && number == std::floor(number);
    if (name != "power" && !whole) invalid("no whole number", "'" + item + "'", "counts are whole numbers");
    if (name == "vocab_size") {
      options.vocab_size = static_cast<std::int64_t>(number);
    } else if (name == "pairs") {
      options.pairs = static_cast<std::int64_t>(number);
    } else if (name == "power") {
      options.power = number;
    } else if (name == "random_fillers") {
      if (number != 0 && number != 1) invalid("no switch", "'" + item + "'", "random_fillers is 0 or 1");
      options.random_fillers = number == 1;
    } else {
      const std::vector<std::string> known = {"vocab_size", "pairs", "power", "random_fillers"};
      invalid("unknown option", "'" + name + "'" + did_you_mean(name, known), "known: vocab_size, pairs, power, random_fillers");
    }
  }
  return options;
}

MqarSource::MqarSource(const MqarOptions& options) : options_(options) {
  const MqarOptions& o = options_;
  if (o.pairs < 1) invalid("too few pairs", std::to_string(o.pairs), "at least 1");
  if (4 * o.pairs > o.seq_length) {
    invalid("the sequence is too short", std::to_string(o.pairs) + " pairs in " + std::to_string(o.seq_length) + " tokens",
            "4 * pairs <= seq_length");
  }
  if (o.vocab_size > std::numeric_limits<std::int32_t>::max() || o.vocab_size / 2 - 1 < o.pairs) {
    invalid("the vocabulary does not fit", "vocab_size " + std::to_string(o.vocab_size) + ", " + std::to_string(o.pairs) + " pairs",
            "vocab_size / 2 - 1 >= pairs: every key is another token");
  }
  if (!std::isfinite(o.power) || o.power <= 0) invalid("power out of range", std::to_string(o.power), "above 0");
}

void MqarSource::read(std::int64_t sample, Sample& out) const {
  const MqarOptions& o = options_;
  // The layer field of the address tells the two streams apart.
  RngStream random({o.seed, o.validation ? 2u : 1u, kRngSiteData}, static_cast<std::uint64_t>(sample));
  const std::int64_t half = o.vocab_size / 2;
  const std::vector<std::int32_t> keys = draw_distinct(random, 1, half - 1, o.pairs);
  const std::vector<std::int32_t> values = draw_distinct(random, half, o.vocab_size - half, o.pairs);
  const std::size_t length = static_cast<std::size_t>(o.seq_length);
  const std::size_t context = static_cast<std::size_t>(2 * o.pairs);
  out.tokens.assign(length, 0);
  out.labels.assign(length, kIgnoreLabel);
  out.segment_ends.assign(1, o.seq_length);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    out.tokens[2 * i] = keys[i];
    out.tokens[2 * i + 1] = values[i];
  }
  const std::size_t slots = (length - context) / 2;
  std::vector<double> weight(slots);
  double total = 0;
  for (std::size_t slot = 0; slot < slots; ++slot) total += weight[slot] = std::pow(static_cast<double>(slot + 1), o.power - 1.0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    double left = random.uniform() * total;
    std::size_t chosen = slots;
    for (std::size_t slot = 0; slot < slots; ++slot) {
      if (weight[slot] == 0) continue;
      chosen = slot;  // the last free slot also takes what rounding leaves over
      left -= weight[slot];
      if (left < 0) break;
    }
    total -= weight[chosen];
    weight[chosen] = 0;
    out.tokens[context + 2 * chosen] = keys[i];
    out.labels[context + 2 * chosen] = values[i];
  }
  if (!o.random_fillers) return;
  for (std::size_t i = context; i < length; ++i) {
    if (out.labels[i] == kIgnoreLabel)
      out.tokens[i] = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(o.vocab_size)));
  }
}

std::string MqarSource::describe() const {
  return "mqar, vocabulary " + std::to_string(options_.vocab_size) + ", " + std::to_string(options_.pairs) + " pairs in " +
         std::to_string(options_.seq_length) + " tokens, " + (options_.validation ? "validation" : "training") + " stream";
}

}  // namespace deltron
