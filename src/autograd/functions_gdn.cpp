// See functions_gdn.h.
#include "src/autograd/functions_gdn.h"

#include <cmath>

#include "kernels/causal_conv1d.h"
#include "kernels/l2_norm.h"
#include "src/autograd/delta_rule_checks.h"
#include "src/autograd/parameter_gradient.h"
#include "src/tensor/launch.h"

namespace deltron {
namespace {

class QkvPrepNode : public Node {
 public:
  using Node::Node;
  SavedTensor qkv, weight, prepared, rstd;
  LayoutPtr layout;
  QkvPrepOptions options;
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor x = qkv.get(), w = weight.get();
    const bool ours = call.may_overwrite(0);  // asked before this function holds a view of its own
    Tensor dy = call.output_gradient(0);
    if (options.use_qk_l2norm) {
      // In place where the gradient is ours alone (the usual case: the delta rule wrote its slots), else on a copy.
      Tensor through = dy;
      if (!ours) {
        through = Tensor::empty(ctx, dy.shape(), dy.dtype(), "gradient");
        convert(ctx, dy, through);
      }
      const Tensor y = prepared.get(), statistics = rstd.get();
      const std::int64_t heads = 2 * options.key_heads;
      kernels::L2NormBackwardArgs args;
      args.rows = y.size(0);
      args.heads = heads;
      args.dim = options.key_dim;
      args.dtype = y.dtype();
      args.y = {y.data(), 0, y.stride(0), options.key_dim};
      args.dy = {through.data(), 0, through.stride(0), options.key_dim};
      args.rstd = statistics.data();
      args.dx = {through.data(), 0, through.stride(0), options.key_dim};
      DELTRON_LAUNCH(ctx, l2_norm_backward, args);
      dy = through;
    }
    ParameterGradient dweight(ctx, call, 1, w.shape(), compute_dtype(x.dtype()), w.dtype());
    Tensor dx = call.destination(0, x.shape(), x.dtype());
    kernels::CausalConv1dBackwardArgs args;
    args.tokens = x.size(0);
    args.channels = x.size(1);
    args.kernel = w.size(1);
    args.documents = layout->device_documents();
    args.dtype = x.dtype();
    args.x = matrix_view(x);
    args.dy = matrix_view(dy);
    args.weight = w.data();
    args.weight_dtype = w.dtype();
    args.dx = mutable_matrix_view(dx);
    args.dweight = dweight.data();
    DELTRON_LAUNCH_WITH_WORKSPACE(ctx, causal_conv1d_backward, args);
    dweight.finish();
    call.set_gradient(0, dx);
  }
  void release() override {
    for (SavedTensor* saved : {&qkv, &weight, &prepared, &rstd}) saved->release();
    layout.reset();
  }
};

class GatedDeltaRuleNode : public Node {
 public:
  using Node::Node;
  SavedTensor q, k, v, decay, beta, A_log, dt_bias, initial_state, t_inverse;
  LayoutPtr layout;
  GatedDeltaRuleOptions options;

