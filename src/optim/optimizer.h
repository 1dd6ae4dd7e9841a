// AdamW and SGD over a list of parameters: fp32 master weights and moments (fp64 where the weights are), decoupled decay by group.
// Works on tensors alone, so that models, golden files and later shards of a distributed optimizer use the same code.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/config/run_config.h"
#include "src/optim/gradient_norm.h"

namespace deltron {

struct OptimizedParameter {
  std::string name;
  Tensor weight;           // model weight, any float type
  Tensor gradient;         // main gradient: compute type, contiguous
  bool weight_decay = true;
};

struct OptimizerStateTensors {
  Tensor master;      // the weight itself where it already has the compute type
  Tensor exp_avg;     // undefined for SGD
  Tensor exp_avg_sq;
};

// What this rank counts in the global norm where it is not simply its own gradients: all ranks of `group` together count each once.
struct NormedGradients {
  std::vector<std::string> names = {};  // of the parameters that they belong to
  std::vector<Tensor> gradients = {};
  std::shared_ptr<Communicator> group = nullptr;
};

class Optimizer {
 public:
  Optimizer(Context& ctx, const OptimizerConfig& config, std::vector<OptimizedParameter> parameters, NormedGradients normed = {});

  // One update from the main gradients: norm, clipping, update. Once a norm or a watched loss was not finite, the device's flag stays up and
  // neither this nor any later update changes anything; whoever reads the flag takes the count of updates back.
  void step(Context& ctx, double lr);
  // Before step(): a loss [1] that is not finite refuses it too.
  void watch(Context& ctx, const Tensor& loss) { norm_.watch(ctx, loss); }
  double gradient_norm(Context& ctx) const { return norm_.norm(ctx); }
  bool nonfinite(Context& ctx) const { return norm_.nonfinite(ctx); }
  const GradientNorm& norm() const { return norm_; }
  const std::vector<std::string>& normed_names() const { return normed_names_; }  // of what norm() counts here, in its order

  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }
  const std::vector<OptimizedParameter>& parameters() const { return parameters_; }
  const std::vector<OptimizerStateTensors>& state() const { return state_; }
  // After weights were loaded: masters follow the weights (or the other way round).
  void masters_from_weights(Context& ctx);
  void weights_from_masters(Context& ctx);

 private:
  std::vector<kernels::MultiTensorEntry> entries() const;

  OptimizerConfig config_;
  std::vector<OptimizedParameter> parameters_;
  std::vector<OptimizerStateTensors> state_;
  std::vector<std::string> normed_names_;
  GradientNorm norm_;
  MultiTensor table_;  // of parameters and state
  std::int64_t updates_ = 0;
};

}  // namespace deltron
