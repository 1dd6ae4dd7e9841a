// See functions_basic.h.
#include "src/autograd/functions_basic.h"

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/reduce.h"
#include "src/autograd/parameter_gradient.h"
#include "src/tensor/launch.h"

namespace deltron {
namespace {

class SplitNode : public Node {
 public:
  using Node::Node;
  Shape shape;
  DType dtype = DType::F32;
  std::vector<Piece> pieces;
  std::optional<SlicedInput> sliced_input() const override { return SlicedInput{shape, dtype}; }
  Tensor slot(const Tensor& whole, int output) const override {
    std::int64_t begin = 0;
    for (int i = 0; i < output; ++i) begin += pieces[static_cast<std::size_t>(i)].width;
    const Piece& piece = pieces[static_cast<std::size_t>(output)];
    const Tensor view = whole.slice(1, begin, piece.width);
    return piece.heads > 0 ? view.split_last(piece.heads) : view;
  }
  void backward(Context&, BackwardCall&) override { DELTRON_CHECK(false, "the engine hands slots on"); }
  void release() override {}
};

class DropoutAddNode : public Node {
 public:
  using Node::Node;
  LayoutPtr layout;
  RngSite site;
  double drop_probability = 0;
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor dy = call.output_gradient(0);
    if (call.wanted(0)) {
      if (drop_probability == 0) {
        call.set_gradient(0, dy);
      } else {
        Tensor dx = Tensor::empty(ctx, dy.shape(), dy.dtype(), "gradient");
        kernels::DropoutAddArgs args;
        args.rows = dy.size(0);
        args.cols = dy.size(1);
        args.x = dy.data();
        args.y = dx.data();
        args.dtype = dy.dtype();
        args.rng = layout->token_rng(site, drop_probability);
        DELTRON_LAUNCH(ctx, dropout_add, args);
        call.set_gradient(0, dx);
      }
    }
    if (call.wanted(1)) call.set_gradient(1, dy);
  }
  void release() override { layout.reset(); }
};

class SigmoidGateNode : public Node {
 public:
  using Node::Node;
  SavedTensor x, gate;
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor input = x.get(), g = gate.get(), dy = call.output_gradient(0);
    Tensor dx = call.destination(0, input.shape(), input.dtype());
    Tensor dgate = call.destination(1, g.shape(), g.dtype());
    kernels::SigmoidGateBackwardArgs args;
    args.rows = input.size(0);
    args.cols = input.size(1);
    args.dtype = input.dtype();
    args.x = matrix_view(input);
    args.gate = matrix_view(g);
    args.dy = matrix_view(dy);
    args.dx = mutable_matrix_view(dx);
    args.dgate = mutable_matrix_view(dgate);
    DELTRON_LAUNCH(ctx, sigmoid_gate_backward, args);
    call.set_gradient(0, dx);
    call.set_gradient(1, dgate);
  }
  void release() override {
    x.release();
    gate.release();
  }
};

class EmbeddingNode : public Node {
 public:
  using Node::Node;
  SavedTensor ids;
  Shape table_shape;
  DType table_dtype = DType::F32;
  std::int64_t first = 0, whole = 0;
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor dy = call.output_gradient(0), tokens = ids.get();
    ParameterGradient dtable(ctx, call, 0, table_shape, compute_dtype(dy.dtype()), table_dtype);
    kernels::EmbeddingBackwardArgs args;
    args.tokens = tokens.size(0);
    args.vocab = table_shape[0];
    args.hidden = table_shape[1];
    args.first = first;
    args.whole = whole;
    args.ids = tokens.data_as<const std::int32_t>();
    args.dy = dy.data();
    args.dtype = dy.dtype();
    args.dtable = dtable.data();
    DELTRON_LAUNCH_WITH_WORKSPACE(ctx, embedding_backward, args);
    dtable.finish();
  }
  void release() override { ids.release(); }
};