  bool output_is_optional(int) const override { return true; }  // a caller may use the output, the final state, or both

  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor tq = q.get(), tk = k.get(), tv = v.get(), td = decay.get(), tb = beta.get();
    const DType compute = compute_dtype(tq.dtype());
    const bool raw = options.gate_form == kernels::GateForm::Raw;
    const Tensor d_out = call.output_gradient(0);
    const Tensor d_final = options.output_final_state ? call.output_gradient(1) : Tensor();
    Tensor dout_rows = d_out.defined() ? contiguous(ctx, d_out, "gradient") : Tensor::zeros(ctx, outputs()[0].shape, tq.dtype(), "gradient");
    Tensor dq = call.destination(0, tq.shape(), tq.dtype());
    Tensor dk = call.destination(1, tk.shape(), tk.dtype());
    Tensor dv = call.destination(2, tv.shape(), tv.dtype());
    Tensor d_decay = call.destination(3, td.shape(), td.dtype());
    Tensor d_beta = call.destination(4, tb.shape(), tb.dtype());
    // The kernel writes both gate gradients in one type: gates of two types (g in fp32 beside a bf16 beta) go through the compute type.
    const bool two_types = td.dtype() != tb.dtype();
    const Tensor d_decay_out = two_types ? Tensor::empty(ctx, td.shape(), compute, "gradient") : d_decay;
    const Tensor d_beta_out = two_types ? Tensor::empty(ctx, tb.shape(), compute, "gradient") : d_beta;
    const Tensor a = A_log.defined() ? A_log.get() : Tensor(), bias = dt_bias.defined() ? dt_bias.get() : Tensor();
    const Tensor start = initial_state.defined() ? initial_state.get() : Tensor();
    const Tensor inverse = t_inverse.get();
    std::optional<ParameterGradient> da, dbias;
    kernels::GatedDeltaRuleBackwardArgs args;
    args.tokens = layout->tokens();
    args.key_heads = options.key_heads;
    args.value_heads = options.value_heads;
    args.key_dim = options.key_dim;
    args.value_dim = options.value_dim;
    args.documents = layout->device_documents();
    args.dtype = tq.dtype();
    args.q = rule_view(tq, options.layout);
    args.k = rule_view(tk, options.layout);
    args.v = rule_view(tv, options.layout);
    args.gate_form = options.gate_form;
    args.decay = rule_view(td, options.layout);
    args.decay_dtype = td.dtype();
    args.beta = rule_view(tb, options.layout);
    args.beta_dtype = tb.dtype();
    if (raw) {
      da.emplace(ctx, call, 5, a.shape(), compute, a.dtype());
      dbias.emplace(ctx, call, 6, bias.shape(), compute, bias.dtype());
      args.A_log = a.data();
      args.dt_bias = bias.data();
      args.d_A_log = da->data();
      args.d_dt_bias = dbias->data();
    }
    args.allow_neg_eigval = options.allow_neg_eigval;
    args.use_qk_l2norm = options.use_qk_l2norm;
    args.scale = options.scale;
    args.initial_state = start.defined() ? start.data() : nullptr;
    args.t_inverse = inverse.data();
    args.d_o = rule_view(dout_rows.split_last(options.value_heads), options.layout);
    args.d_final_state = d_final.defined() ? d_final.data() : nullptr;
    args.dq = mutable_rule_view(dq, options.layout);
    args.dk = mutable_rule_view(dk, options.layout);
    args.dv = mutable_rule_view(dv, options.layout);
    args.d_decay = mutable_rule_view(d_decay_out, options.layout);
    args.d_beta = mutable_rule_view(d_beta_out, options.layout);
    args.d_gate_dtype = d_decay_out.dtype();
    Tensor d_start;
    if (start.defined() && call.wanted(7)) {
      d_start = Tensor::empty(ctx, start.shape(), start.dtype(), "gradient");
      args.d_initial_state = d_start.data();
    }
    DELTRON_LAUNCH_WITH_WORKSPACE(ctx, gated_delta_rule_backward, args);
    if (two_types) {
      convert(ctx, d_decay_out, d_decay);
      convert(ctx, d_beta_out, d_beta);
    }
    call.set_gradient(0, dq);
    call.set_gradient(1, dk);
    call.set_gradient(2, dv);
    call.set_gradient(3, d_decay);
    call.set_gradient(4, d_beta);
    if (raw) {
      da->finish();
      dbias->finish();
    }
    if (d_start.defined()) call.set_gradient(7, d_start);
  }
  void release() override {
    for (SavedTensor* saved : {&q, &k, &v, &decay, &beta, &A_log, &dt_bias, &initial_state, &t_inverse}) saved->release();
    layout.reset();
  }
};

void check_rule_inputs(const Context& ctx, const GatedDeltaRuleInputs& in, const LayoutPtr& layout, const GatedDeltaRuleOptions& options,
                       const char* op) {
  const DeltaRuleChecks checks(ctx, op);
  const std::int64_t Hv = options.value_heads;
  checks.require(options.gate_heads == GateHeads::Values, "gate heads", "declared: keys", "beta and the decay of gated_delta_rule belong to value heads");
  checks.common(in, layout, options, options.gate_form == kernels::GateForm::Raw, {Hv}, {Hv});
  const Shape shape = with_leading(leading_shape(*layout, options.layout), {Hv});
  checks.gate(in.decay, "decay", shape, false, in.q.dtype());
  checks.gate(in.beta, "beta", shape, false, in.q.dtype());
}

}  // namespace

Tensor gdn_qkv_prep(Context& ctx, const Tensor& qkv, const Tensor& conv_weight, const LayoutPtr& layout, const QkvPrepOptions& options,
                    const char* name) {
  const std::int64_t channels = 2 * options.key_heads * options.key_dim + options.value_heads * options.value_dim;
  DELTRON_CHECK(qkv.rank() == 2 && qkv.size(1) == channels && conv_weight.rank() == 2 && conv_weight.size(0) == channels, name, ": qkv ",
                shape_text(qkv.shape()), ", conv weight ", shape_text(conv_weight.shape()), ", channels ", channels);
  DELTRON_CHECK_EQ(layout->tokens(), qkv.size(0), name);
  Tensor y = Tensor::empty(ctx, qkv.shape(), qkv.dtype(), name);
  kernels::CausalConv1dForwardArgs conv;
  conv.tokens = qkv.size(0);
  conv.channels = channels;
  conv.kernel = conv_weight.size(1);
  conv.documents = layout->device_documents();
  conv.dtype = qkv.dtype();
  conv.x = matrix_view(qkv);
  conv.weight = conv_weight.data();
  conv.weight_dtype = conv_weight.dtype();
  conv.y = mutable_matrix_view(y);
  DELTRON_LAUNCH(ctx, causal_conv1d_forward, conv);
  Tensor rstd;
  if (options.use_qk_l2norm) {
    rstd = Tensor::empty(ctx, {qkv.size(0), 2 * options.key_heads}, compute_dtype(qkv.dtype()), "rstd");
    kernels::L2NormForwardArgs norm;
    norm.rows = qkv.size(0);
    norm.heads = 2 * options.key_heads;
    norm.dim = options.key_dim;
    norm.dtype = qkv.dtype();
    norm.epsilon = options.epsilon;
    norm.x = {y.data(), 0, y.stride(0), options.key_dim};
    norm.y = {y.data(), 0, y.stride(0), options.key_dim};
    norm.rstd = rstd.data();
    DELTRON_LAUNCH(ctx, l2_norm_forward, norm);
  }
  if (!GraphRecorder::wanted(ctx, {qkv, conv_weight})) return y;
  auto node = std::make_shared<QkvPrepNode>(name);
  node->layout = layout;
  node->options = options;
  GraphRecorder recorder(ctx, node);
  recorder.input(qkv, "qkv");
  recorder.input(conv_weight, "conv_weight");
  node->qkv = SavedTensor(ctx, qkv, std::string(name) + ".conv_input");
  node->weight = SavedTensor(ctx, conv_weight, "conv1d.weight");
  if (options.use_qk_l2norm) {
    node->prepared = SavedTensor(ctx, y, std::string(name) + ".qkv");
    node->rstd = SavedTensor(ctx, rstd, std::string(name) + ".rstd");
  }
  return recorder.output(y);
}

