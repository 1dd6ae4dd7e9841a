// Both gated delta rules, forward and backward, over documents of equal length and packed ones: raw gates, L2 norm of q and k inside.
#include "kernels/gated_delta_rule.h"
#include "kernels/gated_delta_rule_2.h"

#include "src/tensor/launch.h"
#include "tools/bench/kernel_case.h"
#include "tools/verify/rule_kernel.h"

namespace deltron::tools {
namespace {

// What both rules read and write; `gate` channels a token for decay and erase, `write` for the write gate (beta of the first rule).
struct RuleTensors {
  Tensor q, k, v, decay, erase, write, A_log, dt_bias, o, t_inverse;
  Tensor d_o, dq, dk, dv, d_decay, d_erase, d_write, d_A_log, d_dt_bias;
};

RuleTensors make_tensors(CaseMemory& memory, const KernelSizes& s, DType dtype, bool second, bool backward) {
  const std::int64_t T = s.tokens, gate_heads = second ? s.key_heads : s.value_heads, width = second ? s.key_dim : 1;
  const DType compute = compute_dtype(dtype);
  RuleTensors t;
  t.q = memory.random({T, s.key_heads, s.key_dim}, dtype);
  t.k = memory.random({T, s.key_heads, s.key_dim}, dtype);
  t.v = memory.random({T, s.value_heads, s.value_dim}, dtype);
  t.decay = memory.random({T, gate_heads, width}, dtype, 1, -2);
  t.erase = memory.random({T, gate_heads, width}, dtype);
  if (second) t.write = memory.random({T, s.value_heads, s.value_dim}, dtype);
  t.A_log = memory.random({gate_heads}, compute, 0.5);
  t.dt_bias = memory.random({gate_heads * width}, compute, 0.5);
  if (!second) t.t_inverse = memory.empty({T, s.value_heads, kernels::kDeltaRuleChunk}, dtype);
  if (!backward) {
    t.o = memory.empty({T, s.value_heads, s.value_dim}, dtype);
    return t;
  }
  t.d_o = memory.random({T, s.value_heads, s.value_dim}, dtype);
  t.dq = memory.empty(t.q.shape(), dtype);
  t.dk = memory.empty(t.k.shape(), dtype);
  t.dv = memory.empty(t.v.shape(), dtype);
  t.d_decay = memory.empty(t.decay.shape(), dtype);
  t.d_erase = memory.empty(t.erase.shape(), dtype);
  if (second) t.d_write = memory.empty(t.write.shape(), dtype);
  t.d_A_log = memory.random(t.A_log.shape(), compute);
  t.d_dt_bias = memory.random(t.dt_bias.shape(), compute);
  return t;
}

template <class Args>
void common(Args& a, const RuleTensors& t, const KernelSizes& s, DType dtype, const LayoutPtr& layout) {
  a.tokens = s.tokens;
  a.key_heads = s.key_heads;
  a.value_heads = s.value_heads;
  a.key_dim = s.key_dim;
  a.value_dim = s.value_dim;
  a.documents = layout->device_documents();
  a.dtype = a.decay_dtype = dtype;
  a.q = head_view(t.q);
  a.k = head_view(t.k);
  a.v = head_view(t.v);
  a.gate_form = kernels::GateForm::Raw;
  a.decay = head_view(t.decay);
  a.A_log = t.A_log.data();
  a.dt_bias = t.dt_bias.data();
  a.use_qk_l2norm = true;
  a.scale = 0.1;
}
template <class Args>
void first_gates(Args& a, const RuleTensors& t, DType dtype) {
  a.beta = head_view(t.erase);
  a.beta_dtype = dtype;
  a.t_inverse = t.t_inverse.data();
}
template <class Args>
void second_gates(Args& a, const RuleTensors& t, const KernelSizes& s, DType dtype) {
  a.gate_heads = s.key_heads;
  a.erase = head_view(t.erase);
  a.write = head_view(t.write);
  a.erase_dtype = a.write_dtype = dtype;
}
template <class Args>
void gradients(Args& b, const RuleTensors& t, DType dtype) {
  b.d_o = head_view(t.d_o);
  b.dq = mutable_head_view(t.dq);
  b.dk = mutable_head_view(t.dk);
  b.dv = mutable_head_view(t.dv);
  b.d_decay = mutable_head_view(t.d_decay);
  b.d_gate_dtype = dtype;
  b.d_A_log = t.d_A_log.data();
  b.d_dt_bias = t.d_dt_bias.data();
}

using Launch = std::function<void()>;

// `forward` has run once on these inputs where `backward` reads what it kept.
Launch first_rule(CaseMemory& memory, const KernelSizes& s, DType dtype, const LayoutPtr& layout, bool backward) {
  Context& ctx = memory.ctx();
  RuleTensors t = make_tensors(memory, s, dtype, false, backward);
  kernels::GatedDeltaRuleForwardArgs f;
  const Tensor output = backward ? t.dv : t.o;  // a first run before the timed backward may write anywhere
  common(f, t, s, dtype, layout);
  first_gates(f, t, dtype);
  f.o = mutable_head_view(output);
  if (!backward) {
    f.workspace = memory.workspace(DELTRON_WORKSPACE_BYTES(ctx, gated_delta_rule_forward, f));
    return [=, &ctx] { DELTRON_LAUNCH(ctx, gated_delta_rule_forward, f); static_cast<void>(t), static_cast<void>(layout); };
  }
  DELTRON_LAUNCH_WITH_WORKSPACE(ctx, gated_delta_rule_forward, f);
  kernels::GatedDeltaRuleBackwardArgs b;
  common(b, t, s, dtype, layout);
  first_gates(b, t, dtype);
  gradients(b, t, dtype);
  b.d_beta = mutable_head_view(t.d_erase);
  b.workspace = memory.workspace(DELTRON_WORKSPACE_BYTES(ctx, gated_delta_rule_backward, b));
  return [=, &ctx] { DELTRON_LAUNCH(ctx, gated_delta_rule_backward, b); static_cast<void>(t), static_cast<void>(layout); };
}

Launch second_rule(CaseMemory& memory, const KernelSizes& s, DType dtype, const LayoutPtr& layout, bool backward) {
  Context& ctx = memory.ctx();
  RuleTensors t = make_tensors(memory, s, dtype, true, backward);
  if (!backward) {
    kernels::GatedDeltaRule2ForwardArgs f;
    common(f, t, s, dtype, layout);
    second_gates(f, t, s, dtype);
    f.o = mutable_head_view(t.o);
    f.workspace = memory.workspace(DELTRON_WORKSPACE_BYTES(ctx, gated_delta_rule_2_forward, f));
    return [=, &ctx] { DELTRON_LAUNCH(ctx, gated_delta_rule_2_forward, f); static_cast<void>(t), static_cast<void>(layout); };
  }
  kernels::GatedDeltaRule2BackwardArgs b;
  common(b, t, s, dtype, layout);
  second_gates(b, t, s, dtype);
  gradients(b, t, dtype);
  b.d_erase = mutable_head_view(t.d_erase);
  b.d_write = mutable_head_view(t.d_write);
  b.workspace = memory.workspace(DELTRON_WORKSPACE_BYTES(ctx, gated_delta_rule_2_backward, b));
  return [=, &ctx] { DELTRON_LAUNCH(ctx, gated_delta_rule_2_backward, b); static_cast<void>(t), static_cast<void>(layout); };
}

}  // namespace

void add_delta_rule_cases(const CaseSetting& setting, CaseTable& table) {
  const KernelSizes s = setting.sizes;
  const DType dtype = setting.dtype;
  const std::string heads = ", heads " + std::to_string(s.key_heads) + "/" + std::to_string(s.value_heads) + " of " + std::to_string(s.key_dim) +
                            "/" + std::to_string(s.value_dim);
  for (const bool second : {false, true}) {
    const std::string family = second ? "gated_delta_rule_2" : "gated_delta_rule";
    const std::string kernel = rule_kernel_name(*setting.ctx, second, {s.key_heads, s.value_heads, s.key_dim, s.value_dim}, dtype);
    for (const bool packed : {false, true}) {
      const LayoutPtr layout = packed ? setting.packed : setting.layout;
      for (const bool backward : {false, true}) {
        const Work work = backward ? rule_backward_work(s, second, setting.item()) : rule_forward_work(s, second, setting.item());
        table.push_back({family, family + (backward ? "_backward" : "_forward") + (packed ? " packed" : ""),
                         std::to_string(s.tokens) + " in " + std::to_string(layout->documents()) + heads, work,
                         [=](CaseMemory& memory) {
                           return second ? second_rule(memory, s, dtype, layout, backward) : first_rule(memory, s, dtype, layout, backward);
                         },
                         kernel});
      }
    }
  }
}

}  // namespace deltron::tools
