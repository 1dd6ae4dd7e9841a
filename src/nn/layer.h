// What every layer is built from: the store it declares parameters in, its number, the types of its parameters.
#pragma once

#include <string>

#include "distributed/parallel_state.h"
#include "src/autograd/functions_basic.h"
#include "src/autograd/functions_linear.h"
#include "src/config/run_config.h"
#include "src/nn/parameter.h"

namespace deltron {

struct LayerSetup {
  ParameterStore* store = nullptr;
  const TransformerConfig* config = nullptr;
  int layer = 0;         // from 0
  DType dtype = DType::F32;  // of activations and ordinary weights
  std::string prefix;    // "decoder.layers.3."
  bool input_norm = true;  // false: the mixer alone, for golden files of a bare mixer
  // How layers are cut: tensor-parallel ranks hold parts of their weights, context-parallel ranks share the heads of a part.
  int tensor_ranks = 1, tensor_rank = 0, context_ranks = 1, context_rank = 0;
  void set_ranks(const ParallelState& ranks);
  // This rank's part of `whole` rows (dim 0) or columns (dim 1), of which it has whole / tensor_ranks.
  ParameterCut cut(int dim, std::int64_t whole) const;
  ParameterSection section(const std::string& name, std::int64_t whole_rows) const;

  // Parameters that stay in the compute type whatever the model's type: A_log, dt_bias, the GDN output norm's weight.
  DType stable_dtype() const { return compute_dtype(dtype); }
  NormOptions norm() const { return {config->layernorm_zero_centered_gamma, config->layernorm_epsilon}; }
  ParameterPtr declare_norm(const std::string& name) const {
    const bool zero = config->layernorm_zero_centered_gamma;
    return store->declare({.name = prefix + name, .shape = {config->hidden_size}, .dtype = dtype, .sections = {}, .init = InitKind::Constant,
                           .init_scale = zero ? 0.0 : 1.0, .weight_decay = false, .partial = {.sequence_parallel = true}});
  }
  // Standard deviation of projections back into the residual stream: smaller the deeper the model (Radford et al. 2019).
  double output_std() const;
};

// Projections of one input, cut by rows: with its norm as one unit, or bare where the layer has no input norm.
std::vector<Tensor> project_input(Context& ctx, const Tensor& x, const ParameterPtr& norm_weight, const NormOptions& norm,
                                  const std::vector<ParameterPtr>& weights, const std::vector<const char*>& names);

}  // namespace deltron
