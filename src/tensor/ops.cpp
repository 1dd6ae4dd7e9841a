// See ops.h.
#include "src/tensor/ops.h"

#include "kernels/embedding.h"
#include "kernels/matmul.h"
#include "src/tensor/launch.h"

namespace deltron {
namespace {

// A tensor of any rank as rows of its last dimension, if its strides permit it.
struct Rows {
  std::int64_t rows, cols, row_stride;
};

Rows as_rows(const Tensor& tensor) {
  if (tensor.rank() == 0) return {1, 1, 1};
  const std::int64_t cols = tensor.size(-1);
  DELTRON_CHECK(tensor.stride(-1) == 1 || cols <= 1, "last dimension of '", tensor.name(), "' must be contiguous");
  if (tensor.rank() == 1) return {1, cols, cols};
  std::int64_t rows = tensor.size(-2);
  const std::int64_t row_stride = tensor.stride(-2);
  for (int dim = tensor.rank() - 3; dim >= 0; --dim) {
    DELTRON_CHECK(tensor.size(dim) == 1 || tensor.stride(dim) == rows * row_stride, "'", tensor.name(), "' ", shape_text(tensor.shape()),
                  " does not lie as rows");
    rows *= tensor.size(dim);
  }
  return {rows, cols, row_stride};
}

}  // namespace

kernels::MatrixView matrix_view(const Tensor& tensor) { return {tensor.data(), as_rows(tensor).row_stride}; }
kernels::MutableMatrixView mutable_matrix_view(const Tensor& tensor) { return {tensor.data(), as_rows(tensor).row_stride}; }

kernels::HeadView head_view(const Tensor& tensor) {
  const kernels::MutableHeadView view = mutable_head_view(tensor);
  return {view.data, 0, view.token_stride, view.head_stride};
}

kernels::MutableHeadView mutable_head_view(const Tensor& tensor) {
  DELTRON_CHECK(tensor.rank() == 2 || tensor.rank() == 3, "'", tensor.name(), "' ", shape_text(tensor.shape()), " as heads");
  if (tensor.rank() == 3) {
    DELTRON_CHECK(tensor.stride(2) == 1 || tensor.size(2) == 1, "last dimension of '", tensor.name(), "' must be contiguous");
  }
  return {tensor.data(), 0, tensor.stride(0), tensor.stride(1)};
}

Tensor transposed(const Tensor& matrix) {
  DELTRON_CHECK_EQ(matrix.rank(), 2, "transpose of '", matrix.name(), "'");
  return Tensor(matrix.storage(), matrix.dtype(), {matrix.size(1), matrix.size(0)}, {matrix.stride(1), matrix.stride(0)}, matrix.offset());
}

void matmul(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& c, bool accumulate) {
  DELTRON_CHECK(a.rank() == 2 && b.rank() == 2 && c.rank() == 2 && a.size(1) == b.size(0) && a.size(0) == c.size(0) && b.size(1) == c.size(1),
                "product ", shape_text(a.shape()), " x ", shape_text(b.shape()), " -> ", shape_text(c.shape()));
  DELTRON_CHECK(c.stride(1) == 1 || c.size(1) == 1, "columns of the product must be contiguous");
  kernels::MatmulArgs args;
  args.m = a.size(0);
  args.k = a.size(1);
  args.n = b.size(1);
  args.a = a.data();
  args.a_dtype = a.dtype();
  args.a_row_stride = a.stride(0);
  args.a_col_stride = a.stride(1);
  args.b = b.data();
  args.b_dtype = b.dtype();
  args.b_row_stride = b.stride(0);
  args.b_col_stride = b.stride(1);
  args.c = c.data();
  args.c_dtype = c.dtype();
  args.c_row_stride = c.stride(0);
  args.accumulate = accumulate;
  DELTRON_LAUNCH_WITH_WORKSPACE(ctx, matmul, args);
  c.storage()->bump_version();
}

void fill(Context& ctx, const Tensor& tensor, double value) {
  DELTRON_CHECK(tensor.is_contiguous(), "fill of '", tensor.name(), "'");
  kernels::FillArgs args{tensor.count(), tensor.data(), tensor.dtype(), value};
  DELTRON_LAUNCH(ctx, fill, args);
  tensor.storage()->bump_version();
}

void convert(Context& ctx, const Tensor& from, const Tensor& to) {
  DELTRON_CHECK(from.shape() == to.shape(), "convert ", shape_text(from.shape()), " to ", shape_text(to.shape()));
  const Rows rows = as_rows(from);
  kernels::ConvertArgs args;
  args.rows = rows.rows;
  args.cols = rows.cols;
  args.x = matrix_view(from);
  args.x_dtype = from.dtype();
  args.y = mutable_matrix_view(to);
  args.y_dtype = to.dtype();
  DELTRON_LAUNCH(ctx, convert, args);
  to.storage()->bump_version();
}

void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& y) {
  DELTRON_CHECK(a.shape() == b.shape() && a.shape() == y.shape() && a.dtype() == b.dtype() && a.dtype() == y.dtype(), "sum of ",
                shape_text(a.shape()), " and ", shape_text(b.shape()));
  DELTRON_CHECK(a.is_contiguous() && b.is_contiguous() && y.is_contiguous(), "sum of '", a.name(), "' and '", b.name(), "'");
  kernels::AddArgs args{a.count(), a.data(), b.data(), y.data(), a.dtype()};
  DELTRON_LAUNCH(ctx, add, args);
  y.storage()->bump_version();
}

