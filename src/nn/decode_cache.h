// What generation keeps between tokens: for a linear layer the last inputs of its convolution and the state of its rule, for a softmax
// layer keys and values. One sequence. Layers read and extend their own part; the model owns the whole.
#pragma once

#include <cstdint>
#include <vector>

#include "src/autograd/functions_basic.h"

namespace deltron {

struct LayerCache {
  Tensor conv_inputs;     // [kc-1, C]; zeros before the first token
  Tensor state;           // [1, Hv, K, V] of the compute type; undefined before the first token
  Tensor keys, values;    // [capacity, G, d], of which `past` rows hold tokens
  std::int64_t past = 0;  // tokens seen before this call
  LayoutPtr conv_layout;  // of this call's tokens behind kc-1 earlier ones

  // The convolution's inputs behind the `earlier` = kc-1 that came before them; the last kc-1 of all are kept for the next call.
  Tensor with_earlier_inputs(Context& ctx, const Tensor& inputs, std::int64_t earlier);
};

struct DecodeCache {
  std::vector<LayerCache> layers;
  std::int64_t tokens = 0;  // seen so far
};

}  // namespace deltron
