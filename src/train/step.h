// One training step: micro-batches forward and backward into the main gradients, then one update. Launching a step and reading what
// became of it are two calls, so that the host can launch the next step first and no device has to wait for it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "src/train/session.h"

namespace deltron {

// What the host knows of micro-batches without running them.
struct BatchCounts {
  std::int64_t tokens = 0, valid_tokens = 0;
  double attention_flops = 0;  // of the softmax cores at these document lengths
};
BatchCounts counts_of(const RunConfig& config, const std::vector<HostBatch>& micro_batches);

struct StepResult {
  double loss = 0;            // mean over the valid tokens of the global batch
  double gradient_norm = 0;
  bool nonfinite = false;     // this step or one before it: the flag on the device is sticky
  std::int64_t tokens = 0;
  std::int64_t valid_tokens = 0;
  double attention_flops = 0;  // of the softmax cores at these document lengths
  std::vector<double> parameter_norms = {};  // of the gradients before clipping, in the optimizer's order
};

// Called with the number of a micro-batch after its backward.
using MicroBatchHook = std::function<void(std::int64_t)>;

// A step that the device was given; its numbers are on their way to the host.
class LaunchedStep {
 public:
  LaunchedStep() = default;
  ~LaunchedStep();  // waits: the device writes into it
  LaunchedStep(LaunchedStep&&) = default;
  LaunchedStep& operator=(LaunchedStep&&) = delete;
  // Waits for the step, not for what was launched after it.
  StepResult read() const;
  std::int64_t updates_before() const { return updates_before_; }  // the optimizer's count, to go back to if the step is refused

 private:
  friend LaunchedStep launch_step(Session& session, const std::vector<HostBatch>& micro_batches, double lr, const MicroBatchHook& hook,
                                  const std::optional<BatchCounts>& whole);
  struct Landing {
    double loss = 0;
    GradientNorm::Reading norm;
  };
  StepResult known_;                   // what the host knew before
  std::unique_ptr<Landing> landing_;   // written by the device
  const GradientNorm* norms_ = nullptr;
  Event landed_;
  std::int64_t updates_before_ = 0;
};

// This rank's micro-batches of the global batch; `whole`: what all ranks' are together (default: these are all). The loss and the gradients
// are normalised by the valid tokens of the whole; the batches are padded for the ranks (pad_for_ranks). A loss or a gradient that is not finite raises a sticky flag on the device: this update
// and all later ones change nothing.
LaunchedStep launch_step(Session& session, const std::vector<HostBatch>& micro_batches, double lr, const MicroBatchHook& hook = {},
                         const std::optional<BatchCounts>& whole = std::nullopt);
// Launched and read at once.
StepResult train_step(Session& session, const std::vector<HostBatch>& micro_batches, double lr, const MicroBatchHook& hook = {},
                      const std::optional<BatchCounts>& whole = std::nullopt);
// Forward and backward only: gradients stay in the main gradients (added to what is there), this rank's own. `only`: runs this one
// micro-batch alone, normalised as in the whole step.
StepResult forward_backward(Session& session, const std::vector<HostBatch>& micro_batches, const MicroBatchHook& hook = {},
                            std::int64_t only = -1, const std::optional<BatchCounts>& whole = std::nullopt);

// Names of parameters whose gradient backward has not touched since the store was made: a fault of the model's wiring.
std::vector<std::string> untouched_parameters(const HybridLanguageModel& model);

}  // namespace deltron
