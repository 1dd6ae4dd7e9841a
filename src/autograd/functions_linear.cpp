// See functions_linear.h.
#include "src/autograd/functions_linear.h"

#include "kernels/matmul.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "src/autograd/parameter_gradient.h"
#include "src/tensor/launch.h"

namespace deltron {

void weight_gradient(Context& ctx, BackwardCall& call, int input, const Tensor& weight, const Tensor& dy, const Tensor& x) {
  if (!call.wanted(input)) return;
  bool add = true;
  const Tensor main = call.main_gradient(input, add);
  if (main.defined()) {
    matmul(ctx, transposed(dy), x, main, add);
    call.accumulated(input);
    return;
  }
  Tensor gradient = call.destination(input, weight.shape(), weight.dtype());
  matmul(ctx, transposed(dy), x, gradient);
  call.set_gradient(input, gradient);
}

namespace {

void check_product(const Tensor& x, const Tensor& weight, std::int64_t width, const char* name) {
  DELTRON_CHECK(x.rank() == 2 && weight.rank() == 2 && width == weight.size(1), name, ": x ", shape_text(x.shape()), ", weight ",
                shape_text(weight.shape()));
}

// An exchange with the name of its product; without one, both directions hand on what they get.
struct Exchange {
  RowExchangePtr functions;
  const char* what = "";
  explicit operator bool() const { return functions != nullptr; }
  Tensor gather(Context& ctx, const Tensor& rows) const { return functions ? functions->gather(ctx, rows, what) : rows; }
  // Parts of a sum are formed and exchanged in the compute type; the sum is rounded once, as that of one rank is.
  DType part_dtype(DType dtype) const { return functions ? compute_dtype(dtype) : dtype; }
  Tensor reduce(Context& ctx, const Tensor& part, DType dtype) const {
    if (!functions) return part;
    const Tensor sum = functions->reduce(ctx, part, what);
    if (sum.dtype() == dtype) return sum;
    const Tensor rounded = Tensor::empty(ctx, sum.shape(), dtype, what);
    convert(ctx, sum, rounded);
    return rounded;
  }
};

class LinearNode : public Node {
 public:
  using Node::Node;
  SavedTensor x, weight;
  Exchange exchange;
  WeightCut cut = WeightCut::Columns;
  void backward(Context& ctx, BackwardCall& call) override {
    const bool rows = cut == WeightCut::Rows;
    const Tensor dy = rows ? call.output_gradient(0) : exchange.gather(ctx, call.output_gradient(0)), w = weight.get();
    if (call.wanted(0)) {
      Tensor dx = rows && exchange ? Tensor::empty(ctx, {dy.size(0), w.size(1)}, exchange.part_dtype(dy.dtype()), "gradient")
                                   : call.destination(0, {dy.size(0), w.size(1)}, dy.dtype());
      matmul(ctx, dy, w, dx);
      call.set_gradient(0, rows ? exchange.reduce(ctx, dx, dy.dtype()) : dx);
    }
    if (call.wanted(1)) weight_gradient(ctx, call, 1, w, dy, rows ? exchange.gather(ctx, x.get()) : x.get());
  }
  void release() override {
    x.release();
    weight.release();
  }
};

class NormLinearNode : public Node {
 public:
  using Node::Node;
  SavedTensor x, rstd, norm_weight;
  std::vector<SavedTensor> weights;
  NormOptions norm;
  Exchange exchange;

