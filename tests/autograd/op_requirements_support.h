// One call of a gated delta rule with drawn inputs, for the tests of its demands: every dtype, layout and device, both rules behind the
// same calls, and the comparison with the sequential references.
#pragma once

#include "src/autograd/functions_gdn2.h"
#include "tests/autograd/test_nodes.h"
#include "tests/support/compare.h"
#include "tests/support/reference_gated_delta_rule.h"
#include "tests/support/reference_gated_delta_rule_2.h"

namespace deltron::test {

struct OpCase {
  bool second = false, raw = false, initial = false, final_state = false;
  std::int64_t Hk = 2, Hv = 4, K = 5, V = 3;
  std::vector<std::int64_t> offsets = {0, 1, 1, 66, 75};
  TensorLayout layout = TensorLayout::Thd;
  DeviceKind device = DeviceKind::Cpu;

  std::int64_t tokens() const { return offsets.back(); }
  std::int64_t documents() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
};

class Op {
 public:
  OpCase c;
  Context ctx;
  DType dtype;
  LayoutPtr layout;
  GatedDeltaRuleOptions o1;
  GatedDeltaRule2Options o2;
  GatedDeltaRuleInputs in1;
  GatedDeltaRule2Inputs in2;

  Op(const OpCase& wanted, DType type) : c(wanted), ctx(small_context(2, wanted.device)), dtype(type), layout(layout_of(ctx, wanted.offsets)) {
    each([&](auto& o) {
      o.key_heads = c.Hk, o.value_heads = c.Hv, o.key_dim = c.K, o.value_dim = c.V;
      o.gate_form = c.raw ? kernels::GateForm::Raw : kernels::GateForm::Activated;
      o.use_qk_l2norm = true;
      o.output_final_state = c.final_state;
      o.layout = c.layout;
    });
    // Activated: decays below 0, strengths between 0 and 1.
    const double decay_at = c.raw ? -1.0 : -0.4, strength_at = c.raw ? 0.0 : 0.5, spread = c.raw ? 1.0 : 0.1;
    in1.q = in2.q = leaf(placed({c.Hk, c.K}, dtype, 1, 1, 0, "q"));
    in1.k = in2.k = leaf(placed({c.Hk, c.K}, dtype, 2, 1, 0, "k"));
    in1.v = in2.v = leaf(placed({c.Hv, c.V}, dtype, 3, 1, 0, "v"));
    const DType gates = is_floating(dtype) && dtype != DType::F16 ? dtype : DType::F32;
    if (c.second) {
      in2.decay = leaf(placed({c.Hk, c.K}, gates, 4, spread, decay_at, "decay"));
      in2.b = leaf(placed({c.Hk, c.K}, gates, 5, spread, strength_at, "b"));
      in2.w = leaf(placed({c.Hv, c.V}, gates, 6, spread, strength_at, "w"));
    } else {
      in1.decay = leaf(placed({c.Hv}, gates, 4, spread, decay_at, "decay"));
      in1.beta = leaf(placed({c.Hv}, gates, 5, spread, strength_at, "beta"));
    }
    const DType compute = compute_dtype(gates);
    if (c.raw) {
      in1.A_log = in2.A_log = leaf(tensor({c.second ? c.Hk : c.Hv}, compute, 0.3, 7, "A_log"));
      in1.dt_bias = in2.dt_bias = leaf(tensor({c.second ? c.Hk * c.K : c.Hv}, compute, 0.3, 8, "dt_bias"));
    }
    if (c.initial) in1.initial_state = in2.initial_state = leaf(tensor({c.documents(), c.Hv, c.K, c.V}, compute, 1, 9, "initial_state"));
  }

  template <class F>
  void each(const F& change) {
    change(o1);
    change(o2);
  }
  Tensor tensor(const Shape& shape, DType type, double scale, std::uint64_t seed = 20, const char* name = "t") {
    if (ctx.is_meta() || !is_floating(type) || type == DType::F16) return Tensor::zeros(ctx, shape, type, name);
    return random_tensor(ctx, shape, type, seed, scale, name);
  }
  // [tokens, rest..] in the memory order of the case's layout.
  Tensor placed(const Shape& rest, DType type, std::uint64_t seed, double scale, double shift, const char* name) {
    Shape shape = c.layout == TensorLayout::Thd ? Shape{c.tokens()} : leading_shape(*layout, c.layout);
    shape.insert(shape.end(), rest.begin(), rest.end());
    if (ctx.is_meta() || !is_floating(type) || type == DType::F16) return Tensor::zeros(ctx, shape, type, name);
    std::vector<double> values = random_values(shape_count(shape), seed, scale, shift);
    return make_tensor(ctx, shape, type, reordered(values, false), name);
  }
  // Values of a tensor of tokens, as if it were thd; of anything else as they are.
  std::vector<double> in_token_order(const Tensor& t) {
    const std::vector<double> values = to_doubles(ctx, t);
    const bool of_tokens = c.layout == TensorLayout::Sbhd && t.rank() >= 3 && t.size(0) * t.size(1) == c.tokens();
    return of_tokens ? reordered(values, true) : values;
  }
  Shape gate_shape() const { return c.second ? Shape{c.tokens(), c.Hk, c.K} : Shape{c.tokens(), c.Hv}; }
  Tensor state() const { return in1.initial_state; }

