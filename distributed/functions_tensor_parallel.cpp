// See functions_tensor_parallel.h.
#include "distributed/functions_tensor_parallel.h"

#include "src/tensor/ops.h"

namespace deltron {
namespace {

Tensor summed(Context& ctx, const Tensor& x, const char* what, bool may_overwrite) {
  Tensor y = contiguous(ctx, x, what);
  if (!may_overwrite && y.same_view(x)) {
    y = Tensor::empty(ctx, x.shape(), x.dtype(), what);
    convert(ctx, x, y);
  }
  parallel_state(ctx).tensor->all_reduce(ctx, y, what);
  return y;
}

Tensor gathered(Context& ctx, const Tensor& rows, const char* what) {
  const ParallelState& ranks = parallel_state(ctx);
  Tensor all = Tensor::empty(ctx, {rows.size(0) * ranks.tp(), rows.size(1)}, rows.dtype(), what);
  ranks.tensor->all_gather(ctx, contiguous(ctx, rows, what), all, what);
  return all;
}

Tensor scattered(Context& ctx, const Tensor& part, const char* what) {
  const ParallelState& ranks = parallel_state(ctx);
  DELTRON_CHECK(part.size(0) % ranks.tp() == 0, what, ": ", part.size(0), " rows for ", ranks.tp(), " ranks");
  Tensor mine = Tensor::empty(ctx, {part.size(0) / ranks.tp(), part.size(1)}, part.dtype(), what);
  ranks.tensor->reduce_scatter(ctx, contiguous(ctx, part, what), mine, what);
  return mine;
}

enum class Kind { Copy, Reduce, Gather, Scatter };

Tensor forward_of(Context& ctx, Kind kind, const Tensor& x, const char* what) {
  switch (kind) {
    case Kind::Copy: return x;
    case Kind::Reduce: return summed(ctx, x, what, false);
    case Kind::Gather: return gathered(ctx, x, what);
    case Kind::Scatter: return scattered(ctx, x, what);
  }
  return x;
}

// Each is another one's backward.
Kind adjoint(Kind kind) {
  switch (kind) {
    case Kind::Copy: return Kind::Reduce;
    case Kind::Reduce: return Kind::Copy;
    case Kind::Gather: return Kind::Scatter;
    case Kind::Scatter: return Kind::Gather;
  }
  return kind;
}

class TensorParallelNode : public Node {
 public:
  using Node::Node;
  Kind kind = Kind::Copy;
  const char* what = "";
  void backward(Context& ctx, BackwardCall& call) override {
    call.set_gradient(0, forward_of(ctx, adjoint(kind), call.output_gradient(0), what));
  }
  void release() override {}
};

Tensor run(Context& ctx, Kind kind, const Tensor& x, const char* what) {
  if (!parallel_state(ctx).tensor) return x;
  const Tensor y = forward_of(ctx, kind, x.detached(), what);
  if (!GraphRecorder::wanted(ctx, {x})) return y;
  auto node = std::make_shared<TensorParallelNode>(what);
  node->kind = kind;
  node->what = what;
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  return recorder.output(y);
}

}  // namespace

Tensor copy_to_tensor_parallel(Context& ctx, const Tensor& x, const char* what) { return run(ctx, Kind::Copy, x, what); }
Tensor reduce_from_tensor_parallel(Context& ctx, const Tensor& x, const char* what) { return run(ctx, Kind::Reduce, x, what); }
Tensor gather_tokens(Context& ctx, const Tensor& rows, const char* what) { return run(ctx, Kind::Gather, rows, what); }
Tensor scatter_tokens(Context& ctx, const Tensor& part, const char* what) { return run(ctx, Kind::Scatter, part, what); }

Tensor sum_into_residual(Context& ctx, const Tensor& part, const char* what) {
  return parallel_state(ctx).sequence_parallel ? scatter_tokens(ctx, part, what) : reduce_from_tensor_parallel(ctx, part, what);
}

RowExchangePtr tensor_parallel_exchange(Context& ctx) {
  const ParallelState& ranks = parallel_state(ctx);
  if (!ranks.tensor) return nullptr;
  if (ranks.sequence_parallel) return std::make_shared<const RowExchange>(RowExchange{gathered, scattered});
  const auto keep = [](Context&, const Tensor& rows, const char*) { return rows; };
  const auto sum = [](Context& c, const Tensor& part, const char* what) { return summed(c, part, what, true); };
  return std::make_shared<const RowExchange>(RowExchange{keep, sum});
}

VocabularyShare vocabulary_share(std::int64_t vocabulary, int ranks, int rank) {
  DELTRON_CHECK_GE(vocabulary, ranks, "ids of the vocabulary, tensor-parallel ranks");
  const std::int64_t each = vocabulary / ranks, more = vocabulary % ranks;
  return {each * rank + std::min<std::int64_t>(rank, more), each + (rank < more ? 1 : 0)};
}

VocabularyPart vocabulary_part(Context& ctx, std::int64_t vocabulary) {
  const ParallelState& ranks = parallel_state(ctx);
  VocabularyPart part;
  if (!ranks.tensor) return part;
  part.first = vocabulary_share(vocabulary, ranks.tp(), ranks.tp_rank()).first;
  part.whole = vocabulary;
  part.parts = ranks.tp();
  part.gather = [](Context& c, const Tensor& mine, const char* what) {
    const ParallelState& state = parallel_state(c);
    Tensor all = Tensor::empty(c, {mine.count() * state.tp()}, mine.dtype(), what);
    state.tensor->all_gather(c, mine, all, what);
    return all;
  };
  return part;
}

}  // namespace deltron