  // Inputs: x, norm weight, then the projections' weights.
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor input = x.get(), statistics = rstd.get(), gamma = norm_weight.get();
    Tensor dnormed;
    {
      const Tensor normed = exchange.gather(ctx, normalise(ctx, input, gamma, norm, statistics, true));
      if (call.wanted(0) || call.wanted(1)) dnormed = Tensor::empty(ctx, normed.shape(), exchange.part_dtype(input.dtype()), "gradient");
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const Tensor dy = call.output_gradient(static_cast<int>(i)), w = weights[i].get();
        if (dnormed.defined()) matmul(ctx, dy, w, dnormed, i > 0);
        weight_gradient(ctx, call, static_cast<int>(i) + 2, w, dy, normed);
      }
    }
    if (!dnormed.defined()) return;
    dnormed = exchange.reduce(ctx, dnormed, input.dtype());
    ParameterGradient dgamma(ctx, call, 1, gamma.shape(), compute_dtype(input.dtype()), gamma.dtype());
    kernels::RmsNormBackwardArgs args;
    args.rows = input.size(0);
    args.cols = input.size(1);
    args.dtype = input.dtype();
    args.x = {input.data(), 0, input.stride(0), 0};
    args.dy = {dnormed.data(), 0, dnormed.stride(0), 0};
    args.weight = gamma.data();
    args.weight_dtype = gamma.dtype();
    args.zero_centered = norm.zero_centered;
    args.rstd = statistics.data();
    args.dx = {dnormed.data(), 0, dnormed.stride(0), 0};
    args.dweight = dgamma.data();
    DELTRON_LAUNCH_WITH_WORKSPACE(ctx, rms_norm_backward, args);
    dgamma.finish();
    if (call.wanted(0)) call.set_gradient(0, dnormed);
  }
  void release() override {
    x.release();
    rstd.release();
    norm_weight.release();
    for (SavedTensor& w : weights) w.release();
  }

  static Tensor normalise(Context& ctx, const Tensor& x, const Tensor& gamma, const NormOptions& norm, const Tensor& rstd, bool given) {
    Tensor y = Tensor::empty(ctx, x.shape(), x.dtype(), "normed");
    kernels::RmsNormForwardArgs args;
    args.rows = x.size(0);
    args.cols = x.size(1);
    args.dtype = x.dtype();
    args.x = {x.data(), 0, x.stride(0), 0};
    args.weight = gamma.data();
    args.weight_dtype = gamma.dtype();
    args.zero_centered = norm.zero_centered;
    args.epsilon = norm.epsilon;
    args.use_given_rstd = given;
    args.rstd = rstd.data();
    args.y = {y.data(), 0, y.stride(0), 0};
    DELTRON_LAUNCH(ctx, rms_norm_forward, args);
    return y;
  }
};

class SwigluLinearNode : public Node {
 public:
  using Node::Node;
  SavedTensor x, weight;
  Exchange exchange;
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor dy = exchange.gather(ctx, call.output_gradient(0)), w = weight.get(), h = x.get();
    Tensor dact = Tensor::empty(ctx, {dy.size(0), w.size(1)}, dy.dtype(), "gradient");
    matmul(ctx, dy, w, dact);
    Tensor activated = Tensor::empty(ctx, dact.shape(), dact.dtype(), "swiglu");
    Tensor dh = call.destination(0, h.shape(), h.dtype());
    kernels::SwigluBackwardArgs args;
    args.rows = h.size(0);
    args.ffn = w.size(1);
    args.dtype = h.dtype();
    args.h = matrix_view(h);
    args.dy = matrix_view(dact);
    args.dh = mutable_matrix_view(dh);
    args.y = mutable_matrix_view(activated);
    DELTRON_LAUNCH(ctx, swiglu_backward, args);
    weight_gradient(ctx, call, 1, w, dy, activated);
    call.set_gradient(0, dh);
  }
  void release() override {
    x.release();
    weight.release();
  }
};

}  // namespace

Tensor linear(Context& ctx, const Tensor& x, const Tensor& weight, const char* name, const RowExchangePtr& exchange, WeightCut cut) {
  check_product(x, weight, x.size(-1), name);
  const Exchange around{exchange, name};
  Tensor y;
  {
    const Tensor input = cut == WeightCut::Rows ? around.gather(ctx, x.detached()) : x;
    y = Tensor::empty(ctx, {input.size(0), weight.size(0)}, cut == WeightCut::Columns ? around.part_dtype(x.dtype()) : x.dtype(), name);
    matmul(ctx, input, transposed(weight), y);
  }
  if (cut == WeightCut::Columns) y = around.reduce(ctx, y, x.dtype());
  if (!GraphRecorder::wanted(ctx, {x, weight})) return y;
  auto node = std::make_shared<LinearNode>(name);
  node->exchange = around;
  node->cut = cut;
  GraphRecorder recorder(ctx, node);
  const bool dx = recorder.input(x, "x"), dw = recorder.input(weight, "weight");
  if (dw) node->x = SavedTensor(ctx, x, std::string(name) + ".x");
  if (dx || dw) node->weight = SavedTensor(ctx, weight, std::string(name) + ".weight");
  return recorder.output(y);
}