  std::vector<Tensor> leaves() const {
    std::vector<Tensor> all = c.second ? std::vector<Tensor>{in2.q, in2.k, in2.v, in2.decay, in2.b, in2.w, in2.A_log, in2.dt_bias, in2.initial_state}
                                       : std::vector<Tensor>{in1.q, in1.k, in1.v, in1.decay, in1.beta, in1.A_log, in1.dt_bias, in1.initial_state};
    all.erase(std::remove_if(all.begin(), all.end(), [](const Tensor& t) { return !t.defined(); }), all.end());
    return all;
  }
  GatedDeltaRuleResult run() { return call(in1, in2, layout); }
  // The same call with other tensors in the place of leaves().
  GatedDeltaRuleResult run_with(const std::vector<Tensor>& given) {
    GatedDeltaRuleInputs a = in1;
    GatedDeltaRule2Inputs b = in2;
    std::size_t next = 0;
    const auto put = [&](std::initializer_list<Tensor*> slots) {
      for (Tensor* slot : slots) {
        if (slot->defined()) *slot = given[next++];
      }
    };
    if (c.second) {
      put({&b.q, &b.k, &b.v, &b.decay, &b.b, &b.w, &b.A_log, &b.dt_bias, &b.initial_state});
    } else {
      put({&a.q, &a.k, &a.v, &a.decay, &a.beta, &a.A_log, &a.dt_bias, &a.initial_state});
    }
    return call(a, b, layout);
  }
  // Tokens [begin, begin + length) as one document from `start`.
  GatedDeltaRuleResult run_piece(std::int64_t begin, std::int64_t length, const Tensor& start) {
    GatedDeltaRuleInputs a = in1;
    GatedDeltaRule2Inputs b = in2;
    for (Tensor* t : {&a.q, &a.k, &a.v, &a.decay, &a.beta, &b.q, &b.k, &b.v, &b.decay, &b.b, &b.w}) {
      if (t->defined()) *t = t->slice(0, begin, length);
    }
    a.initial_state = b.initial_state = start;
    return call(a, b, layout_of(ctx, {0, length}));
  }

  void compare_with_reference(double limit) {
    const Tensor d_out = random_tensor(ctx, {c.tokens(), c.Hv * c.V}, dtype, 60);
    const Tensor d_state = random_tensor(ctx, {c.documents(), c.Hv, c.K, c.V}, compute_dtype(dtype), 61);
    const GatedDeltaRuleResult result = run();
    backward(ctx, {result.out, *result.final_state}, {d_out, d_state});
    const auto values = [&](const Tensor& t) { return t.defined() ? to_doubles(ctx, t) : std::vector<double>{}; };
    const auto fill = [&](auto& p, const auto& in) {
      p.key_heads = c.Hk, p.value_heads = c.Hv, p.key_dim = c.K, p.value_dim = c.V, p.offsets = c.offsets;
      p.raw = c.raw, p.l2norm = true, p.scale = 1 / std::sqrt(static_cast<double>(c.K));
      p.q = values(in.q), p.k = values(in.k), p.v = values(in.v), p.decay = values(in.decay);
      p.A_log = values(in.A_log), p.dt_bias = values(in.dt_bias), p.initial_state = values(in.initial_state);
      p.d_o = values(d_out), p.d_final_state = values(d_state);
    };
    const auto judge = [&](const auto& expected, const auto& in, const std::vector<std::pair<Tensor, std::vector<double>>>& gates) {
      EXPECT_LE(error_ratio(values(result.out), expected.o), limit);
      EXPECT_LE(error_ratio(values(*result.final_state), expected.final_state), limit);
      std::vector<std::pair<Tensor, std::vector<double>>> all = {{in.q, expected.d_q}, {in.k, expected.d_k}, {in.v, expected.d_v},
                                                                 {in.decay, expected.d_decay}, {in.initial_state, expected.d_initial_state}};
      if (c.raw) all.insert(all.end(), {{in.A_log, expected.d_A_log}, {in.dt_bias, expected.d_dt_bias}});
      all.insert(all.end(), gates.begin(), gates.end());
      for (const auto& [input, gradient] : all) {
        if (!input.defined()) continue;
        EXPECT_LE(error_ratio(values(gradient_of(input)), gradient), 4 * limit) << input.name();
      }
    };
    if (c.second) {
      DeltaRule2Problem p;
      fill(p, in2);
      p.gate_heads = c.Hk, p.erase = values(in2.b), p.write = values(in2.w);
      const DeltaRule2Result expected = reference_gated_delta_rule_2(p);
      judge(expected, in2, {{in2.b, expected.d_erase}, {in2.w, expected.d_write}});
    } else {
      DeltaRuleProblem p;
      fill(p, in1);
      p.beta = values(in1.beta);
      const DeltaRuleResult expected = reference_gated_delta_rule(p);
      judge(expected, in1, {{in1.beta, expected.d_beta}});
    }
  }

 private:
  Tensor leaf(const Tensor& t) { return make_leaf(t, t.name()); }
  GatedDeltaRuleResult call(const GatedDeltaRuleInputs& a, const GatedDeltaRule2Inputs& b, const LayoutPtr& documents) {
    return c.second ? gated_delta_rule_2(ctx, b, documents, o2, "rule") : gated_delta_rule(ctx, a, documents, o1, "rule");
  }
  // Rows from token order into the memory order of the layout, or back.
  std::vector<double> reordered(const std::vector<double>& values, bool back) const {
    if (c.layout != TensorLayout::Sbhd) return values;
    const std::int64_t batch = c.documents(), length = layout->longest();
    const auto width = static_cast<std::int64_t>(values.size()) / (batch * length);
    std::vector<double> to(values.size());
    for (std::int64_t n = 0; n < batch; ++n) {
      for (std::int64_t s = 0; s < length; ++s) {
        const std::int64_t token = (n * length + s) * width, memory = (s * batch + n) * width;
        for (std::int64_t i = 0; i < width; ++i) to[(back ? token : memory) + i] = values[(back ? memory : token) + i];
      }
    }
    return to;
  }
};

}  // namespace deltron::test
