// See functions_attention.h.
#include "src/autograd/functions_attention.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_decode.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "src/autograd/attention_choice.h"
#include "src/autograd/parameter_gradient.h"
#include "src/tensor/launch.h"

namespace deltron {
namespace {

void rotate(Context& ctx, const Tensor& from, const Tensor& to, const SequenceLayout& layout, const HeadPrepOptions& options, bool inverse) {
  kernels::RopeArgs args;
  args.tokens = from.size(0);
  args.heads = from.size(1);
  args.dim = from.size(2);
  args.rotary_dim = options.rotary_dim;
  args.theta = options.rotary_base;
  args.dtype = from.dtype();
  args.positions = layout.positions();
  args.x = head_view(from);
  args.y = mutable_head_view(to);
  args.inverse = inverse;
  DELTRON_LAUNCH(ctx, rope, args);
}

class PrepareHeadsNode : public Node {
 public:
  using Node::Node;
  SavedTensor x, weight, rstd;
  LayoutPtr layout;
  HeadPrepOptions options;
  void backward(Context& ctx, BackwardCall& call) override {
    Tensor dy = call.output_gradient(0);
    Tensor dx = call.destination(0, dy.shape(), dy.dtype());
    if (options.rotary_dim > 0) {
      rotate(ctx, dy, dx, *layout, options, true);
      dy = dx;
    }
    if (options.norm) {
      const Tensor input = x.get(), gamma = weight.get(), statistics = rstd.get();
      ParameterGradient dgamma(ctx, call, 1, gamma.shape(), compute_dtype(input.dtype()), gamma.dtype());
      kernels::RmsNormBackwardArgs args;
      args.rows = input.size(0);
      args.heads = input.size(1);
      args.cols = input.size(2);
      args.dtype = input.dtype();
      args.x = head_view(input);
      args.dy = head_view(dy);
      args.weight = gamma.data();
      args.weight_dtype = gamma.dtype();
      args.zero_centered = options.norm_options.zero_centered;
      args.rstd = statistics.data();
      args.dx = mutable_head_view(dx);
      args.dweight = dgamma.data();
      DELTRON_LAUNCH_WITH_WORKSPACE(ctx, rms_norm_backward, args);
      dgamma.finish();
    }
    call.set_gradient(0, dx);
  }
  void release() override {
    x.release();
    weight.release();
    rstd.release();
    layout.reset();
  }
};

class AttentionNode : public Node {
 public:
  using Node::Node;
  SavedTensor q, k, v, out, log_sum_exp;
  LayoutPtr layout;
  AttentionOptions options;
  bool fused = false;
  void backward(Context& ctx, BackwardCall& call) override {
    const Tensor tq = q.get(), tk = k.get(), tv = v.get(), o = out.get(), d_o = call.output_gradient(0), lse = log_sum_exp.get();
    Tensor dq = call.destination(0, tq.shape(), tq.dtype());
    Tensor dk = call.destination(1, tk.shape(), tk.dtype());
    Tensor dv = call.destination(2, tv.shape(), tv.dtype());
    kernels::AttentionBackwardArgs args;
    args.tokens = tq.size(0);
    args.query_heads = tq.size(1);
    args.kv_heads = tk.size(1);
    args.dim = tq.size(2);
    args.documents = layout->device_documents();
    args.dtype = tq.dtype();
    args.scale = options.scale;
    args.q = head_view(tq);
    args.k = head_view(tk);
    args.v = head_view(tv);
    args.o = head_view(o.split_last(args.query_heads));
    args.d_o = head_view(contiguous(ctx, d_o, "gradient").split_last(args.query_heads));
    args.log_sum_exp = lse.data();
    args.dq = mutable_head_view(dq);
    args.dk = mutable_head_view(dk);
    args.dv = mutable_head_view(dv);
    args.rng = layout->token_rng(options.site, options.drop_probability);
    args.rng.first_head = options.first_head;
    launch_attention(ctx, fused, args);
    call.set_gradient(0, dq);
    call.set_gradient(1, dk);
    call.set_gradient(2, dv);
  }
  void release() override {
    for (SavedTensor* saved : {&q, &k, &v, &out, &log_sum_exp}) saved->release();
    layout.reset();
  }
};

}  // namespace

Tensor prepare_heads(Context& ctx, const Tensor& x, const Tensor& weight, const LayoutPtr& layout, const HeadPrepOptions& options,
                     const char* name) {
  DELTRON_CHECK_EQ(x.rank(), 3, name);
  if (!options.norm && options.rotary_dim == 0) return x;
  Tensor y = Tensor::empty(ctx, x.shape(), x.dtype(), name);
  Tensor rstd;
  if (options.norm) {
    DELTRON_CHECK(weight.defined() && weight.rank() == 1 && weight.size(0) == x.size(2), name, ": norm weight");
    rstd = Tensor::empty(ctx, {x.size(0), x.size(1)}, compute_dtype(x.dtype()), "rstd");
    kernels::RmsNormForwardArgs args;
    args.rows = x.size(0);
    args.heads = x.size(1);
    args.cols = x.size(2);
    args.dtype = x.dtype();
    args.x = head_view(x);
    args.weight = weight.data();
    args.weight_dtype = weight.dtype();
    args.zero_centered = options.norm_options.zero_centered;
    args.epsilon = options.norm_options.epsilon;
    args.rstd = rstd.data();
    args.y = mutable_head_view(y);
    DELTRON_LAUNCH(ctx, rms_norm_forward, args);
  }
  if (options.rotary_dim > 0) rotate(ctx, options.norm ? y : x.detached(), y, *layout, options, false);
  if (!GraphRecorder::wanted(ctx, {x, weight})) return y;
  auto node = std::make_shared<PrepareHeadsNode>(name);
  node->layout = layout;
  node->options = options;
  GraphRecorder recorder(ctx, node);
  recorder.input(x, "x");
  if (options.norm) {
    recorder.input(weight, "weight");
    node->x = SavedTensor(ctx, x, std::string(name) + ".x");
    node->weight = SavedTensor(ctx, weight, std::string(name) + ".weight");
    node->rstd = SavedTensor(ctx, rstd, std::string(name) + ".rstd");
  }
  return recorder.output(y);
}

Tensor attention(Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v, const LayoutPtr& layout, const AttentionOptions& given,
                 const char* name) {
  DELTRON_CHECK(q.rank() == 3 && k.rank() == 3 && v.shape() == k.shape() && q.size(2) == k.size(2) && q.size(0) == k.size(0) &&
                    q.size(1) % k.size(1) == 0,
                name, ": q ", shape_text(q.shape()), ", k ", shape_text(k.shape()), ", v ", shape_text(v.shape()));
  DELTRON_CHECK_EQ(layout->tokens(), q.size(0), name);
  AttentionOptions options = given;
  if (options.scale == 0) options.scale = 1.0 / std::sqrt(static_cast<double>(q.size(2)));
  const bool record = GraphRecorder::wanted(ctx, {q, k, v});
  Tensor out = Tensor::empty(ctx, {q.size(0), q.size(1) * q.size(2)}, q.dtype(), name);
  Tensor lse = record ? Tensor::empty(ctx, {q.size(0), q.size(1)}, compute_dtype(q.dtype()), "log_sum_exp") : Tensor();
  kernels::AttentionForwardArgs args;
  args.tokens = q.size(0);
  args.query_heads = q.size(1);
  args.kv_heads = k.size(1);
  args.dim = q.size(2);
  args.documents = layout->device_documents();
  args.dtype = q.dtype();
  args.scale = options.scale;
  args.q = head_view(q);
  args.k = head_view(k);
  args.v = head_view(v);
  args.o = mutable_head_view(out.split_last(args.query_heads));
  args.log_sum_exp = record ? lse.data() : nullptr;
  args.rng = layout->token_rng(options.site, options.drop_probability);
  args.rng.first_head = options.first_head;
  // The question is that of the training whatever is recorded now, so that a replay gets the kernels of the first pass.
  const bool fused = choose_attention(ctx, options.backend,
                                      {args.dtype, args.query_heads, args.kv_heads, args.dim, options.drop_probability, layout->longest()})
                         .fused &&
                     (options.backend == AttentionBackend::Fused || kernels::fused_attention_refusal(args).empty());
  launch_attention(ctx, fused, args);
  if (!record) return out;
  auto node = std::make_shared<AttentionNode>(name);
  node->layout = layout;
  node->options = options;
  node->fused = fused;
  GraphRecorder recorder(ctx, node);
  recorder.input(q, "q");
  recorder.input(k, "k");
  recorder.input(v, "v");
  node->q = SavedTensor(ctx, q, std::string(name) + ".q");
  node->k = SavedTensor(ctx, k, std::string(name) + ".k");
  node->v = SavedTensor(ctx, v, std::string(name) + ".v");
  node->out = SavedTensor(ctx, out, std::string(name) + ".out");
  node->log_sum_exp = SavedTensor(ctx, lse, std::string(name) + ".log_sum_exp");
  return recorder.output(out);
}

Tensor attention_over_cache(Context& ctx, const Tensor& q, const Tensor& keys, const Tensor& values, const char* name) {
  DELTRON_CHECK(q.rank() == 3 && keys.rank() == 3 && values.shape() == keys.shape() && q.size(2) == keys.size(2) &&
                    q.size(0) <= keys.size(0) && q.size(1) % keys.size(1) == 0,
                name, ": q ", shape_text(q.shape()), ", keys ", shape_text(keys.shape()), ", values ", shape_text(values.shape()));
  DELTRON_CHECK(!GraphRecorder::wanted(ctx, {q, keys, values}), name, ": attention over a cache has no gradient");
  Tensor out = Tensor::empty(ctx, {q.size(0), q.size(1) * q.size(2)}, q.dtype(), name);
  kernels::AttentionDecodeArgs args;
  args.tokens = q.size(0);
  args.context = keys.size(0);
  args.query_heads = q.size(1);
  args.kv_heads = keys.size(1);
  args.dim = q.size(2);
  args.dtype = q.dtype();
  args.scale = 1.0 / std::sqrt(static_cast<double>(q.size(2)));
  args.q = head_view(q);
  args.k = head_view(keys);
  args.v = head_view(values);
  args.o = mutable_head_view(out.split_last(args.query_heads));
  DELTRON_LAUNCH_WITH_WORKSPACE(ctx, attention_decode, args);
  return out;
}

}  // namespace deltron
