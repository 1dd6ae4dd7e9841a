// Gradient norms by layer: "embedding", "decoder.layers.0", ..., "output_layer".
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/train/session.h"

namespace deltron {

// Of a step's gradients, before clipping; in model order, of all ranks together: every rank calls it. `norms`: StepResult::parameter_norms.
std::vector<std::pair<std::string, double>> layer_gradient_norms(const Session& session, const std::vector<double>& norms);

}  // namespace deltron
