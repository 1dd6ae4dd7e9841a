// Gradient norms by layer: "embedding", "decoder.layers.0", ..., "output_layer".
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/train/session.h"

namespace deltron {

// Of the last step's gradients, before clipping; in model order.
std::vector<std::pair<std::string, double>> layer_gradient_norms(Session& session);

}  // namespace deltron
