// Differentiable products. A norm and the projections that read it are one unit: the normalised input is never kept; backward forms
// it again from the residual stream and the saved statistics. SwiGLU's output is not kept either.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "src/autograd/node.h"

namespace deltron {

// What products do around themselves when a model is cut over ranks; this layer knows no ranks. `gather` makes all rows of those that are
// here, `reduce` the sum over all parts, of those rows that are here; each is the other's backward, may return its argument, and `reduce` may
// write into it. Parts come in the compute type, and their sum is rounded once, so that many ranks round where one does. `what` is a literal
// that names the product.
struct RowExchange {
  std::function<Tensor(Context& ctx, const Tensor& rows, const char* what)> gather;
  std::function<Tensor(Context& ctx, const Tensor& part, const char* what)> reduce;
};
using RowExchangePtr = std::shared_ptr<const RowExchange>;  // null: nothing is cut

// Where a product's weight is cut: by rows (column-parallel), so that its input is gathered and the gradient of its input reduced; or by
// columns (row-parallel), so that its output is reduced and the gradient of its output gathered.
enum class WeightCut : std::uint8_t { Rows, Columns };

// y [T,out] = x [T,in] w^T, w [out,in].
Tensor linear(Context& ctx, const Tensor& x, const Tensor& weight, const char* name, const RowExchangePtr& exchange = nullptr,
              WeightCut cut = WeightCut::Columns);

struct NormOptions {
  bool zero_centered = false;
  double epsilon = 1e-6;
};

// y_i [T,out_i] = rms_norm(x [T,h]; norm_weight [h]) w_i^T, the weights cut by rows. Saves x and rstd [T], whose rows are those that are here:
// backward gathers the normalised rows again.
std::vector<Tensor> norm_linear(Context& ctx, const Tensor& x, const Tensor& norm_weight, const NormOptions& norm,
                                const std::vector<Tensor>& weights, const std::vector<const char*>& names,
                                const RowExchangePtr& exchange = nullptr);

// y [T,h] = swiglu(x [T,2F]) w^T, w [h,F], cut by columns. Saves x.
Tensor swiglu_linear(Context& ctx, const Tensor& x, const Tensor& weight, const char* name, const RowExchangePtr& exchange = nullptr);

}  // namespace deltron