class CrossEntropyNode : public Node {
 public:
  using Node::Node;
  SavedTensor logits, labels, log_sum_exp;
  double scale = 1;
  std::int64_t first = 0, whole = 0;
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor x = logits.get(), y = labels.get(), lse = log_sum_exp.get();
    Tensor row_gradient = Tensor::empty(ctx, {x.size(0)}, compute_dtype(x.dtype()), "loss gradient");
    // The root gradient is one value: every row gets it, as a view of stride 0, so that no device has to be waited for.
    const Tensor root = call.output_gradient(0);
    const std::int64_t rows = x.size(0);
    fill(ctx, row_gradient, 0);
    accumulate(ctx, Tensor(root.storage(), root.dtype(), {rows, 1}, {0, 1}, root.offset()), row_gradient.view({rows, 1}), scale);
    kernels::CrossEntropyBackwardArgs args;
    args.rows = x.size(0);
    args.vocab = x.size(1);
    args.dtype = x.dtype();
    args.logits = matrix_view(x);
    args.labels = y.data_as<const std::int32_t>();
    args.first = first;
    args.whole = whole;
    args.log_sum_exp = lse.data();
    args.dloss = row_gradient.data();
    args.dlogits = mutable_matrix_view(x);
    DELTRON_LAUNCH(ctx, cross_entropy_backward, args);
    x.storage()->bump_version();
    call.set_gradient(0, x);
  }
  void release() override {
    logits.release();
    labels.release();
    log_sum_exp.release();
  }
};

Tensor row_losses(Context& ctx, const Tensor& logits, const Tensor& labels, const Tensor& log_sum_exp, const VocabularyPart& part) {
  DELTRON_CHECK(logits.rank() == 2 && labels.rank() == 1 && labels.size(0) == logits.size(0) && labels.dtype() == DType::I32, "logits ",
                shape_text(logits.shape()), ", labels ", shape_text(labels.shape()));
  Tensor losses = Tensor::empty(ctx, {logits.size(0)}, compute_dtype(logits.dtype()), "token losses");
  kernels::CrossEntropyForwardArgs args;
  args.rows = logits.size(0);
  args.vocab = logits.size(1);
  args.dtype = logits.dtype();
  args.logits = matrix_view(logits);
  args.labels = labels.data_as<const std::int32_t>();
  if (part.whole == 0) {
    args.loss = losses.data();
    args.log_sum_exp = log_sum_exp.data();
    DELTRON_LAUNCH(ctx, cross_entropy_forward, args);
    return losses;
  }
  const std::int64_t rows = logits.size(0);
  const Tensor mine = Tensor::empty(ctx, {2 * rows}, losses.dtype(), "token losses");
  args.first = part.first;
  args.whole = part.whole;
  args.log_sum_exp = mine.slice(0, 0, rows).data();
  args.label_logit = mine.slice(0, rows, rows).data();
  DELTRON_LAUNCH(ctx, cross_entropy_forward, args);
  const Tensor all = part.gather(ctx, mine, "cross_entropy");
  kernels::CrossEntropyJoinArgs join;
  join.rows = rows;
  join.ranks = part.parts;
  join.dtype = losses.dtype();
  join.labels = args.labels;
  join.parts = all.data();
  join.loss = losses.data();
  join.log_sum_exp = log_sum_exp.data();
  DELTRON_LAUNCH(ctx, cross_entropy_join, join);
  return losses;
}

}  // namespace

std::vector<Tensor> split(Context& ctx, const Tensor& x, const std::vector<Piece>& pieces, const char* name) {
  std::int64_t total = 0;
  for (const Piece& piece : pieces) total += piece.width;
  DELTRON_CHECK(x.rank() == 2 && total == x.size(1), name, ": pieces of ", total, " out of ", shape_text(x.shape()));
  auto node = std::make_shared<SplitNode>(name);
  node->shape = x.shape();
  node->dtype = x.dtype();
  node->pieces = pieces;
  std::vector<Tensor> views;
  for (std::size_t i = 0; i < pieces.size(); ++i) views.push_back(node->slot(x.detached(), static_cast<int>(i)));
  if (!GraphRecorder::wanted(ctx, {x})) return views;
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  for (Tensor& view : views) view = recorder.output(view);
  return views;
}

Tensor dropout_add(Context& ctx, const Tensor& x, const Tensor& residual, const LayoutPtr& layout, const RngSite& site, double drop_probability,
                   const char* name) {
  DELTRON_CHECK(x.shape() == residual.shape() && x.dtype() == residual.dtype() && x.is_contiguous() && residual.is_contiguous(), name, ": ",
                shape_text(x.shape()), " and ", shape_text(residual.shape()));
  Tensor y = Tensor::empty(ctx, x.shape(), x.dtype(), name);
  kernels::DropoutAddArgs args;
  args.rows = x.size(0);
  args.cols = x.size(1);
  args.x = x.data();
  args.residual = residual.data();
  args.y = y.data();
  args.dtype = x.dtype();
  args.rng = layout->token_rng(site, drop_probability);
  DELTRON_LAUNCH(ctx, dropout_add, args);
  if (!GraphRecorder::wanted(ctx, {x, residual})) return y;
  auto node = std::make_shared<DropoutAddNode>(name);
  node->layout = layout;
  node->site = site;
  node->drop_probability = drop_probability;
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  recorder.input(residual, "residual");
  return recorder.output(y);
}

