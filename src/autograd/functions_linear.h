// Differentiable products. A norm and the projections that read it are one unit: the normalised input is never kept; backward forms
// it again from the residual stream and the saved statistics. SwiGLU's output is not kept either.
#pragma once

#include <vector>

#include "src/autograd/node.h"

namespace deltron {

// y [T,out] = x [T,in] w^T, w [out,in].
Tensor linear(Context& ctx, const Tensor& x, const Tensor& weight, const char* name);

struct NormOptions {
  bool zero_centered = false;
  double epsilon = 1e-6;
};

// y_i [T,out_i] = rms_norm(x [T,h]; norm_weight [h]) w_i^T. Saves x and rstd [T].
std::vector<Tensor> norm_linear(Context& ctx, const Tensor& x, const Tensor& norm_weight, const NormOptions& norm,
                                const std::vector<Tensor>& weights, const std::vector<const char*>& names);

// y [T,h] = swiglu(x [T,2F]) w^T, w [h,F]. Saves x.
Tensor swiglu_linear(Context& ctx, const Tensor& x, const Tensor& weight, const char* name);

}  // namespace deltron
