// Recompute regions (Chen et al. 2016): a piece of forward that runs without a graph and is run again, with one, during backward.
// Ordinary regions keep their outputs; discard-output regions free the storages of their outputs too and fill them again when a
// gradient hook fires (Megatron's CheckpointWithoutOutput). Regions are pure functions of their inputs, of parameters and of
// counter-based random numbers, so a replay repeats the bits. Order of hooks: docs/recompute_and_offload.md.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/autograd/node.h"

namespace deltron {

// Differentiable function of tensors. What else it reads (parameters, layouts, options) it holds by value. It may run twice.
using Region = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

// How often each named region ran: a region that was asked for and never ran is an error after the first step.
struct RecomputeCounters {
  std::int64_t forward = 0;   // recorded forward calls
  std::int64_t discarded = 0; // output storages freed
  std::int64_t restored = 0;  // output storages filled again
  std::int64_t replayed = 0;  // forward calls repeated in backward
};
RecomputeCounters recompute_counters(Context& ctx, const std::string& region);
void reset_recompute_counters(Context& ctx);

// Ordinary region. Without a graph (evaluation, no input that requires grad) it simply runs `region`.
std::vector<Tensor> recompute(Context& ctx, const std::string& name, const Region& region, const std::vector<Tensor>& inputs);

// One forward call of a discard-output region.
class DiscardOutputRegion {
 public:
  explicit DiscardOutputRegion(std::string name) : name_(std::move(name)) {}
  // Runs `region` without a graph, keeps its inputs, returns outputs that belong to one node of the outer graph. Without a graph wanted
  // it simply runs `region`, and the calls below do nothing.
  std::vector<Tensor> run(Context& ctx, const Region& region, const std::vector<Tensor>& inputs);
  // Frees the outputs' storages: nobody reads them any more in forward. Once per forward.
  void discard_output();
  // The outputs are filled again when the gradient of `hook` is finished, unless they are already. Call it before any consumer's
  // backward can need them; several hooks may be registered, the first one that fires does the work.
  void restore_on(const Tensor& hook);
  void discard_output_and_register_recompute(const Tensor& hook) {
    discard_output();
    restore_on(hook);
  }
  bool recorded() const { return state_ != nullptr; }

 private:
  friend class DiscardOutputNode;
  struct State;
  std::string name_;
  std::shared_ptr<State> state_;
};

}  // namespace deltron
