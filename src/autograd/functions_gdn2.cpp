// See functions_gdn2.h.
#include "src/autograd/functions_gdn2.h"

#include <cmath>

#include "src/autograd/delta_rule_checks.h"
#include "src/autograd/parameter_gradient.h"
#include "src/tensor/launch.h"

namespace deltron {
namespace {

std::int64_t gate_head_count(const GatedDeltaRule2Options& options) {
  return options.gate_heads == GateHeads::Keys ? options.key_heads : options.value_heads;
}

// What forward and backward arguments have in common.
template <class Args>
void fill_inputs(Args& args, const GatedDeltaRule2Inputs& in, const SequenceLayout& layout, const GatedDeltaRule2Options& options) {
  args.tokens = layout.tokens();
  args.key_heads = options.key_heads;
  args.value_heads = options.value_heads;
  args.gate_heads = gate_head_count(options);
  args.key_dim = options.key_dim;
  args.value_dim = options.value_dim;
  args.documents = layout.device_documents();
  args.dtype = in.q.dtype();
  args.q = rule_view(in.q, options.layout);
  args.k = rule_view(in.k, options.layout);
  args.v = rule_view(in.v, options.layout);
  args.gate_form = options.gate_form;
  args.decay = rule_view(in.decay, options.layout);
  args.decay_dtype = in.decay.dtype();
  args.erase = rule_view(in.b, options.layout);
  args.erase_dtype = in.b.dtype();
  args.write = rule_view(in.w, options.layout);
  args.write_dtype = in.w.dtype();
  args.A_log = in.A_log.defined() ? in.A_log.data() : nullptr;
  args.dt_bias = in.dt_bias.defined() ? in.dt_bias.data() : nullptr;
  args.allow_neg_eigval = options.allow_neg_eigval;
  args.use_qk_l2norm = options.use_qk_l2norm;
  args.scale = options.scale;
  args.initial_state = in.initial_state.defined() ? in.initial_state.data() : nullptr;
}

class GatedDeltaRule2Node : public Node {
 public:
  using Node::Node;
  SavedTensor q, k, v, decay, b, w, A_log, dt_bias, initial_state;
  LayoutPtr layout;
  GatedDeltaRule2Options options;

  bool output_is_optional(int) const override { return true; }  // a caller may use the output, the final state, or both

