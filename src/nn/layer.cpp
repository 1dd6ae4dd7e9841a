// See layer.h.
#include "src/nn/layer.h"

#include <cmath>

#include "distributed/functions_tensor_parallel.h"

namespace deltron {

double LayerSetup::output_std() const { return config->init_method_std / std::sqrt(2.0 * static_cast<double>(config->num_layers)); }

void LayerSetup::set_ranks(const ParallelState& ranks) {
  tensor_ranks = ranks.tp();
  tensor_rank = ranks.tp_rank();
  context_ranks = ranks.cp();
  context_rank = ranks.cp_rank();
}

ParameterCut LayerSetup::cut(int dim, std::int64_t whole) const {
  if (tensor_ranks == 1) return {};
  DELTRON_CHECK(whole % tensor_ranks == 0, whole, " of '", prefix, "' for ", tensor_ranks, " tensor-parallel ranks");
  return {.dim = dim, .begin = whole / tensor_ranks * tensor_rank, .whole = whole};
}

ParameterSection LayerSetup::section(const std::string& name, std::int64_t whole_rows) const {
  return {name, whole_rows / tensor_ranks, cut(0, whole_rows)};
}

std::vector<Tensor> project_input(Context& ctx, const Tensor& x, const ParameterPtr& norm_weight, const NormOptions& norm,
                                  const std::vector<ParameterPtr>& weights, const std::vector<const char*>& names) {
  const RowExchangePtr exchange = tensor_parallel_exchange(ctx);
  std::vector<Tensor> values;
  for (const ParameterPtr& weight : weights) values.push_back(weight->value);
  if (norm_weight) return norm_linear(ctx, x, norm_weight->value, norm, values, names, exchange);
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < values.size(); ++i) outputs.push_back(linear(ctx, x, values[i], names[i], exchange, WeightCut::Rows));
  return outputs;
}

}  // namespace deltron