Tensor sigmoid_gate(Context& ctx, const Tensor& x, const Tensor& gate, const char* name) {
  DELTRON_CHECK(x.shape() == gate.shape() && x.rank() == 2 && x.dtype() == gate.dtype(), name, ": ", shape_text(x.shape()), " and ",
                shape_text(gate.shape()));
  Tensor y = Tensor::empty(ctx, x.shape(), x.dtype(), name);
  kernels::SigmoidGateForwardArgs args;
  args.rows = x.size(0);
  args.cols = x.size(1);
  args.dtype = x.dtype();
  args.x = matrix_view(x);
  args.gate = matrix_view(gate);
  args.y = mutable_matrix_view(y);
  DELTRON_LAUNCH(ctx, sigmoid_gate_forward, args);
  if (!GraphRecorder::wanted(ctx, {x, gate})) return y;
  auto node = std::make_shared<SigmoidGateNode>(name);
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  recorder.input(gate, "gate");
  node->x = SavedTensor(ctx, x, std::string(name) + ".x");
  node->gate = SavedTensor(ctx, gate, std::string(name) + ".gate");
  return recorder.output(y);
}

Tensor embedding(Context& ctx, const Tensor& ids, const Tensor& table, DType dtype, const char* name, const VocabularyPart& part) {
  DELTRON_CHECK(ids.rank() == 1 && ids.dtype() == DType::I32 && table.rank() == 2 && table.is_contiguous(), name, ": ids ",
                shape_text(ids.shape()), ", table ", shape_text(table.shape()));
  Tensor y = Tensor::empty(ctx, {ids.size(0), table.size(1)}, dtype, name);
  kernels::EmbeddingForwardArgs args;
  args.tokens = ids.size(0);
  args.vocab = table.size(0);
  args.hidden = table.size(1);
  args.first = part.first;
  args.whole = part.whole;
  args.ids = ids.data_as<const std::int32_t>();
  args.table = table.data();
  args.table_dtype = table.dtype();
  args.y = y.data();
  args.dtype = dtype;
  DELTRON_LAUNCH(ctx, embedding_forward, args);
  if (!GraphRecorder::wanted(ctx, {table})) return y;
  auto node = std::make_shared<EmbeddingNode>(name);
  node->table_shape = table.shape();
  node->table_dtype = table.dtype();
  node->first = part.first;
  node->whole = part.whole;
  GraphRecorder recorder(ctx, node);
  recorder.input(table, "table");
  node->ids = SavedTensor(ctx, ids, std::string(name) + ".ids");
  return recorder.output(y);
}

Tensor cross_entropy(Context& ctx, const Tensor& logits, const Tensor& labels, double scale, const VocabularyPart& part) {
  const Tensor log_sum_exp = Tensor::empty(ctx, {logits.size(0)}, compute_dtype(logits.dtype()), "log_sum_exp");
  const Tensor losses = row_losses(ctx, logits, labels, log_sum_exp, part);
  Tensor total = Tensor::empty(ctx, {1}, DType::F64, "loss");
  kernels::SumArgs sum_args{losses.count(), losses.data(), losses.dtype(), total.data_as<double>()};
  DELTRON_LAUNCH(ctx, sum, sum_args);
  kernels::ScaleArgs scale_args{1, total.data(), DType::F64, scale};
  DELTRON_LAUNCH(ctx, scale, scale_args);
  if (!GraphRecorder::wanted(ctx, {logits})) return total;
  auto node = std::make_shared<CrossEntropyNode>("cross_entropy");
  node->scale = scale;
  node->first = part.first;
  node->whole = part.whole;
  GraphRecorder recorder(ctx, node);
  recorder.input(logits, "logits");
  node->logits = SavedTensor(ctx, logits, "logits");
  node->labels = SavedTensor(ctx, labels, "labels");
  node->log_sum_exp = SavedTensor(ctx, log_sum_exp, "log_sum_exp");
  return recorder.output(total);
}

Tensor token_losses(Context& ctx, const Tensor& logits, const Tensor& labels, const VocabularyPart& part) {
  const Tensor log_sum_exp = Tensor::empty(ctx, {logits.size(0)}, compute_dtype(logits.dtype()), "log_sum_exp");
  return row_losses(ctx, logits, labels, log_sum_exp, part);
}

}  // namespace deltron
