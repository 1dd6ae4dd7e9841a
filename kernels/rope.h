// Rotary position embedding (Su et al. 2021), rotate-half pairing (i, i+R/2) on the first R of each head's dims; the rest is copied.
// Angles are position * theta^(-2i/R), formed in fp64. `inverse` turns the other way: the backward.
#pragma once

#include "kernels/views.h"

namespace deltron::kernels {

struct RopeArgs {
  std::int64_t tokens = 0, heads = 0, dim = 0, rotary_dim = 0;
  double theta = 10000;
  DType dtype = DType::F32;
  const std::int32_t* positions = nullptr;  // [tokens]
  HeadView x;                               // [tokens, heads, dim]
  MutableHeadView y;                        // may alias x
  bool inverse = false;
};

namespace cpu {
void rope(const RopeArgs& args, const StreamHandle& stream);
}  // namespace cpu
namespace cuda {
void rope(const RopeArgs& args, const StreamHandle& stream);
}  // namespace cuda

}  // namespace deltron::kernels