std::vector<Tensor> norm_linear(Context& ctx, const Tensor& x, const Tensor& norm_weight, const NormOptions& norm,
                                const std::vector<Tensor>& weights, const std::vector<const char*>& names,
                                const RowExchangePtr& exchange) {
  DELTRON_CHECK_EQ(weights.size(), names.size(), "one name a projection");
  DELTRON_CHECK(norm_weight.rank() == 1 && norm_weight.size(0) == x.size(-1), "norm weight ", shape_text(norm_weight.shape()));
  const Tensor rstd = Tensor::empty(ctx, {x.size(0)}, compute_dtype(x.dtype()), "rstd");
  const Exchange around{exchange, names.front()};
  std::vector<Tensor> outputs;
  {
    const Tensor normed = around.gather(ctx, NormLinearNode::normalise(ctx, x, norm_weight, norm, rstd, false));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      check_product(x, weights[i], x.size(-1), names[i]);
      Tensor y = Tensor::empty(ctx, {normed.size(0), weights[i].size(0)}, x.dtype(), names[i]);
      matmul(ctx, normed, transposed(weights[i]), y);
      outputs.push_back(y);
    }
  }
  std::vector<Tensor> inputs = {x, norm_weight};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  if (!GraphRecorder::wanted(ctx, inputs)) return outputs;
  auto node = std::make_shared<NormLinearNode>(std::string("norm+") + names.front());
  node->norm = norm;
  node->exchange = around;
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  recorder.input(norm_weight, "norm_weight");
  for (const Tensor& weight : weights) recorder.input(weight, "weight");
  node->x = SavedTensor(ctx, x, std::string(names.front()) + ".input");
  node->rstd = SavedTensor(ctx, rstd, std::string(names.front()) + ".rstd");
  node->norm_weight = SavedTensor(ctx, norm_weight, "norm.weight");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    node->weights.emplace_back(ctx, weights[i], std::string(names[i]) + ".weight");
  }
  for (Tensor& output : outputs) output = recorder.output(output);
  return outputs;
}

Tensor swiglu_linear(Context& ctx, const Tensor& x, const Tensor& weight, const char* name, const RowExchangePtr& exchange) {
  DELTRON_CHECK(x.size(-1) % 2 == 0, name, ": x ", shape_text(x.shape()));
  check_product(x, weight, x.size(-1) / 2, name);
  const Exchange around{exchange, name};
  Tensor y = Tensor::empty(ctx, {x.size(0), weight.size(0)}, around.part_dtype(x.dtype()), name);
  {
    Tensor activated = Tensor::empty(ctx, {x.size(0), weight.size(1)}, x.dtype(), "swiglu");
    kernels::SwigluForwardArgs args;
    args.rows = x.size(0);
    args.ffn = weight.size(1);
    args.dtype = x.dtype();
    args.h = matrix_view(x);
    args.y = mutable_matrix_view(activated);
    DELTRON_LAUNCH(ctx, swiglu_forward, args);
    matmul(ctx, activated, transposed(weight), y);
  }
  y = around.reduce(ctx, y, x.dtype());
  if (!GraphRecorder::wanted(ctx, {x, weight})) return y;
  auto node = std::make_shared<SwigluLinearNode>(name);
  node->exchange = around;
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  recorder.input(weight, "weight");
  node->x = SavedTensor(ctx, x, std::string(name) + ".x");
  node->weight = SavedTensor(ctx, weight, std::string(name) + ".weight");
  return recorder.output(y);
}

}  // namespace deltron
