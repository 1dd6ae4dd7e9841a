// See layer.h.
#include "src/nn/layer.h"

#include <cmath>

namespace deltron {

double LayerSetup::output_std() const { return config->init_method_std / std::sqrt(2.0 * static_cast<double>(config->num_layers)); }

std::vector<Tensor> project_input(Context& ctx, const Tensor& x, const ParameterPtr& norm_weight, const NormOptions& norm,
                                  const std::vector<ParameterPtr>& weights, const std::vector<const char*>& names) {
  std::vector<Tensor> values;
  for (const ParameterPtr& weight : weights) values.push_back(weight->value);
  if (norm_weight) return norm_linear(ctx, x, norm_weight->value, norm, values, names);
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < values.size(); ++i) outputs.push_back(linear(ctx, x, values[i], names[i]));
  return outputs;
}

}  // namespace deltron
