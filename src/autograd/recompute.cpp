// See recompute.h.
#include "src/autograd/recompute.h"

#include <map>

#include "src/autograd/engine.h"
#include "src/tensor/profile.h"

namespace deltron {
namespace {

struct CounterTable {
  std::map<std::string, RecomputeCounters> regions;
};

RecomputeCounters& counters(Context& ctx, const std::string& name) { return ctx.slot<CounterTable>().regions[name]; }

// Inputs and outputs of a replay with its graph.
struct Replay {
  std::vector<Tensor> leaves;   // detached inputs; leaves where a gradient is wanted
  std::vector<Tensor> outputs;
};

Replay replay(Context& ctx, const std::string& name, const Region& region, const std::vector<SavedTensor>& saved,
              const std::vector<bool>& wanted) {
  const ProfileRange range(ctx, RangeKind::Replay, name.c_str());
  Replay run;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const Tensor input = saved[i].get();
    run.leaves.push_back(wanted[i] ? make_leaf(input, name + " input " + std::to_string(i)) : input);
  }
  GradModeGuard graph(ctx, true);
  run.outputs = region(run.leaves);
  counters(ctx, name).replayed++;
  return run;
}

// Sends the outputs' gradients through the replayed graph and hands the inputs' gradients to the outer one.
void backward_through(Context& ctx, BackwardCall& call, Replay& run, const std::vector<bool>& wanted) {
  std::vector<Tensor> roots, gradients;
  for (std::size_t i = 0; i < run.outputs.size(); ++i) {
    Tensor gradient = call.take_output_gradient(static_cast<int>(i));
    if (!gradient.defined()) continue;
    roots.push_back(run.outputs[i]);
    gradients.push_back(std::move(gradient));
  }
  run.outputs.clear();
  backward(ctx, roots, std::move(gradients));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    const Tensor gradient = leaf_of(run.leaves[i])->gradient;
    DELTRON_CHECK(gradient.defined(), "input ", i, " of a replayed region received no gradient");
    call.set_gradient(static_cast<int>(i), gradient);
  }
}

class RecomputeNode : public Node {
 public:
  using Node::Node;
  Region region;
  std::vector<SavedTensor> saved;
  std::vector<bool> wanted;
  void backward(Context& ctx, BackwardCall& call) override {
    Replay run = replay(ctx, name(), region, saved, wanted);
    backward_through(ctx, call, run, wanted);
  }
  void release() override {
    saved.clear();
    region = nullptr;
  }
};

}  // namespace

RecomputeCounters recompute_counters(Context& ctx, const std::string& region) { return counters(ctx, region); }
void reset_recompute_counters(Context& ctx) { ctx.slot<CounterTable>().regions.clear(); }

std::vector<Tensor> recompute(Context& ctx, const std::string& name, const Region& region, const std::vector<Tensor>& inputs) {
  if (!GraphRecorder::wanted(ctx, inputs)) return region(inputs);
  std::vector<Tensor> detached, outputs;
  for (const Tensor& input : inputs) detached.push_back(input.detached());
  {
    GradModeGuard no_graph(ctx, false);
    outputs = region(detached);
  }
  counters(ctx, name).forward++;
  auto node = std::make_shared<RecomputeNode>(name);
  node->region = region;
  GraphRecorder recorder(ctx, node);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    node->wanted.push_back(recorder.input(inputs[i], "input"));
    node->saved.emplace_back(ctx, inputs[i], name + ".input" + std::to_string(i));
  }
  for (Tensor& output : outputs) output = recorder.output(output);
  return outputs;
}

struct DiscardOutputRegion::State {
  Context* ctx = nullptr;
  std::string name;
  Region region;
  std::vector<SavedTensor> saved;
  std::vector<bool> wanted;
  std::vector<std::shared_ptr<Storage>> outputs;
  bool discarded = false;
  bool restored = false;
  Replay run;

  // Fills the outputs again. The replay's own inputs and outputs are kept for the node's backward, so that offloaded inputs are not
  // fetched twice.
  void restore() {
    if (restored) return;
    restored = true;
    run = replay(*ctx, name, region, saved, wanted);
    DELTRON_CHECK_EQ(run.outputs.size(), outputs.size(), "outputs of the replayed region '", name, "'");
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!discarded) continue;
      outputs[i]->adopt(*run.outputs[i].storage());
      counters(*ctx, name).restored++;
    }
  }
};

class DiscardOutputNode : public Node {
 public:
  using Node::Node;
  std::shared_ptr<DiscardOutputRegion::State> state;
  void backward(Context& ctx, BackwardCall& call) override {
    DELTRON_CHECK(!state->discarded || state->restored, "the outputs of region '", name(), "' (layer ", scope().layer,
                  ") were freed and no hook has filled them again");
    state->restore();
    Replay run = std::move(state->run);
    backward_through(ctx, call, run, state->wanted);
  }
  void release() override {
    state->saved.clear();
    state->region = nullptr;
    state->run = Replay{};
  }
};

std::vector<Tensor> DiscardOutputRegion::run(Context& ctx, const Region& region, const std::vector<Tensor>& inputs) {
  if (!GraphRecorder::wanted(ctx, inputs)) return region(inputs);
  DELTRON_CHECK(state_ == nullptr, "region '", name_, "' runs once per forward");
  std::vector<Tensor> detached, outputs;
  for (const Tensor& input : inputs) detached.push_back(input.detached());
  {
    GradModeGuard no_graph(ctx, false);
    outputs = region(detached);
  }
  counters(ctx, name_).forward++;
  state_ = std::make_shared<State>();
  state_->ctx = &ctx;
  state_->name = name_;
  state_->region = region;
  auto node = std::make_shared<DiscardOutputNode>(name_);
  node->state = state_;
  GraphRecorder recorder(ctx, node);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    state_->wanted.push_back(recorder.input(inputs[i], "input"));
    state_->saved.emplace_back(ctx, inputs[i], name_ + ".input" + std::to_string(i));
  }
  for (Tensor& output : outputs) {
    for (const Tensor& input : inputs) {
      DELTRON_CHECK(output.storage() != input.storage(), "an output of region '", name_, "' is a view of its input: freeing it would free the input");
    }
    state_->outputs.push_back(output.storage());
    output = recorder.output(output);
  }
  return outputs;
}

void DiscardOutputRegion::discard_output() {
  if (!state_) return;
  DELTRON_CHECK(!state_->discarded, "outputs of region '", name_, "' freed twice");
  state_->discarded = true;
  for (const std::shared_ptr<Storage>& storage : state_->outputs) {
    storage->discard();
    counters(*state_->ctx, name_).discarded++;
  }
}

void DiscardOutputRegion::restore_on(const Tensor& hook) {
  if (!state_) return;
  add_gradient_hook(hook, [state = state_](const Tensor&) { state->restore(); });
}

}  // namespace deltron
