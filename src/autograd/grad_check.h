// Gradient checker: central finite differences in fp64 against backward.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/autograd/node.h"

namespace deltron {

struct GradCheckInput {
  std::string name;
  Tensor value;  // F64, contiguous
};

struct GradCheckResult {
  double worst = 0;      // largest |difference| / (scale of that input's gradient)
  std::string where;     // input and element of it
};

// `function` maps leaves (in the order of `inputs`) to tensors; the checked scalar is the sum of their elements weighted by fixed
// pseudo-random numbers. Differences are taken at up to `most` elements an input, spread evenly.
GradCheckResult grad_check(Context& ctx, const std::vector<GradCheckInput>& inputs,
                           const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function, double step = 1e-6, int most = 40);

}  // namespace deltron
