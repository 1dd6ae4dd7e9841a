// See functions_context_parallel.h.
#include "distributed/functions_context_parallel.h"

#include "src/tensor/ops.h"

namespace deltron {
namespace {

// Columns [begin, begin + width) of the rows go to (or come from) columns [at, at + width) of rank's slice.
struct Move {
  std::int64_t rank, begin, at, width;
  bool again;  // another rank before this one has the same columns
};

struct HeadCut {
  std::vector<Move> moves;
  std::int64_t width = 0;  // columns of a rank's slice
  std::int64_t whole = 0;  // of the rows

  HeadCut(const std::vector<HeadSection>& sections, std::int64_t ranks, const char* what) {
    for (const HeadSection& section : sections) {
      const std::int64_t heads = section.heads;
      DELTRON_CHECK(heads > 0 && section.width % heads == 0 && (heads % ranks == 0 || ranks % heads == 0), what, ": ", heads, " heads in ",
                    section.width, " columns for ", ranks, " ranks");
      const std::int64_t holders = heads < ranks ? ranks / heads : 1, part = heads < ranks ? section.width / heads : section.width / ranks;
      for (std::int64_t rank = 0; rank < ranks; ++rank) moves.push_back({rank, whole + rank / holders * part, width, part, rank % holders != 0});
      width += part;
      whole += section.width;
    }
  }
};

Tensor to_heads(Context& ctx, const Tensor& x, const HeadCut& cut, const SequenceLayout& layout, const char* what) {
  const ParallelState& ranks = parallel_state(ctx);
  const std::int64_t rows = x.size(0), all = rows * ranks.cp();
  DELTRON_CHECK(x.size(1) == cut.whole && layout.to_whole().defined() && layout.to_whole().size(0) == all, what, ": ", shape_text(x.shape()));
  Tensor received = Tensor::empty(ctx, {all, cut.width}, x.dtype(), what);
  {
    const Tensor send = Tensor::empty(ctx, {all, cut.width}, x.dtype(), what);
    for (const Move& move : cut.moves) {
      convert(ctx, x.slice(1, move.begin, move.width), send.slice(0, move.rank * rows, rows).slice(1, move.at, move.width));
    }
    ranks.context->all_to_all(ctx, send, received, what);
  }
  Tensor heads = Tensor::empty(ctx, {all, cut.width}, x.dtype(), what);
  gather_rows(ctx, received, layout.to_whole(), heads);
  return heads;
}

Tensor to_rows(Context& ctx, const Tensor& x, const HeadCut& cut, const SequenceLayout& layout, const char* what) {
  const ParallelState& ranks = parallel_state(ctx);
  const std::int64_t all = x.size(0), rows = all / ranks.cp();
  DELTRON_CHECK(x.size(1) == cut.width && layout.to_rows().defined() && layout.to_rows().size(0) == all, what, ": ", shape_text(x.shape()));
  Tensor received = Tensor::empty(ctx, {all, cut.width}, x.dtype(), what);
  {
    const Tensor send = Tensor::empty(ctx, {all, cut.width}, x.dtype(), what);
    gather_rows(ctx, contiguous(ctx, x, what), layout.to_rows(), send);
    ranks.context->all_to_all(ctx, send, received, what);
  }
  Tensor y = Tensor::empty(ctx, {rows, cut.whole}, x.dtype(), what);
  for (const Move& move : cut.moves) {
    const Tensor from = received.slice(0, move.rank * rows, rows).slice(1, move.at, move.width), to = y.slice(1, move.begin, move.width);
    move.again ? accumulate(ctx, from, to) : convert(ctx, from, to);
  }
  return y;
}

class ContextExchangeNode : public Node {
 public:
  using Node::Node;
  LayoutPtr layout;
  std::vector<HeadSection> sections;
  bool forward_to_heads = true;
  const char* what = "";
  void backward(Context& ctx, BackwardCall& call) override {
    const HeadCut cut(sections, parallel_state(ctx).cp(), what);
    const Tensor dy = call.output_gradient(0);
    call.set_gradient(0, forward_to_heads ? to_rows(ctx, dy, cut, *layout, what) : to_heads(ctx, dy, cut, *layout, what));
  }
  void release() override { layout.reset(); }
};

Tensor exchange(Context& ctx, const Tensor& x, const std::vector<HeadSection>& sections, const LayoutPtr& layout, bool forward_to_heads,
                const char* what) {
  const HeadCut cut(sections, parallel_state(ctx).cp(), what);
  const Tensor y = forward_to_heads ? to_heads(ctx, x, cut, *layout, what) : to_rows(ctx, x, cut, *layout, what);
  if (!GraphRecorder::wanted(ctx, {x})) return y;
  auto node = std::make_shared<ContextExchangeNode>(what);
  node->layout = layout;
  node->sections = sections;
  node->forward_to_heads = forward_to_heads;
  node->what = what;
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  return recorder.output(y);
}

class HeadsOfParameterNode : public Node {
 public:
  using Node::Node;
  struct Run {
    std::int64_t begin, at, rows;  // in the parameter; in this rank's part
  };
  std::vector<Run> runs;
  Shape shape;
  DType dtype = DType::F32;
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor dy = call.output_gradient(0);
    Tensor whole = call.main_gradient(0);
    const bool main = whole.defined();
    if (!main) whole = Tensor::zeros(ctx, shape, dtype, "parameter gradient");
    for (const Run& run : runs) accumulate(ctx, dy.slice(0, run.at, run.rows), whole.slice(0, run.begin, run.rows));
    main ? call.accumulated(0) : call.set_gradient(0, whole);
  }
  void release() override {}
};

}  // namespace

Tensor rows_to_heads(Context& ctx, const Tensor& x, const std::vector<HeadSection>& sections, const LayoutPtr& layout, const char* what) {
  return parallel_state(ctx).context ? exchange(ctx, x, sections, layout, true, what) : x;
}

Tensor heads_to_rows(Context& ctx, const Tensor& x, const LayoutPtr& layout, const char* what) {
  const ParallelState& ranks = parallel_state(ctx);
  return ranks.context ? exchange(ctx, x, {{x.size(1) * ranks.cp(), ranks.cp()}}, layout, false, what) : x;
}

Tensor heads_of_parameter(Context& ctx, const Tensor& parameter, const std::vector<std::int64_t>& sections, const char* what) {
  const ParallelState& ranks = parallel_state(ctx);
  if (!ranks.context) return parameter;
  auto node = std::make_shared<HeadsOfParameterNode>(what);
  node->shape = parameter.shape();
  node->dtype = parameter.dtype();
  std::int64_t begin = 0, at = 0;
  for (const std::int64_t section : sections) {
    DELTRON_CHECK(section % ranks.cp() == 0, what, ": ", section, " rows for ", ranks.cp(), " ranks");
    const std::int64_t rows = section / ranks.cp();
    node->runs.push_back({begin + ranks.cp_rank() * rows, at, rows});
    begin += section;
    at += rows;
  }
  Shape shape = parameter.shape();
  DELTRON_CHECK_EQ(begin, shape[0], what);
  shape[0] = at;
  const Tensor mine = Tensor::empty(ctx, shape, compute_dtype(parameter.dtype()), what);
  for (const auto& run : node->runs) convert(ctx, parameter.slice(0, run.begin, run.rows), mine.slice(0, run.at, run.rows));
  if (!GraphRecorder::wanted(ctx, {parameter})) return mine;
  GraphRecorder recorder(ctx, node);
  recorder.input(parameter, "parameter");
  return recorder.output(mine);
}

}  // namespace deltron