void accumulate(Context& ctx, const Tensor& x, const Tensor& y, double scale) {
  DELTRON_CHECK(x.shape() == y.shape(), "accumulate ", shape_text(x.shape()), " into ", shape_text(y.shape()));
  const Rows rows = as_rows(x);
  kernels::AccumulateArgs args;
  args.rows = rows.rows;
  args.cols = rows.cols;
  args.x = matrix_view(x);
  args.x_dtype = x.dtype();
  args.y = mutable_matrix_view(y);
  args.y_dtype = y.dtype();
  args.scale = scale;
  DELTRON_LAUNCH(ctx, accumulate, args);
  y.storage()->bump_version();
}

void gather_rows(Context& ctx, const Tensor& x, const Tensor& rows, const Tensor& y) {
  DELTRON_CHECK(x.rank() == 2 && y.rank() == 2 && x.size(1) == y.size(1) && x.dtype() == y.dtype() && x.is_contiguous() && y.is_contiguous() &&
                    rows.rank() == 1 && rows.dtype() == DType::I32 && rows.size(0) == y.size(0),
                "rows of ", shape_text(x.shape()), " into ", shape_text(y.shape()));
  kernels::EmbeddingForwardArgs args;
  args.tokens = y.size(0);
  args.vocab = x.size(0);
  args.hidden = x.size(1);
  args.ids = rows.data_as<const std::int32_t>();
  args.table = x.data();
  args.table_dtype = x.dtype();
  args.y = y.data();
  args.dtype = y.dtype();
  DELTRON_LAUNCH(ctx, embedding_forward, args);
  y.storage()->bump_version();
}

Tensor contiguous(Context& ctx, const Tensor& tensor, const char* name) {
  if (tensor.is_contiguous()) return tensor;
  Tensor copy = Tensor::empty(ctx, tensor.shape(), tensor.dtype(), name);
  if (tensor.rank() == 3) {  // rows of heads: as_rows may not hold across heads, so copy head by head
    for (std::int64_t head = 0; head < tensor.size(1); ++head) {
      const auto one = [&](const Tensor& whole) {
        const Tensor piece = whole.slice(1, head, 1);
        return Tensor(piece.storage(), piece.dtype(), {piece.size(0), piece.size(2)}, {piece.stride(0), piece.stride(2)}, piece.offset());
      };
      convert(ctx, one(tensor), one(copy));
    }
  } else {
    convert(ctx, tensor, copy);
  }
  return copy;
}

}  // namespace deltron
