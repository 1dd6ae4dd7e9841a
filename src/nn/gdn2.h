// The Gated DeltaNet-2 mixer (docs/gdn.md section 12): the mixer of gdn.h, whose `gates` hold z, f, b and w instead of z, beta and
// alpha, with decay and erasure by key channel and writing by value channel.
#pragma once

#include "src/nn/gdn.h"

namespace deltron {

class GatedDeltaNet2 : public GatedDeltaNet {
 public:
  explicit GatedDeltaNet2(const LayerSetup& setup);

 protected:
  kernels::PreRuleGates pre_rule_gates() const override { return kernels::PreRuleGates::Channels; }
  Tensor rule(Context& ctx, const Tensor& prepared, const std::vector<Tensor>& gates, const LayoutPtr& layout,
              LayerCache* cache) const override;
  std::vector<Tensor> split_gates(Context& ctx, const Tensor& gates) const override;  // {z, f, b, w}
};

}  // namespace deltron