  void backward(Context& ctx, BackwardCall& call) override {
    const auto given = [](const SavedTensor& saved) { return saved.defined() ? saved.get() : Tensor(); };
    const GatedDeltaRule2Inputs in{q.get(), k.get(),      v.get(),        decay.get(),         b.get(),
                                   w.get(), given(A_log), given(dt_bias), given(initial_state)};
    const DType compute = compute_dtype(in.q.dtype());
    const Tensor d_out = call.output_gradient(0);
    const Tensor d_final = options.output_final_state ? call.output_gradient(1) : Tensor();
    const Tensor d_out_rows =
        d_out.defined() ? contiguous(ctx, d_out, "gradient") : Tensor::zeros(ctx, outputs()[0].shape, in.q.dtype(), "gradient");
    kernels::GatedDeltaRule2BackwardArgs args;
    fill_inputs(args, in, *layout, options);
    args.d_o = rule_view(d_out_rows.split_last(options.value_heads), options.layout);
    args.d_final_state = d_final.defined() ? d_final.data() : nullptr;
    Tensor dq = call.destination(0, in.q.shape(), in.q.dtype());
    Tensor dk = call.destination(1, in.k.shape(), in.k.dtype());
    Tensor dv = call.destination(2, in.v.shape(), in.v.dtype());
    args.dq = mutable_rule_view(dq, options.layout);
    args.dk = mutable_rule_view(dk, options.layout);
    args.dv = mutable_rule_view(dv, options.layout);
    // The kernel writes all gate gradients in one type: gates of several types (g in fp32 beside bf16 b and w) go through the
    // compute type.
    const Tensor* gates[] = {&in.decay, &in.b, &in.w};
    const bool one_type = in.decay.dtype() == in.b.dtype() && in.b.dtype() == in.w.dtype();
    Tensor wanted[3], written[3];
    for (int i = 0; i < 3; ++i) {
      wanted[i] = call.destination(3 + i, gates[i]->shape(), gates[i]->dtype());
      written[i] = one_type ? wanted[i] : Tensor::empty(ctx, gates[i]->shape(), compute, "gradient");
    }
    args.d_decay = mutable_rule_view(written[0], options.layout);
    args.d_erase = mutable_rule_view(written[1], options.layout);
    args.d_write = mutable_rule_view(written[2], options.layout);
    args.d_gate_dtype = written[0].dtype();
    std::optional<ParameterGradient> da, dbias;
    if (options.gate_form == kernels::GateForm::Raw) {
      da.emplace(ctx, call, 6, in.A_log.shape(), compute, in.A_log.dtype());
      dbias.emplace(ctx, call, 7, in.dt_bias.shape(), compute, in.dt_bias.dtype());
      args.d_A_log = da->data();
      args.d_dt_bias = dbias->data();
    }
    Tensor d_start;
    if (in.initial_state.defined() && call.wanted(8)) {
      d_start = Tensor::empty(ctx, in.initial_state.shape(), in.initial_state.dtype(), "gradient");
      args.d_initial_state = d_start.data();
    }
    DELTRON_LAUNCH_WITH_WORKSPACE(ctx, gated_delta_rule_2_backward, args);
    call.set_gradient(0, dq);
    call.set_gradient(1, dk);
    call.set_gradient(2, dv);
    for (int i = 0; i < 3; ++i) {
      if (!one_type) convert(ctx, written[i], wanted[i]);
      call.set_gradient(3 + i, wanted[i]);
    }
    if (da) da->finish();
    if (dbias) dbias->finish();
    if (d_start.defined()) call.set_gradient(8, d_start);
  }
  void release() override {
    for (SavedTensor* saved : {&q, &k, &v, &decay, &b, &w, &A_log, &dt_bias, &initial_state}) saved->release();
    layout.reset();
  }
};

void check_rule_inputs(const Context& ctx, const GatedDeltaRule2Inputs& in, const LayoutPtr& layout, const GatedDeltaRule2Options& options,
                       const char* op) {
  const DeltaRuleChecks checks(ctx, op);
  const std::int64_t heads = gate_head_count(options);
  checks.common(in, layout, options, options.gate_form == kernels::GateForm::Raw, {heads}, {heads * options.key_dim});
  const Shape leading = leading_shape(*layout, options.layout);
  checks.gate(in.decay, "decay", with_leading(leading, {heads, options.key_dim}), true, in.q.dtype());
  checks.gate(in.b, "b", with_leading(leading, {heads, options.key_dim}), true, in.q.dtype());
  checks.gate(in.w, "w", with_leading(leading, {options.value_heads, options.value_dim}), true, in.q.dtype());
}

}  // namespace

GatedDeltaRuleResult gated_delta_rule_2(Context& ctx, const GatedDeltaRule2Inputs& in, const LayoutPtr& layout,
                                        const GatedDeltaRule2Options& given, const char* name) {
  GatedDeltaRule2Options options = given;
  check_rule_inputs(ctx, in, layout, options, name);
  if (options.scale == 0) options.scale = 1.0 / std::sqrt(static_cast<double>(options.key_dim));
  const std::vector<Tensor> inputs = {in.q, in.k, in.v, in.decay, in.b, in.w, in.A_log, in.dt_bias, in.initial_state};
  const std::int64_t Hv = options.value_heads;
  GatedDeltaRuleResult result;
  result.out = Tensor::empty(ctx, with_leading(leading_shape(*layout, options.layout), {Hv * options.value_dim}), in.q.dtype(), name);
  if (options.output_final_state) {
    result.final_state = Tensor::empty(ctx, {layout->documents(), Hv, options.key_dim, options.value_dim},
                                       compute_dtype(in.q.dtype()), "final_state");
  }
  kernels::GatedDeltaRule2ForwardArgs args;
  fill_inputs(args, in, *layout, options);
  args.final_state = result.final_state ? result.final_state->data() : nullptr;
  args.o = mutable_rule_view(result.out.split_last(Hv), options.layout);
  DELTRON_LAUNCH_WITH_WORKSPACE(ctx, gated_delta_rule_2_forward, args);
  if (!GraphRecorder::wanted(ctx, inputs)) return result;
  auto node = std::make_shared<GatedDeltaRule2Node>(name);
  node->layout = layout;
  node->options = options;
  GraphRecorder recorder(ctx, node);
  const char* names[] = {"q", "k", "v", "decay", "b", "w", "A_log", "dt_bias", "initial_state"};
  SavedTensor* saved[] = {&node->q, &node->k,     &node->v,       &node->decay,        &node->b,
                          &node->w, &node->A_log, &node->dt_bias, &node->initial_state};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    recorder.input(inputs[i], names[i]);
    if (inputs[i].defined()) *saved[i] = SavedTensor(ctx, inputs[i], std::string(name) + "." + names[i]);
  }
  result.out = recorder.output(result.out);
  if (result.final_state) result.final_state = recorder.output(*result.final_state);
  return result;
}

}  // namespace deltron
