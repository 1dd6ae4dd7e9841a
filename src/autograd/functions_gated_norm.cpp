// See functions_gated_norm.h.
#include "src/autograd/functions_gated_norm.h"

#include "kernels/gated_rms_norm.h"
#include "src/autograd/op_checks.h"
#include "src/autograd/parameter_gradient.h"
#include "src/tensor/launch.h"
#include "src/tensor/ops.h"

namespace deltron {
namespace {

// [T,H,V] or [B,S,H,V] as the kernel's rows: sequences of `length` rows, or flat (length 0).
kernels::MutableHeadView norm_view(const Tensor& t) {
  if (t.rank() == 3) return {t.data(), 0, t.stride(0), t.stride(1)};
  return {t.data(), t.stride(0), t.stride(1), t.stride(2)};
}
kernels::HeadView const_norm_view(const Tensor& t) {
  const kernels::MutableHeadView view = norm_view(t);
  return {view.data, view.sequence_stride, view.token_stride, view.head_stride};
}
// x in the gate's rank.
Tensor by_heads(const Tensor& x, const Tensor& gate) { return x.rank() == 2 ? x.split_last(gate.size(1)) : x; }

// `fused`: the kernel of the fused form takes no empty batch; a rank without tokens runs the plain one.
void check_output_norm(const Context& ctx, const Tensor& x, const Tensor& gate, const Tensor& weight, const NormOptions& norm, bool fused,
                       const char* name) {
  const OpChecks checks(ctx, name, "give tensors that the kernel takes");
  checks.given(x, "x");
  checks.given(gate, "gate");
  checks.given(weight, "weight");
  checks.require(gate.rank() == 3 || gate.rank() == 4, "rank of gate", shape_text(gate.shape()), "the gate is [T,H,V] or [B,S,H,V]");
  checks.require(gate.count() > 0 || (!fused && gate.size(-1) > 0 && gate.size(-2) > 0), "gate is empty", shape_text(gate.shape()), "at least one row");
  const bool side_by_side = x.rank() == 2 && gate.rank() == 3 && x.size(0) == gate.size(0) && x.size(1) == gate.size(1) * gate.size(2);
  checks.require(side_by_side || x.shape() == gate.shape(), "shapes of x and gate", shape_text(x.shape()) + ", " + shape_text(gate.shape()),
                 "x has the gate's shape, or its heads side by side");
  checks.rows(x, "x");
  checks.rows(gate, "gate");
  checks.activations(x, "x");
  checks.same_dtype(gate, "gate", x.dtype(), "x");
  checks.shape_is(weight, "weight", {gate.size(-1)});
  checks.whole(weight, "weight");
  checks.parameter_dtype(weight, "weight", x.dtype());
  checks.require(norm.epsilon > 0, "epsilon", std::to_string(norm.epsilon), "the norm of a zero row needs an epsilon above 0");
}

class GatedNormNode : public Node {
 public:
  using Node::Node;
  SavedTensor x, gate, weight, rstd;
  NormOptions norm;
  bool round_gated = false;
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor z = gate.get(), gamma = weight.get(), input = x.get(), statistics = rstd.get();
    const Tensor dy = contiguous(ctx, call.output_gradient(0), "gradient");
    Tensor dx = call.destination(0, input.shape(), input.dtype()), dz = call.destination(1, z.shape(), z.dtype());
    ParameterGradient dgamma(ctx, call, 2, gamma.shape(), compute_dtype(input.dtype()), gamma.dtype());
    kernels::GatedRmsNormBackwardArgs args;
    args.heads = z.size(-2);
    args.dim = z.size(-1);
    args.rows = z.count() / (args.heads * args.dim);
    args.sequence_length = z.rank() == 4 ? z.size(1) : 0;
    args.dtype = input.dtype();
    args.x = const_norm_view(by_heads(input, z));
    args.z = const_norm_view(z);
    args.dy = const_norm_view(by_heads(dy, z));
    args.weight = gamma.data();
    args.weight_dtype = gamma.dtype();
    args.zero_centered = norm.zero_centered;
    args.round_gated = round_gated;
    args.rstd = statistics.data();
    args.dx = norm_view(by_heads(dx, z));
    args.dz = norm_view(dz);
    args.dweight = dgamma.data();
    DELTRON_LAUNCH_WITH_WORKSPACE(ctx, gated_rms_norm_backward, args);
    dgamma.finish();
    call.set_gradient(0, dx);
    call.set_gradient(1, dz);
  }
  void release() override {
    for (SavedTensor* saved : {&x, &gate, &weight, &rstd}) saved->release();
  }
};

class GateCopyNode : public Node {
 public:
  using Node::Node;
  void backward(Context&, BackwardCall& call) override { call.set_gradient(0, call.output_gradient(0)); }
  void release() override {}
};

Tensor gated_norm(Context& ctx, const Tensor& x, const Tensor& gate, const Tensor& weight, const NormOptions& norm, bool round_gated,
                  const char* name) {
  check_output_norm(ctx, x, gate, weight, norm, round_gated, name);
  kernels::GatedRmsNormForwardArgs args;
  args.heads = gate.size(-2);
  args.dim = gate.size(-1);
  args.rows = gate.count() / (args.heads * args.dim);
  args.sequence_length = gate.rank() == 4 ? gate.size(1) : 0;
  Tensor y = Tensor::empty(ctx, x.shape(), x.dtype(), name);
  const Tensor rstd = Tensor::empty(ctx, {args.rows, args.heads}, compute_dtype(x.dtype()), "rstd");
  args.dtype = x.dtype();
  args.x = const_norm_view(by_heads(x, gate));
  args.z = const_norm_view(gate);
  args.weight = weight.data();
  args.weight_dtype = weight.dtype();
  args.zero_centered = norm.zero_centered;
  args.epsilon = norm.epsilon;
  args.rstd = rstd.data();
  args.y = norm_view(by_heads(y, gate));
  DELTRON_LAUNCH(ctx, gated_rms_norm_forward, args);
  if (!GraphRecorder::wanted(ctx, {x, gate, weight})) return y;
  auto node = std::make_shared<GatedNormNode>(name);
  node->norm = norm;
  node->round_gated = round_gated;
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  recorder.input(gate, "gate");
  recorder.input(weight, "weight");
  node->x = SavedTensor(ctx, x, std::string(name) + ".x");
  node->gate = SavedTensor(ctx, gate, std::string(name) + ".z");
  node->weight = SavedTensor(ctx, weight, "out_norm.weight");
  node->rstd = SavedTensor(ctx, rstd, std::string(name) + ".rstd");
  return recorder.output(y);
}

}  // namespace

