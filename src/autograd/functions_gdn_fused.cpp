// See functions_gdn_fused.h.
#include "src/autograd/functions_gdn_fused.h"

#include "src/autograd/op_checks.h"
#include "src/autograd/parameter_gradient.h"
#include "src/tensor/launch.h"

namespace deltron {
namespace {

bool by_head(const GdnPreRuleOptions& options) { return options.gates == kernels::PreRuleGates::Heads; }

// Sizes that follow from the options.
struct PreRuleSizes {
  std::int64_t dq, dv, raw, rates, biases;
  explicit PreRuleSizes(const GdnPreRuleOptions& o)
      : dq(o.key_heads * o.key_dim),
        dv(o.value_heads * o.value_dim),
        raw(by_head(o) ? 2 * o.value_heads : 2 * dq + dv),
        rates(by_head(o) ? o.value_heads : o.key_heads),
        biases(by_head(o) ? o.value_heads : dq) {}
};

void check_pre_rule(const Context& ctx, const GdnPreRuleInputs& in, const LayoutPtr& layout, const GdnPreRuleOptions& o, const char* name) {
  const OpChecks checks(ctx, name, "give tensors that the fused kernel takes, or set gdn_pre_gated_delta_rule_fusion: false");
  checks.require(o.key_heads > 0 && o.value_heads > 0 && o.value_heads % o.key_heads == 0, "head counts",
                 "Hk " + std::to_string(o.key_heads) + ", Hv " + std::to_string(o.value_heads), "value heads are a multiple of key heads");
  checks.require(o.key_dim > 0 && o.value_dim > 0, "head dims", "K " + std::to_string(o.key_dim) + ", V " + std::to_string(o.value_dim),
                 "head dims are positive");
  checks.require(o.epsilon > 0, "epsilon", std::to_string(o.epsilon), "the L2 norm of a zero row needs an epsilon above 0");
  checks.require(layout != nullptr, "offsets are missing", "", "the convolution must know where documents begin");
  const PreRuleSizes sizes(o);
  const std::int64_t T = layout->tokens(), channels = 2 * sizes.dq + sizes.dv;
  checks.given(in.qkv, "qkv");
  checks.given(in.gates, "gates");
  checks.given(in.conv_weight, "conv_weight");
  checks.given(in.A_log, "A_log");
  checks.given(in.dt_bias, "dt_bias");
  checks.require(T > 0, "no tokens", shape_text(in.qkv.shape()), "at least one token");
  for (const auto& [tensor, label, width] : {std::tuple<const Tensor&, const char*, std::int64_t>{in.qkv, "qkv", channels},
                                             {in.gates, "gates", sizes.dv + sizes.raw}}) {
    checks.require(tensor.rank() == 2, std::string("rank of ") + label, shape_text(tensor.shape()), "the projection is [tokens, width]");
    checks.require(tensor.size(0) == T, std::string("tokens of ") + label,
                   std::to_string(tensor.size(0)) + ", the offsets end at " + std::to_string(T), "the offsets describe this very buffer");
    checks.require(tensor.size(1) == width, std::string("width of ") + label,
                   std::to_string(tensor.size(1)) + ", the options give " + std::to_string(width), "widths follow from heads and dims");
    checks.rows(tensor, label);
  }
  checks.activations(in.qkv, "qkv");
  checks.same_dtype(in.gates, "gates", in.qkv.dtype(), "qkv");
  checks.require(in.conv_weight.rank() == 2, "rank of conv_weight", shape_text(in.conv_weight.shape()), "conv_weight is [channels, taps]");
  checks.require(in.conv_weight.size(0) == channels, "channels of conv_weight",
                 std::to_string(in.conv_weight.size(0)) + ", not " + std::to_string(channels), "one row of taps a channel of qkv");
  const bool cuda = ctx.kernel_device() == DeviceKind::Cuda;
  const std::int64_t most_taps = cuda ? kernels::kPreRuleTapsCuda : kernels::kPreRuleTaps;
  checks.require(in.conv_weight.size(1) >= 1 && in.conv_weight.size(1) <= most_taps, "taps of conv_weight", std::to_string(in.conv_weight.size(1)),
                 "1 to " + std::to_string(most_taps) + " taps on " + device_name(ctx.kernel_device()));
  checks.require(!cuda || (o.key_dim <= kernels::kPreRuleHeadDimCuda && o.value_dim <= kernels::kPreRuleHeadDimCuda), "head dims on cuda",
                 "K " + std::to_string(o.key_dim) + ", V " + std::to_string(o.value_dim), "up to " + std::to_string(kernels::kPreRuleHeadDimCuda));
  checks.parameter_dtype(in.conv_weight, "conv_weight", in.qkv.dtype());
  checks.whole(in.conv_weight, "conv_weight");
  checks.shape_is(in.A_log, "A_log", {sizes.rates});
  checks.shape_is(in.dt_bias, "dt_bias", {sizes.biases});
  for (const auto& [tensor, label] : {std::pair<const Tensor&, const char*>{in.A_log, "A_log"}, {in.dt_bias, "dt_bias"}}) {
    checks.require(tensor.dtype() == compute_dtype(in.qkv.dtype()), std::string("dtype of ") + label, dtype_name(tensor.dtype()),
                   std::string(dtype_name(compute_dtype(in.qkv.dtype()))) + " from initialisation to checkpoint");
    checks.whole(tensor, label);
  }
}

template <class Args>
void fill_pre_rule(Args& args, const Tensor& qkv, const Tensor& raw, const Tensor& conv_weight, const Tensor& A_log, const Tensor& dt_bias,
                   const SequenceLayout& layout, const GdnPreRuleOptions& options) {
  args.tokens = qkv.size(0);
  args.key_heads = options.key_heads;
  args.value_heads = options.value_heads;
  args.key_dim = options.key_dim;
  args.value_dim = options.value_dim;
  args.kernel = conv_weight.size(1);
  args.gates = options.gates;
  args.documents = layout.device_documents();
  args.dtype = qkv.dtype();
  args.qkv = matrix_view(qkv);
  args.raw = matrix_view(raw);
  args.conv_weight = conv_weight.data();
  args.conv_weight_dtype = conv_weight.dtype();
  args.A_log = A_log.data();
  args.dt_bias = dt_bias.data();
  args.allow_neg_eigval = options.allow_neg_eigval;
  args.epsilon = options.epsilon;
}

class GdnPreRuleNode : public Node {
 public:
  using Node::Node;
  SavedTensor qkv, raw, conv_weight, A_log, dt_bias;
  LayoutPtr layout;
  GdnPreRuleOptions options;
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor x = qkv.get(), gates = raw.get(), w = conv_weight.get(), a = A_log.get(), bias = dt_bias.get();
    const DType compute = compute_dtype(x.dtype());
    const Tensor d_prepared = call.output_gradient(0);
    const Tensor d_decay = contiguous(ctx, call.output_gradient(1), "gradient"), d_strength = contiguous(ctx, call.output_gradient(2), "gradient");
    const Tensor d_write = by_head(options) ? Tensor() : contiguous(ctx, call.output_gradient(3), "gradient");
    Tensor dx = call.destination(0, x.shape(), x.dtype()), d_gates = call.destination(1, gates.shape(), gates.dtype());
    ParameterGradient dw(ctx, call, 2, w.shape(), compute, w.dtype()), da(ctx, call, 3, a.shape(), compute, a.dtype()),
        dbias(ctx, call, 4, bias.shape(), compute, bias.dtype());
    kernels::GdnPreRuleBackwardArgs args;
    fill_pre_rule(args, x, gates, w, a, bias, *layout, options);
    args.d_prepared = matrix_view(d_prepared);
    args.d_decay = d_decay.data();
    args.d_strength = d_strength.data();
    args.d_write = d_write.defined() ? d_write.data() : nullptr;
    args.d_qkv = mutable_matrix_view(dx);
    args.d_raw = mutable_matrix_view(d_gates);
    args.d_conv_weight = dw.data();
    args.d_A_log = da.data();
    args.d_dt_bias = dbias.data();
    DELTRON_LAUNCH_WITH_WORKSPACE(ctx, gdn_pre_rule_backward, args);
    call.set_gradient(0, dx);
    call.set_gradient(1, d_gates);
    dw.finish();
    da.finish();
    dbias.finish();
  }
  void release() override {
    for (SavedTensor* saved : {&qkv, &raw, &conv_weight, &A_log, &dt_bias}) saved->release();
    layout.reset();
  }
};

}  // namespace

