// Multi-query associative recall (Zoology's MQAR): key-value pairs first, then every key once more; the label there is its value.
// A pure function of seed, stream and sample number; endless.
#pragma once

#include <cstdint>
#include <string>

#include "src/data/batch.h"

namespace deltron {

struct MqarOptions {
  std::int64_t vocab_size = 64;  // keys 1 .. vocab/2-1, values vocab/2 .. vocab-1, filler 0
  std::int64_t seq_length = 32;  // at least 4 * pairs
  std::int64_t pairs = 4;
  double power = 0.01;          // queries come at even slots, drawn without replacement with weight x^(power-1)
  bool random_fillers = false;  // true: fillers are random tokens instead of 0
  std::uint64_t seed = 1234;
  bool validation = false;  // another stream of numbers: never the training samples
};

// "mqar" or "mqar:vocab_size=64,pairs=4,random_fillers=1,power=0.01", as it stands in data.data_path.
bool is_mqar_spec(const std::string& text);
MqarOptions parse_mqar_spec(const std::string& text, std::int64_t seq_length, std::uint64_t seed, bool validation);

class MqarSource : public SampleSource {
 public:
  explicit MqarSource(const MqarOptions& options);  // throws DataOptionInvalid
  std::int64_t num_samples() const override { return kEndless; }
  std::int64_t seq_length() const override { return options_.seq_length; }
  void read(std::int64_t sample, Sample& out) const override;
  std::string describe() const override;

 private:
  MqarOptions options_;
};

}  // namespace deltron
