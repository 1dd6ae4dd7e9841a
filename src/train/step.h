// One training step: micro-batches forward and backward into the main gradients, then one update.
#pragma once

#include <functional>
#include <vector>

#include "src/train/session.h"

namespace deltron {

struct StepResult {
  double loss = 0;            // mean over the valid tokens of the global batch
  double gradient_norm = 0;
  bool nonfinite = false;
  std::int64_t tokens = 0;
  std::int64_t valid_tokens = 0;
  double attention_flops = 0;  // of the softmax cores at these document lengths
};

// Called with the number of a micro-batch after its backward.
using MicroBatchHook = std::function<void(std::int64_t)>;

// The whole global batch as micro-batches. The loss and the gradients are normalised by the valid tokens of all of them together.
StepResult train_step(Session& session, const std::vector<HostBatch>& micro_batches, double lr, const MicroBatchHook& hook = {});
// Forward and backward only: gradients stay in the main gradients (added to what is there). `only`: runs this one micro-batch alone,
// normalised as in the whole step.
StepResult forward_backward(Session& session, const std::vector<HostBatch>& micro_batches, const MicroBatchHook& hook = {},
                            std::int64_t only = -1);

// Names of parameters whose gradient backward has not touched since the store was made: a fault of the model's wiring.
std::vector<std::string> untouched_parameters(const HybridLanguageModel& model);

}  // namespace deltron
