// Sampling from a trained model.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "src/train/session.h"

namespace deltron {

struct GenerateOptions {
  std::int64_t max_tokens = 200;
  double temperature = 1.0;       // 0: always the most probable token
  std::int64_t top_k = 0;         // 0: all
  double top_p = 1.0;             // smallest set of tokens whose probability reaches it
  std::uint64_t seed = 1234;
  std::int32_t end_token = -1;    // stops here; -1: never stops
};

struct GenerateReport {
  std::int64_t prompt_tokens = 0, drawn = 0;
  double prompt_seconds = 0, seconds = 0;  // reading the prompt, and all later tokens
  bool ended = false;                      // by end_token
};

// Appends up to max_tokens ids to `tokens` (at least one to begin with). `emit` sees each as it is drawn. One pass over the prompt,
// then one token at a time on recurrent state, convolution state and key-value cache.
GenerateReport generate(Session& session, std::vector<std::int32_t>& tokens, const GenerateOptions& options,
              const std::function<void(std::int32_t)>& emit);

// One draw from logits [vocab].
std::int32_t sample_token(const std::vector<double>& logits, const GenerateOptions& options, double uniform);

}  // namespace deltron
