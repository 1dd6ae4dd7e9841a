// Held-out evaluation: every label of a split predicted once; loss, perplexity, bits per character and per byte, top-1 accuracy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/train/session.h"

namespace deltron {

struct EvaluationResult {
  std::string name;              // data set
  double nats = 0;               // summed over predictions
  std::int64_t predictions = 0;
  std::int64_t correct = 0;      // argmax equals the label
  std::int64_t characters = 0;   // of the held-out text; 0: unknown
  std::int64_t bytes = 0;
  double seconds = 0;
  double loss() const { return predictions > 0 ? nats / static_cast<double>(predictions) : 0; }
  double accuracy() const { return predictions > 0 ? static_cast<double>(correct) / static_cast<double>(predictions) : 0; }
  double perplexity() const;
  double bits_per_character() const;  // 0: unknown
  double bits_per_byte() const;
};

struct EvaluateOptions {
  Split split = Split::Valid;
  std::int64_t seq_length = 0;            // context; 0: the training length
  std::int64_t max_batches = 0;           // 0: the whole split
  std::int64_t samples = 1024;            // of a synthetic task
  bool without_linear_mixers = false;     // ablation: the GDN layers' mixers contribute nothing
};

// One result for every data set of data.data_path (one for a synthetic task). Polls for stop signals. With several ranks all call it: batches
// go round the data-parallel ones, and every rank has the whole result.
std::vector<EvaluationResult> evaluate(Session& session, const EvaluateOptions& options);

std::string to_text(const EvaluationResult& result);

}  // namespace deltron
