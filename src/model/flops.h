// Floating-point operations of a training step, counted as Megatron does (multiply and add apart; forward plus two backward products;
// recompute not counted). Used for MFU and plans.
#pragma once

#include <cstdint>
#include <vector>

#include "src/config/run_config.h"

namespace deltron {

struct FlopsPerToken {
  double linear_mixers = 0;
  double softmax_projections = 0;
  double mlp = 0;
  double logits = 0;
  double total() const { return linear_mixers + softmax_projections + mlp + logits; }
};

// Per token, forward and backward, without the part of softmax attention that grows with length.
FlopsPerToken training_flops_per_token(const TransformerConfig& config);
// The softmax cores of all layers for documents of these lengths: causal, so half of the square.
double attention_core_flops(const TransformerConfig& config, const std::vector<std::int64_t>& document_lengths);

}  // namespace deltron
