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
  std::int32_t end_token = -1;    // stops here; -1: never
  std::int64_t max_context = 1024;  // longest input of one forward pass
};

// Appends up to max_tokens ids to `tokens` (at least one to begin with). `emit` sees each as it is drawn.
void generate(Session& session, std::vector<std::int32_t>& tokens, const GenerateOptions& options,
              const std::function<void(std::int32_t)>& emit);

// One draw from logits [vocab].
std::int32_t sample_token(const std::vector<double>& logits, const GenerateOptions& options, double uniform);

}  // namespace deltron
