// Blends of several data sets: which source each sample is taken from, as Megatron chooses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/data/batch.h"

namespace deltron {

struct WeightedPath {
  double weight = 1;
  std::string prefix;
};

// data.data_path: prefixes (equal weights), or weight and prefix in turn ("0.3", "data/a", "0.7", "data/b").
std::vector<WeightedPath> parse_data_path(const std::vector<std::string>& items);

struct Blend {
  std::vector<std::int16_t> source;  // [N]
  std::vector<std::int64_t> sample;  // [N] number of the sample within its source
};

// At step s the source with the largest weight*max(s,1) - count; the first of equals.
Blend build_blend(const std::vector<double>& weights, std::int64_t samples);
// Samples to ask source i for: ceil(ceil(N*w)*1.005).
std::int64_t blend_source_samples(double normalised_weight, std::int64_t samples);
std::vector<double> normalise_weights(const std::vector<double>& weights);

class BlendedSource : public SampleSource {
 public:
  BlendedSource(std::vector<std::shared_ptr<const SampleSource>> sources, const std::vector<double>& weights, std::int64_t samples);
  std::int64_t num_samples() const override { return static_cast<std::int64_t>(blend_.source.size()); }
  std::int64_t seq_length() const override { return sources_.front()->seq_length(); }
  void read(std::int64_t sample, Sample& out) const override;
  std::string describe() const override;

 private:
  std::vector<std::shared_ptr<const SampleSource>> sources_;
  Blend blend_;
};

}  // namespace deltron