Tensor gated_rms_norm(Context& ctx, const Tensor& x, const Tensor& gate, const Tensor& weight, const NormOptions& norm, const char* name) {
  return gated_norm(ctx, x, gate, weight, norm, false, name);
}

Tensor gdn_gated_output_norm(Context& ctx, const Tensor& x, const Tensor& gate, const Tensor& weight, const NormOptions& norm,
                             const char* name) {
  return gated_norm(ctx, x, gate, weight, norm, true, name);
}

Tensor gate_copy(Context& ctx, const Tensor& gate, const char* name) {
  DELTRON_CHECK(gate.rank() == 3 && gate.stride(1) == gate.size(2), name, " of ", shape_text(gate.shape()), ": heads side by side");
  const Tensor copy = Tensor::empty(ctx, gate.shape(), gate.dtype(), name);
  const std::int64_t T = gate.size(0), width = gate.size(1) * gate.size(2);
  convert(ctx, Tensor(gate.storage(), gate.dtype(), {T, width}, {gate.stride(0), 1}, gate.offset()), copy.view({T, width}));
  if (!GraphRecorder::wanted(ctx, {gate})) return copy;
  GraphRecorder recorder(ctx, std::make_shared<GateCopyNode>(name));
  recorder.input(gate, "gate");
  return recorder.output(copy);
}

}  // namespace deltron
