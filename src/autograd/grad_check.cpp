// See grad_check.h.
#include "src/autograd/grad_check.h"

#include <algorithm>
#include <cmath>

#include "src/autograd/engine.h"
#include "src/base/rng.h"

namespace deltron {
namespace {

std::vector<double> weights_of(std::size_t which, std::int64_t count) {
  RngStream stream({77, 0, kRngSiteData}, which);
  std::vector<double> weights(static_cast<std::size_t>(count));
  for (double& weight : weights) weight = stream.normal();
  return weights;
}

double weighted_sum(Context& ctx, const std::vector<Tensor>& outputs) {
  double sum = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<double> values = to_doubles(ctx, outputs[i]), weights = weights_of(i, outputs[i].count());
    for (std::size_t j = 0; j < values.size(); ++j) sum += values[j] * weights[j];
  }
  return sum;
}

}  // namespace

GradCheckResult grad_check(Context& ctx, const std::vector<GradCheckInput>& inputs,
                           const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function, double step, int most) {
  std::vector<Tensor> leaves;
  for (const GradCheckInput& input : inputs) {
    DELTRON_CHECK(input.value.dtype() == DType::F64 && input.value.is_contiguous(), "'", input.name, "' must be contiguous fp64");
    leaves.push_back(make_leaf(input.value, input.name));
  }
  {
    const std::vector<Tensor> outputs = function(leaves);
    std::vector<Tensor> seeds;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      seeds.push_back(make_tensor(ctx, outputs[i].shape(), outputs[i].dtype(), weights_of(i, outputs[i].count()), "seed"));
    }
    backward(ctx, outputs, seeds);
  }
  GradCheckResult result;
  GradModeGuard no_graph(ctx, false);
  for (std::size_t which = 0; which < inputs.size(); ++which) {
    const Tensor& value = inputs[which].value;
    const Tensor gradient = leaf_of(leaves[which])->gradient;
    DELTRON_CHECK(gradient.defined(), "'", inputs[which].name, "' received no gradient");
    const std::vector<double> analytic = to_doubles(ctx, gradient);
    double scale = 1e-3;
    for (double g : analytic) scale = std::max(scale, std::fabs(g));
    double* data = value.data_as<double>();
    const std::int64_t count = value.count(), stride = std::max<std::int64_t>(1, count / most);
    for (std::int64_t element = 0; element < count; element += stride) {
      const double before = data[element], h = step * std::max(1.0, std::fabs(before));
      data[element] = before + h;
      const double above = weighted_sum(ctx, function(leaves));
      data[element] = before - h;
      const double below = weighted_sum(ctx, function(leaves));
      data[element] = before;
      const double difference = std::fabs((above - below) / (2 * h) - analytic[static_cast<std::size_t>(element)]) / scale;
      if (!(difference <= result.worst)) {
        result.worst = difference;
        result.where = inputs[which].name + "[" + std::to_string(element) + "]";
      }
    }
  }
  return result;
}

}  // namespace deltron
