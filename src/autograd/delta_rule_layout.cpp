// See delta_rule_layout.h.
#include "src/autograd/delta_rule_layout.h"

#include <map>

namespace deltron {
namespace {

struct DenseLayouts {
  std::map<std::pair<std::int64_t, std::int64_t>, LayoutPtr> made;
};

}  // namespace

const char* tensor_layout_name(TensorLayout layout) {
  switch (layout) {
    case TensorLayout::Thd: return "thd";
    case TensorLayout::Bshd: return "bshd";
    case TensorLayout::Sbhd: return "sbhd";
  }
  return "?";
}

Shape leading_shape(const SequenceLayout& documents, TensorLayout layout) {
  if (layout == TensorLayout::Thd) return {documents.tokens()};
  const std::int64_t batch = documents.documents(), length = documents.longest();
  return layout == TensorLayout::Bshd ? Shape{batch, length} : Shape{length, batch};
}

Shape with_leading(const Shape& leading, std::initializer_list<std::int64_t> rest) {
  Shape shape = leading;
  shape.insert(shape.end(), rest.begin(), rest.end());
  return shape;
}

kernels::MutableHeadView mutable_rule_view(const Tensor& tensor, TensorLayout layout) {
  if (layout == TensorLayout::Thd) return {tensor.data(), 0, tensor.stride(0), tensor.stride(1)};
  const int batch = layout == TensorLayout::Bshd ? 0 : 1;
  // Kernels read a sequence stride of 0 as packed documents, which one sequence is.
  const std::int64_t sequence_stride = tensor.size(batch) == 1 ? 0 : tensor.stride(batch);
  return {tensor.data(), sequence_stride, tensor.stride(1 - batch), tensor.stride(2)};
}

kernels::HeadView rule_view(const Tensor& tensor, TensorLayout layout) {
  const kernels::MutableHeadView view = mutable_rule_view(tensor, layout);
  return {view.data, view.sequence_stride, view.token_stride, view.head_stride};
}

LayoutPtr dense_layout(Context& ctx, std::int64_t batch, std::int64_t length) {
  LayoutPtr& made = ctx.slot<DenseLayouts>().made[{batch, length}];
  if (!made) made = std::make_shared<const SequenceLayout>(SequenceLayout::dense(ctx, batch, length));
  return made;
}

}  // namespace deltron
