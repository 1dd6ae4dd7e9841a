// One decoder layer: residual mixer (Gated DeltaNet, its second version, or softmax attention), then residual MLP.
#pragma once

#include <memory>
#include <optional>

#include "src/nn/attention.h"
#include "src/nn/gdn.h"
#include "src/nn/mlp.h"
#include "src/nn/recompute_plan.h"

namespace deltron {

struct ForwardMode {
  bool training = false;
  // For ablation studies: the mixers of linear layers contribute nothing to the residual stream.
  bool without_linear_mixers = false;
  RecomputePlan recompute = {};  // training only
};

class TransformerBlock {
 public:
  TransformerBlock(const LayerSetup& setup, std::uint64_t seed);
  Tensor forward(Context& ctx, const Tensor& x, const LayoutPtr& layout, const ForwardMode& mode) const;  // [T,h] -> [T,h]
  // The next tokens of the one sequence in `cache`, without dropout and without a graph.
  Tensor forward_cached(Context& ctx, const Tensor& x, const LayoutPtr& layout, LayerCache& cache) const;

 private:
  int layer_;
  std::uint64_t seed_;
  double drop_probability_;
  std::unique_ptr<GatedDeltaNet> linear_mixer_;
  std::optional<SelfAttention> softmax_mixer_;
  std::optional<Mlp> mlp_;
};

}  // namespace deltron
