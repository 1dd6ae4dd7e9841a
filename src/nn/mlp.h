// SwiGLU MLP: fc1 (gate and up, one product, its input norm inside), activation, fc2.
#pragma once

#include "src/nn/layer.h"

namespace deltron {

class Mlp {
 public:
  explicit Mlp(const LayerSetup& setup);
  Tensor forward(Context& ctx, const Tensor& x) const;  // x [T,h] (the residual stream) -> [T,h]

 private:
  int layer_;
  NormOptions norm_options_;
  ParameterPtr norm_, fc1_, fc2_;
};

}  // namespace deltron
