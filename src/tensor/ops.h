// Shape-checked operations on tensors, without gradients: products, sums, conversions. Family kernels (norms, attention, the delta
// rule) are called by the autograd functions that own them. What is written counts its version up.
#pragma once

#include "kernels/elementwise.h"
#include "kernels/views.h"
#include "src/tensor/context.h"
#include "src/tensor/tensor.h"

namespace deltron {

// Views for kernels. [T,D] and [T,H,D] tensors with a contiguous last dimension.
kernels::MatrixView matrix_view(const Tensor& tensor);
kernels::MutableMatrixView mutable_matrix_view(const Tensor& tensor);
kernels::HeadView head_view(const Tensor& tensor);  // [T,H,D], or [T,H] gates as heads of one value
kernels::MutableHeadView mutable_head_view(const Tensor& tensor);

Tensor transposed(const Tensor& matrix);  // [M,N] -> [N,M] view

// c [M,N] = a [M,K] b [K,N] (+ c); a and b may be transposed views.
void matmul(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate = false);

void fill(Context& ctx, const Tensor& tensor, double value);                          // contiguous
void convert(Context& ctx, const Tensor& from, const Tensor& to);                     // same shape, 2-D or contiguous
void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& y);            // contiguous, same dtype
void accumulate(Context& ctx, const Tensor& x, const Tensor& y, double scale = 1.0);  // y += scale x
// y[i] = x[rows[i]], both contiguous [.., C] of one floating type; rows I32, on the device, each below x's.
void gather_rows(Context& ctx, const Tensor& x, const Tensor& rows, const Tensor& y);
Tensor contiguous(Context& ctx, const Tensor& tensor, const char* name);              // the tensor itself if it is contiguous

}  // namespace deltron
