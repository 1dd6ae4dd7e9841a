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
};

struct DecodeCache {
  std::vector<LayerCache> layers;
  std::int64_t tokens = 0;  // seen so far
};

}  // namespace deltron
