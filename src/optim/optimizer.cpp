// See optimizer.h.
#include "src/optim/optimizer.h"

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

std::vector<std::string> names_of(const std::vector<OptimizedParameter>& parameters) {
  std::vector<std::string> names;
  for (const OptimizedParameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

}  // namespace

Optimizer::Optimizer(Context& ctx, const OptimizerConfig& config, std::vector<OptimizedParameter> parameters, NormedGradients normed)
    : config_(config),
      parameters_(std::move(parameters)),
      normed_names_(normed.group ? std::move(normed.names) : names_of(parameters_)),
      norm_(ctx, normed.group ? std::move(normed.gradients) : gradients_of(parameters_), normed.group) {
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
  table_ = MultiTensor(ctx, entries());
}

std::vector<kernels::MultiTensorEntry> Optimizer::entries() const {
  std::vector<kernels::MultiTensorEntry> entries;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const OptimizedParameter& parameter = parameters_[i];
    const OptimizerStateTensors& state = state_[i];
    kernels::MultiTensorEntry entry;
    entry.count = parameter.weight.count();
    entry.dtype = state.master.dtype();
    entry.weight_dtype = parameter.weight.dtype();
    entry.decays = parameter.weight_decay || config_.decay_all_parameters;
    entry.master = state.master.data();
    entry.grad = parameter.gradient.data();
    if (state.exp_avg.defined()) entry.exp_avg = state.exp_avg.data(), entry.exp_avg_sq = state.exp_avg_sq.data();
    if (!state.master.same_view(parameter.weight)) entry.weight = parameter.weight.data();
    entries.push_back(entry);
  }
  return entries;
}

void Optimizer::step(Context& ctx, double lr) {
  const ProfileRange range(ctx, RangeKind::Optimizer, "optimizer");
  {
    const ProfileRange norm(ctx, RangeKind::Part, "gradient norm");
    norm_.compute(ctx, config_.clip_grad);
  }
  ++updates_;
  DELTRON_CHECK(table_.describes(entries()), "the optimizer's tensors lie elsewhere than when its table was made");
  if (table_.chunks() == 0) return;  // a rank of many may own nothing
  if (config_.optimizer == OptimizerKind::AdamW) {
    kernels::MultiTensorAdamwArgs args;
    args.table = table_.table();
    args.lr = lr;
    args.beta1 = config_.adam_beta1;
    args.beta2 = config_.adam_beta2;
    args.epsilon = config_.adam_eps;
    args.weight_decay = config_.weight_decay;
    args.step = updates_;
    args.grad_scale = norm_.scale();
    args.skip_flag = norm_.nonfinite_flag();
    DELTRON_LAUNCH(ctx, multi_tensor_adamw, args);
  } else {
    kernels::MultiTensorSgdArgs args;
    args.table = table_.table();
    args.lr = lr;
    args.weight_decay = config_.weight_decay;
    args.grad_scale = norm_.scale();
    args.skip_flag = norm_.nonfinite_flag();
    DELTRON_LAUNCH(ctx, multi_tensor_sgd, args);
  }
  for (const OptimizedParameter& parameter : parameters_) parameter.weight.storage()->bump_version();
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