GatedDeltaRuleResult gated_delta_rule(Context& ctx, const GatedDeltaRuleInputs& in, const LayoutPtr& layout,
                                      const GatedDeltaRuleOptions& given, const char* name) {
  GatedDeltaRuleOptions options = given;
  check_rule_inputs(ctx, in, layout, options, name);
  if (options.scale == 0) options.scale = 1.0 / std::sqrt(static_cast<double>(options.key_dim));
  const std::vector<Tensor> inputs = {in.q, in.k, in.v, in.decay, in.beta, in.A_log, in.dt_bias, in.initial_state};
  const bool record = GraphRecorder::wanted(ctx, inputs);
  const std::int64_t T = layout->tokens(), Hv = options.value_heads;
  const DType compute = compute_dtype(in.q.dtype());
  GatedDeltaRuleResult result;
  result.out = Tensor::empty(ctx, with_leading(leading_shape(*layout, options.layout), {Hv * options.value_dim}), in.q.dtype(), name);
  if (options.output_final_state) {
    result.final_state = Tensor::empty(ctx, {layout->documents(), Hv, options.key_dim, options.value_dim}, compute, "final_state");
  }
  Tensor t_inverse = record ? Tensor::empty(ctx, {T, Hv, kernels::kDeltaRuleChunk}, in.q.dtype(), "t_inverse") : Tensor();
  kernels::GatedDeltaRuleForwardArgs args;
  args.tokens = T;
  args.key_heads = options.key_heads;
  args.value_heads = Hv;
  args.key_dim = options.key_dim;
  args.value_dim = options.value_dim;
  args.documents = layout->device_documents();
  args.dtype = in.q.dtype();
  args.q = rule_view(in.q, options.layout);
  args.k = rule_view(in.k, options.layout);
  args.v = rule_view(in.v, options.layout);
  args.gate_form = options.gate_form;
  args.decay = rule_view(in.decay, options.layout);
  args.decay_dtype = in.decay.dtype();
  args.beta = rule_view(in.beta, options.layout);
  args.beta_dtype = in.beta.dtype();
  args.A_log = in.A_log.defined() ? in.A_log.data() : nullptr;
  args.dt_bias = in.dt_bias.defined() ? in.dt_bias.data() : nullptr;
  args.allow_neg_eigval = options.allow_neg_eigval;
  args.use_qk_l2norm = options.use_qk_l2norm;
  args.scale = options.scale;
  args.initial_state = in.initial_state.defined() ? in.initial_state.data() : nullptr;
  args.final_state = result.final_state ? result.final_state->data() : nullptr;
  args.o = mutable_rule_view(result.out.split_last(Hv), options.layout);
  args.t_inverse = record ? t_inverse.data() : nullptr;
  DELTRON_LAUNCH_WITH_WORKSPACE(ctx, gated_delta_rule_forward, args);
  if (!record) return result;
  auto node = std::make_shared<GatedDeltaRuleNode>(name);
  node->layout = layout;
  node->options = options;
  GraphRecorder recorder(ctx, node);
  const char* names[] = {"q", "k", "v", "decay", "beta", "A_log", "dt_bias", "initial_state"};
  SavedTensor* saved[] = {&node->q, &node->k, &node->v, &node->decay, &node->beta, &node->A_log, &node->dt_bias, &node->initial_state};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    recorder.input(inputs[i], names[i]);
    if (inputs[i].defined()) *saved[i] = SavedTensor(ctx, inputs[i], std::string(name) + "." + names[i]);
  }
  node->t_inverse = SavedTensor(ctx, t_inverse, std::string(name) + ".t_inverse");
  result.out = recorder.output(result.out);
  if (result.final_state) result.final_state = recorder.output(*result.final_state);
  return result;
}

}  // namespace deltron
