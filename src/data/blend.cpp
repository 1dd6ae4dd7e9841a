// See blend.h.
#include "src/data/blend.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/human.h"
#include "src/base/signals.h"

namespace deltron {
namespace {

[[noreturn]] void invalid(const std::string& what, const std::string& values, const std::string& rule) {
  throw Error(ErrorCode::DataOptionInvalid,
              ErrorText{what, "data.data_path", values, rule, "write [PREFIX_A, PREFIX_B], or [0.3, PREFIX_A, 0.7, PREFIX_B]"});
}

bool parse_number(const std::string& text, double& value) {
  char* end = nullptr;
  value = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

}  // namespace

std::vector<WeightedPath> parse_data_path(const std::vector<std::string>& items) {
  if (items.empty()) invalid("no data set", "", "at least one prefix");
  double number = 0;
  if (items.size() == 1 ||
      std::none_of(items.begin(), items.end(), [&](const std::string& item) { return parse_number(item, number); })) {
    std::vector<WeightedPath> equal;
    for (const std::string& item : items) equal.push_back(WeightedPath{1.0, item});
    return equal;
  }
  if (items.size() % 2 != 0) {
    invalid("weights and prefixes do not pair up", std::to_string(items.size()) + " items",
            "prefixes alone, or weight and prefix in turn");
  }
  std::vector<WeightedPath> paths;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    double weight = 0;
    if (!parse_number(items[i], weight)) invalid("not a weight", "'" + items[i] + "'", "weight and prefix in turn");
    if (!std::isfinite(weight) || weight <= 0) invalid("weight out of range", items[i], "weights are above 0");
    paths.push_back(WeightedPath{weight, items[i + 1]});
  }
  if (paths.size() > static_cast<std::size_t>(std::numeric_limits<std::int16_t>::max())) {
    invalid("too many data sets", std::to_string(paths.size()), "at most 32,767");
  }
  return paths;
}

std::vector<double> normalise_weights(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  std::vector<double> result;
  for (const double weight : weights) result.push_back(weight / sum);
  return result;
}

std::int64_t blend_source_samples(double normalised_weight, std::int64_t samples) {
  return static_cast<std::int64_t>(std::ceil(std::ceil(static_cast<double>(samples) * normalised_weight) * 1.005));
}

Blend build_blend(const std::vector<double>& weights, std::int64_t samples) {
  const std::vector<double> share = normalise_weights(weights);
  std::vector<std::int64_t> count(share.size(), 0);
  Blend blend;
  blend.source.reserve(static_cast<std::size_t>(samples));
  blend.sample.reserve(static_cast<std::size_t>(samples));
  for (std::int64_t step = 0; step < samples; ++step) {
    if ((step & 0xfffff) == 0) poll_stop("building a blend");
    const double so_far = std::max(static_cast<double>(step), 1.0);
    std::size_t best = 0;
    double best_lag = share[0] * so_far - static_cast<double>(count[0]);
    for (std::size_t i = 1; i < share.size(); ++i) {
      const double lag = share[i] * so_far - static_cast<double>(count[i]);
      if (lag > best_lag) {
        best = i;
        best_lag = lag;
      }
    }
    blend.source.push_back(static_cast<std::int16_t>(best));
    blend.sample.push_back(count[best]++);
  }
  return blend;
}

BlendedSource::BlendedSource(std::vector<std::shared_ptr<const SampleSource>> sources, const std::vector<double>& weights,
                             std::int64_t samples)
    : sources_(std::move(sources)), blend_(build_blend(weights, samples)) {
  DELTRON_CHECK_EQ(sources_.size(), weights.size(), "weights of a blend");
  for (const auto& source : sources_) DELTRON_CHECK_EQ(source->seq_length(), seq_length(), "blend of unequal sequence lengths");
}

void BlendedSource::read(std::int64_t sample, Sample& out) const {
  DELTRON_CHECK(sample >= 0 && sample < num_samples(), "sample ", sample, " of ", num_samples());
  const std::size_t i = static_cast<std::size_t>(sample);
  sources_[static_cast<std::size_t>(blend_.source[i])]->read(blend_.sample[i], out);
}

std::string BlendedSource::describe() const {
  return "blend of " + std::to_string(sources_.size()) + " data sets, " + thousands(num_samples()) + " samples";
}

}  // namespace deltron