GdnPreRuleResult gdn_pre_rule(Context& ctx, const GdnPreRuleInputs& in, const LayoutPtr& layout, const GdnPreRuleOptions& options,
                              const char* name) {
  check_pre_rule(ctx, in, layout, options, name);
  const PreRuleSizes sizes(options);
  const std::int64_t T = in.qkv.size(0);
  const std::vector<Tensor> parts = split(ctx, in.gates, {{sizes.dv, options.value_heads}, {sizes.raw, 0}}, "gdn.gates.split");
  const Tensor& raw = parts[1];
  const Shape gate_shape = by_head(options) ? Shape{T, options.value_heads} : Shape{T, options.key_heads, options.key_dim};
  GdnPreRuleResult result;
  result.z = parts[0];
  result.prepared = Tensor::empty(ctx, in.qkv.shape(), in.qkv.dtype(), name);
  result.decay = Tensor::empty(ctx, gate_shape, compute_dtype(in.qkv.dtype()), "gdn.decay");
  result.strength = Tensor::empty(ctx, gate_shape, in.qkv.dtype(), by_head(options) ? "gdn.beta" : "gdn.b");
  if (!by_head(options)) result.write = Tensor::empty(ctx, {T, options.value_heads, options.value_dim}, in.qkv.dtype(), "gdn.w");
  kernels::GdnPreRuleForwardArgs args;
  fill_pre_rule(args, in.qkv, raw, in.conv_weight, in.A_log, in.dt_bias, *layout, options);
  args.prepared = mutable_matrix_view(result.prepared);
  args.decay = result.decay.data();
  args.strength = result.strength.data();
  args.write = result.write.defined() ? result.write.data() : nullptr;
  DELTRON_LAUNCH_WITH_WORKSPACE(ctx, gdn_pre_rule_forward, args);
  if (!GraphRecorder::wanted(ctx, {in.qkv, raw, in.conv_weight, in.A_log, in.dt_bias})) return result;
  auto node = std::make_shared<GdnPreRuleNode>(name);
  node->layout = layout;
  node->options = options;
  GraphRecorder recorder(ctx, node);
  recorder.input(in.qkv, "qkv");
  recorder.input(raw, "gates");
  recorder.input(in.conv_weight, "conv_weight");
  recorder.input(in.A_log, "A_log");
  recorder.input(in.dt_bias, "dt_bias");
  node->qkv = SavedTensor(ctx, in.qkv, std::string(name) + ".conv_input");
  node->raw = SavedTensor(ctx, raw, std::string(name) + ".gates");
  node->conv_weight = SavedTensor(ctx, in.conv_weight, "conv1d.weight");
  node->A_log = SavedTensor(ctx, in.A_log, std::string(name) + ".A_log");
  node->dt_bias = SavedTensor(ctx, in.dt_bias, std::string(name) + ".dt_bias");
  result.prepared = recorder.output(result.prepared);
  result.decay = recorder.output(result.decay);
  result.strength = recorder.output(result.strength);
  if (result.write.defined()) result.write = recorder.output(result.write);
  return result;
}

}  // namespace deltron
