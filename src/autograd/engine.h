// Runs a recorded graph backwards. Among ready nodes the one created last runs first; contributions to one tensor are summed in the
// order in which their consumers were created; hooks run first-in first-out on the finished gradient, before its producer's backward.
// Re-entrant: a node's backward may run another graph (recompute).
#pragma once

#include <vector>

#include "src/autograd/node.h"

namespace deltron {

// gradients[i] belongs to roots[i] (same shape and dtype). Throws InternalFault where a differentiable input receives no gradient.
void backward(Context& ctx, const std::vector<Tensor>& roots, std::vector<Tensor> gradients);

}  // namespace deltron
