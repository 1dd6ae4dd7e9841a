// How the tensors of the delta rules lie: flat tokens of packed documents, or equal sequences with a batch dimension, which are read and
// written in place by their strides. Knows shapes and strides, no values.
#pragma once

#include <cstdint>

#include "src/autograd/functions_basic.h"

namespace deltron {

enum class TensorLayout : std::uint8_t {
  Thd,   // q [T,H,D], gates [T,H], out [T,H*D]; documents by their offsets
  Bshd,  // q [B,S,H,D], gates [B,S,H], out [B,S,H*D]; document n is sequence n
  Sbhd,  // q [S,B,H,D], gates [S,B,H], out [S,B,H*D]
};
const char* tensor_layout_name(TensorLayout layout);

// Leading dimensions of every tensor: {T}, {B,S} or {S,B}. The documents of `documents` must have equal lengths for the last two.
Shape leading_shape(const SequenceLayout& documents, TensorLayout layout);
Shape with_leading(const Shape& leading, std::initializer_list<std::int64_t> rest);

// A tensor with heads (and dims, or not) behind the leading dimensions, as kernels take it.
kernels::MutableHeadView mutable_rule_view(const Tensor& tensor, TensorLayout layout);
kernels::HeadView rule_view(const Tensor& tensor, TensorLayout layout);

// Offsets of `batch` sequences of `length` tokens, made once for each pair and kept by the context: a dense caller pays nothing a call.
LayoutPtr dense_layout(Context& ctx, std::int64_t batch, std::int64_t length);

}  // namespace deltron
