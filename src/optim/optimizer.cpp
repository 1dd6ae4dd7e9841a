// See optimizer.h.
#include "src/optim/optimizer.h"

#include "kernels/adamw.h"
#include "src/tensor/launch.h"
#include "src/tensor/ops.h"
#include "src/tensor/profile.h"

namespace deltron {
namespace {

std::vector<Tensor> gradients_of(const std::vector<OptimizedParameter>& parameters) {
  std::vector<Tensor> gradients;
  for (const OptimizedParameter& parameter : parameters) gradients.push_back(parameter.gradient);
  return gradients;
}

}  // namespace

Optimizer::Optimizer(Context& ctx, const OptimizerConfig& config, std::vector<OptimizedParameter> parameters)
    : config_(config), parameters_(std::move(parameters)), norm_(ctx, gradients_of(parameters_)) {
  for (const OptimizedParameter& parameter : parameters_) {
    DELTRON_CHECK(parameter.weight.is_contiguous() && parameter.weight.shape() == parameter.gradient.shape(), "parameter '", parameter.name,
                  "' ", shape_text(parameter.weight.shape()), ", gradient ", shape_text(parameter.gradient.shape()));
    const DType compute = compute_dtype(parameter.weight.dtype());
    DELTRON_CHECK(parameter.gradient.dtype() == compute, "main gradient of '", parameter.name, "'");
    OptimizerStateTensors state;
    const auto tag = MemoryTag::OptimizerState;
    state.master = parameter.weight.detached();
    if (parameter.weight.dtype() != compute) state.master = Tensor::zeros(ctx, parameter.weight.shape(), compute, "master", tag);
    if (config_.optimizer == OptimizerKind::AdamW) {
      state.exp_avg = Tensor::zeros(ctx, parameter.weight.shape(), compute, "exp_avg", tag);
      state.exp_avg_sq = Tensor::zeros(ctx, parameter.weight.shape(), compute, "exp_avg_sq", tag);
    }
    state_.push_back(state);
  }
}

void Optimizer::step(Context& ctx, double lr) {
  const ProfileRange range(ctx, RangeKind::Optimizer, "optimizer");
  {
    const ProfileRange norm(ctx, RangeKind::Part, "gradient norm");
    norm_.compute(ctx, config_.clip_grad);
  }
  ++updates_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const OptimizedParameter& parameter = parameters_[i];
    const OptimizerStateTensors& state = state_[i];
    const bool separate = !state.master.same_view(parameter.weight);
    const double decay = parameter.weight_decay || config_.decay_all_parameters ? config_.weight_decay : 0;
    if (config_.optimizer == OptimizerKind::AdamW) {
      kernels::AdamwArgs args;
      args.count = parameter.weight.count();
      args.dtype = state.master.dtype();
      args.master = state.master.data();
      args.grad = parameter.gradient.data();
      args.exp_avg = state.exp_avg.data();
      args.exp_avg_sq = state.exp_avg_sq.data();
      args.weight = separate ? parameter.weight.data() : nullptr;
      args.weight_dtype = parameter.weight.dtype();
      args.lr = lr;
      args.beta1 = config_.adam_beta1;
      args.beta2 = config_.adam_beta2;
      args.epsilon = config_.adam_eps;
      args.weight_decay = decay;
      args.step = updates_;
      args.grad_scale = norm_.scale();
      args.skip_flag = norm_.nonfinite_flag();
      DELTRON_LAUNCH(ctx, adamw, args);
    } else {
      kernels::SgdArgs args;
      args.count = parameter.weight.count();
      args.dtype = state.master.dtype();
      args.master = state.master.data();
      args.grad = parameter.gradient.data();
      args.weight = separate ? parameter.weight.data() : nullptr;
      args.weight_dtype = parameter.weight.dtype();
      args.lr = lr;
      args.weight_decay = decay;
      args.grad_scale = norm_.scale();
      args.skip_flag = norm_.nonfinite_flag();
      DELTRON_LAUNCH(ctx, sgd, args);
    }
    parameter.weight.storage()->bump_version();
  }
}

void Optimizer::masters_from_weights(Context& ctx) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!state_[i].master.same_view(parameters_[i].weight)) convert(ctx, parameters_[i].weight.detached(), state_[i].master);
  }
}

void Optimizer::weights_from_masters(Context& ctx) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!state_[i].master.same_view(parameters_[i].weight)) convert(ctx, state_[i].master, parameters_[i].weight.detached());
  }
}

}  // namespace deltron
