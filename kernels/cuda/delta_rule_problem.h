// The arguments of both delta rules as the one problem that the kernels know. Knows no kernel.
#pragma once

#include "kernels/cuda/delta_rule_launch.h"
#include "kernels/gated_delta_rule.h"
#include "kernels/gated_delta_rule_2.h"

namespace deltron::kernels::cuda {

template <class Args>
RuleProblem common_problem(const Args& a) {
  RuleProblem p;
  p.tokens = a.tokens, p.key_heads = static_cast<int>(a.key_heads), p.value_heads = static_cast<int>(a.value_heads);
  p.key_dim = static_cast<int>(a.key_dim), p.value_dim = static_cast<int>(a.value_dim);
  p.documents = a.documents, p.dtype = a.dtype, p.q = a.q, p.k = a.k, p.v = a.v;
  p.raw = a.gate_form == GateForm::Raw, p.allow_neg_eigval = a.allow_neg_eigval, p.use_qk_l2norm = a.use_qk_l2norm;
  p.scale = static_cast<float>(a.scale);
  p.decay = a.decay, p.decay_dtype = a.decay_dtype;
  p.A_log = static_cast<const float*>(a.A_log), p.dt_bias = static_cast<const float*>(a.dt_bias);
  p.initial_state = static_cast<const float*>(a.initial_state);
  return p;
}
template <class Args>
RuleProblem scalar_problem(const Args& a) {
  RuleProblem p = common_problem(a);
  p.scalar_gates = true, p.gate_heads = p.value_heads;
  p.erase = p.write = a.beta, p.erase_dtype = p.write_dtype = a.beta_dtype;
  return p;
}
template <class Args>
RuleProblem channel_problem(const Args& a) {
  RuleProblem p = common_problem(a);
  p.gate_heads = static_cast<int>(a.gate_heads);
  p.erase = a.erase, p.erase_dtype = a.erase_dtype, p.write = a.write, p.write_dtype = a.write_dtype;
  return p;
}
template <class Args>
RuleGradients common_gradients(const Args& a) {
  RuleGradients g;
  g.d_o = a.d_o, g.d_final_state = static_cast<const float*>(a.d_final_state);
  g.dq = a.dq, g.dk = a.dk, g.dv = a.dv, g.d_decay = a.d_decay, g.d_gate_dtype = a.d_gate_dtype;
  g.d_A_log = static_cast<float*>(a.d_A_log), g.d_dt_bias = static_cast<float*>(a.d_dt_bias);
  g.d_initial_state = static_cast<float*>(a.d_initial_state);
  return g;
}

// Forward and backward of a problem on whichever kernels serve it; only counts workspace where `memory` is null.
std::int64_t run_forward(const RuleProblem& p, const RuleOutputs& out, void* memory, cudaStream_t stream);
std::int64_t run_backward(const RuleProblem& p, const RuleGradients& out, void* memory, cudaStream_t stream);
// Whether the tensor-core kernels serve sizes, types and alignment of a problem.
bool tensor_core_forward(const RuleProblem& p, const MutableHeadView& o);
bool tensor_core_backward(const RuleProblem& p, const RuleGradients& out);
const char* kernel_name(const RuleProblem& p, bool tensor_cores);

}  // namespace deltron::kernels::cuda
