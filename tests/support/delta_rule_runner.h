// Runs the CPU kernels of the gated delta rule on a DeltaRuleProblem: storage of any dtype, views of any layout inside buffers
// whose unused elements are NaN (inputs) or must stay untouched (outputs), any number of threads.
#pragma once

#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "kernels/gated_delta_rule.h"
#include "src/base/thread_pool.h"
#include "tests/support/reference_gated_delta_rule.h"
#include "tests/support/rule_backend.h"
#include "tests/support/typed_buffer.h"

namespace deltron::test {

using DeltaRuleBackend = RuleBackend<kernels::GatedDeltaRuleForwardArgs, kernels::GatedDeltaRuleBackwardArgs>;
inline const DeltaRuleBackend& gated_delta_rule_on_cpu() {
  using namespace deltron::kernels;
  static const DeltaRuleBackend backend{&cpu::gated_delta_rule_forward_workspace_bytes,
                                        &cpu::gated_delta_rule_backward_workspace_bytes,
                                        [](const GatedDeltaRuleForwardArgs& args, const StreamHandle& stream, const HostRanges&) {
                                          cpu::gated_delta_rule_forward(args, stream);
                                        },
                                        [](const GatedDeltaRuleBackwardArgs& args, const StreamHandle& stream, const HostRanges&) {
                                          cpu::gated_delta_rule_backward(args, stream);
                                        },
                                        [](const GatedDeltaRuleForwardArgs&) { return cpu::gated_delta_rule_kernel_name(); },
                                        [](const GatedDeltaRuleBackwardArgs&) { return cpu::gated_delta_rule_kernel_name(); }};
  return backend;
}

struct DeltaRuleRun {
  DType dtype = DType::F32;
  DType decay_dtype = DType::F32;  // activated decay, or alpha
  DType beta_dtype = DType::F32;
  DType d_gate_dtype = DType::F32;
  int threads = 2;
  bool backward = true;
  bool keep_inverse = true;  // false: t_inverse null, no backward
  bool fused_views = false;  // q, k, v inside one [T, 2Dq+Dv]; gates inside [T, Dv+2Hv]; gradients likewise
  enum Layout { Packed, BatchFirst, SequenceFirst } layout = Packed;  // the last two need equal lengths
};

// Everything as doubles, plus the raw bytes of all outputs for bitwise comparison.
struct DeltaRuleOutcome {
  DeltaRuleResult result;
  std::vector<char> bits;
  std::string forward_kernel, backward_kernel;
  std::int64_t touched_outside = 0;  // elements outside the slots that were written
};

inline DeltaRuleOutcome run_gated_delta_rule(const DeltaRuleProblem& p, const DeltaRuleRun& run,
                                             const DeltaRuleBackend& backend = gated_delta_rule_on_cpu()) {
  using namespace deltron::kernels;
  const std::int64_t T = p.tokens(), N = p.documents(), Hk = p.key_heads, Hv = p.value_heads, K = p.key_dim, V = p.value_dim;
  const DType compute = compute_dtype(run.dtype);
  const double guard = std::numeric_limits<double>::quiet_NaN();
  ThreadPool pool(run.threads, false);
  StreamHandle stream;
  stream.pool = &pool;
  const auto ranges = [](std::initializer_list<TypedBuffer*> buffers, std::vector<char>& memory_of_call) {
    HostRanges result{{memory_of_call.data(), memory_of_call.size()}};
    for (TypedBuffer* buffer : buffers) result.emplace_back(buffer->data(), buffer->bytes().size());
    return result;
  };

  // One buffer a group of tensors; a section is [T, heads, dim] at a column offset of its rows.
  const std::int64_t length = N > 0 ? p.offsets[1] - p.offsets[0] : 0;
  struct Section {
    TypedBuffer* buffer;
    std::int64_t column, row, heads, dim;
  };
  const auto row_of = [&](std::int64_t t) { return run.layout == DeltaRuleRun::SequenceFirst ? t % length * N + t / length : t; };
  const auto view_of = [&](const Section& s, auto view) {
    view.data = s.buffer->at(s.column);
    view.head_stride = s.dim;
    view.token_stride = run.layout == DeltaRuleRun::SequenceFirst ? s.row * N : s.row;
    view.sequence_stride = run.layout == DeltaRuleRun::SequenceFirst ? s.row
                           : run.layout == DeltaRuleRun::BatchFirst  ? s.row * length
                                                                     : 0;
    return view;
  };
  const auto write = [&](const Section& s, const std::vector<double>& values) {
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t i = 0; i < s.heads * s.dim; ++i) {
        s.buffer->set(row_of(t) * s.row + s.column + i, values[static_cast<std::size_t>(t * s.heads * s.dim + i)]);
      }
    }
  };
  const auto read = [&](const Section& s) {
    std::vector<double> values(static_cast<std::size_t>(T * s.heads * s.dim));
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t i = 0; i < s.heads * s.dim; ++i) {
        values[static_cast<std::size_t>(t * s.heads * s.dim + i)] = s.buffer->get(row_of(t) * s.row + s.column + i);
      }
    }
    return values;
  };
  // qkv rows: q | k | v | 3 guard columns; gates rows: Dv of z (guard) | beta | alpha.
  const std::int64_t qkv_row = 2 * Hk * K + Hv * V + 3, gates_row = Hv * V + 2 * Hv;
  const auto qkv_sections = [&](TypedBuffer& a, TypedBuffer& b, TypedBuffer& c) {
    if (run.fused_views) {
      return std::vector<Section>{{&a, 0, qkv_row, Hk, K}, {&a, Hk * K, qkv_row, Hk, K}, {&a, 2 * Hk * K, qkv_row, Hv, V}};
    }
    return std::vector<Section>{{&a, 0, Hk * K, Hk, K}, {&b, 0, Hk * K, Hk, K}, {&c, 0, Hv * V, Hv, V}};
  };
  const auto gate_sections = [&](TypedBuffer& a, TypedBuffer& b) {
    if (run.fused_views) return std::vector<Section>{{&a, Hv * V + Hv, gates_row, Hv, 1}, {&a, Hv * V, gates_row, Hv, 1}};
    return std::vector<Section>{{&a, 0, Hv, Hv, 1}, {&b, 0, Hv, Hv, 1}};
  };
  const std::int64_t pad = 32;  // guard elements past every buffer
  TypedBuffer qb(run.dtype, (run.fused_views ? T * qkv_row : T * Hk * K) + pad, guard), kb(run.dtype, T * Hk * K + pad, guard),
      vb(run.dtype, T * Hv * V + pad, guard);
  TypedBuffer gb(run.decay_dtype, (run.fused_views ? T * gates_row : T * Hv) + pad, guard), bb(run.beta_dtype, T * Hv + pad, guard);
  const auto qkv = qkv_sections(qb, kb, vb);
  const auto gates = gate_sections(gb, bb);
  write(qkv[0], p.q);
  write(qkv[1], p.k);
  write(qkv[2], p.v);
  write(gates[0], p.decay);
  write(gates[1], p.beta);
  const auto plain = [&](const std::vector<double>& values) {
    TypedBuffer buffer(compute, static_cast<std::int64_t>(values.size()), 0);
    for (std::size_t i = 0; i < values.size(); ++i) buffer.set(static_cast<std::int64_t>(i), values[i]);
    return buffer;
  };
  TypedBuffer A_log = plain(p.A_log), dt_bias = plain(p.dt_bias), initial = plain(p.initial_state),
              d_final = plain(p.d_final_state);
  const double untouched = -77;
  TypedBuffer ob(run.dtype, T * Hv * V + pad, untouched), final_state(compute, N * Hv * K * V + pad, untouched),
      inverse(run.dtype, T * Hv * 64 + pad, untouched);
  const Section o_section{&ob, 0, Hv * V, Hv, V};

  GatedDeltaRuleForwardArgs f;
  f.tokens = T, f.key_heads = Hk, f.value_heads = Hv, f.key_dim = K, f.value_dim = V;
  f.documents = Documents{N, p.offsets.data()};
  f.dtype = run.dtype;
  f.q = view_of(qkv[0], HeadView{}), f.k = view_of(qkv[1], HeadView{}), f.v = view_of(qkv[2], HeadView{});
  f.gate_form = p.raw ? GateForm::Raw : GateForm::Activated;
  f.decay = view_of(gates[0], HeadView{}), f.beta = view_of(gates[1], HeadView{});
  f.decay_dtype = run.decay_dtype, f.beta_dtype = run.fused_views ? run.decay_dtype : run.beta_dtype;
  f.A_log = p.raw ? A_log.data() : nullptr, f.dt_bias = p.raw ? dt_bias.data() : nullptr;
  f.allow_neg_eigval = p.allow_neg_eigval, f.use_qk_l2norm = p.l2norm, f.scale = p.scale;
  f.initial_state = p.initial_state.empty() ? nullptr : initial.data();
  f.final_state = final_state.data();
  f.o = view_of(o_section, MutableHeadView{});
  f.t_inverse = run.keep_inverse ? inverse.data() : nullptr;
  const std::int64_t bytes = backend.forward_bytes(f, stream);
  std::vector<char> workspace(static_cast<std::size_t>(bytes) + 64, '\xff');  // every byte of it is NaN
  f.workspace = Workspace{workspace.data() + 3, bytes};
  DeltaRuleOutcome outcome;
  outcome.forward_kernel = backend.forward_kernel(f);
  backend.forward(f, stream, ranges({&qb, &kb, &vb, &gb, &bb, &A_log, &dt_bias, &initial, &ob, &final_state, &inverse}, workspace));

  const auto guards = [&](const TypedBuffer& buffer, std::int64_t from, double value) {
    for (std::int64_t i = from; i < buffer.size(); ++i) outcome.touched_outside += buffer.get(i) != value;
  };
  for (std::size_t i = static_cast<std::size_t>(bytes) + 3; i < workspace.size(); ++i)
    outcome.touched_outside += workspace[i] != '\xff';
  guards(ob, T * Hv * V, untouched);
  guards(final_state, N * Hv * K * V, untouched);
  guards(inverse, run.keep_inverse ? T * Hv * 64 : 0, untouched);
  const auto keep = [&](const TypedBuffer& buffer) {
    outcome.bits.insert(outcome.bits.end(), buffer.bytes().begin(), buffer.bytes().end());
  };
  const auto flat = [](const TypedBuffer& buffer, std::int64_t count) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = buffer.get(i);
    return values;
  };
  outcome.result.o = read(o_section);
  outcome.result.final_state = flat(final_state, N * Hv * K * V);
  keep(ob), keep(final_state), keep(inverse);
  if (!run.backward || !run.keep_inverse) return outcome;

  TypedBuffer d_ob(run.dtype, T * Hv * V + pad, guard);
  const Section d_o_section{&d_ob, 0, Hv * V, Hv, V};
  write(d_o_section, p.d_o);
  TypedBuffer dqb(run.dtype, qb.size(), untouched), dkb(run.dtype, kb.size(), untouched), dvb(run.dtype, vb.size(), untouched);
  TypedBuffer dgb(run.d_gate_dtype, gb.size(), untouched), dbb(run.d_gate_dtype, bb.size(), untouched);
  TypedBuffer d_A_log(compute, Hv, 0), d_dt_bias(compute, Hv, 0), d_initial(compute, N * Hv * K * V + pad, untouched);
  const auto d_qkv = qkv_sections(dqb, dkb, dvb);
  const auto d_gates = gate_sections(dgb, dbb);
  GatedDeltaRuleBackwardArgs b;
  b.tokens = T, b.key_heads = Hk, b.value_heads = Hv, b.key_dim = K, b.value_dim = V;
  b.documents = f.documents, b.dtype = f.dtype, b.q = f.q, b.k = f.k, b.v = f.v;
  b.gate_form = f.gate_form, b.decay = f.decay, b.decay_dtype = f.decay_dtype, b.beta = f.beta, b.beta_dtype = f.beta_dtype;
  b.A_log = f.A_log, b.dt_bias = f.dt_bias, b.allow_neg_eigval = f.allow_neg_eigval, b.use_qk_l2norm = f.use_qk_l2norm;
  b.scale = f.scale, b.initial_state = f.initial_state, b.t_inverse = f.t_inverse;
  b.d_o = view_of(d_o_section, HeadView{});
  b.d_final_state = p.d_final_state.empty() ? nullptr : d_final.data();
  b.dq = view_of(d_qkv[0], MutableHeadView{}), b.dk = view_of(d_qkv[1], MutableHeadView{}),
  b.dv = view_of(d_qkv[2], MutableHeadView{});
  b.d_decay = view_of(d_gates[0], MutableHeadView{}), b.d_beta = view_of(d_gates[1], MutableHeadView{});
  b.d_gate_dtype = run.d_gate_dtype;
  b.d_A_log = p.raw ? d_A_log.data() : nullptr, b.d_dt_bias = p.raw ? d_dt_bias.data() : nullptr;
  b.d_initial_state = d_initial.data();
  const std::int64_t back_bytes = backend.backward_bytes(b, stream);
  std::vector<char> back_workspace(static_cast<std::size_t>(back_bytes) + 64, '\xff');
  b.workspace = Workspace{back_workspace.data() + 5, back_bytes};
  outcome.backward_kernel = backend.backward_kernel(b);
  backend.backward(b, stream,
                   ranges({&qb, &kb, &vb, &gb, &bb, &A_log, &dt_bias, &initial, &inverse, &d_final, &d_ob, &dqb, &dkb, &dvb, &dgb,
                           &dbb, &d_A_log, &d_dt_bias, &d_initial},
                          back_workspace));

  for (std::size_t i = static_cast<std::size_t>(back_bytes) + 5; i < back_workspace.size(); ++i) {
    outcome.touched_outside += back_workspace[i] != '\xff';
  }
  DeltaRuleResult& r = outcome.result;
  r.d_q = read(d_qkv[0]), r.d_k = read(d_qkv[1]), r.d_v = read(d_qkv[2]);
  r.d_decay = read(d_gates[0]), r.d_beta = read(d_gates[1]);
  r.d_A_log = flat(d_A_log, Hv), r.d_dt_bias = flat(d_dt_bias, Hv);
  r.d_initial_state = flat(d_initial, N * Hv * K * V);
  for (const TypedBuffer* buffer : {&dqb, &dkb, &dvb, &dgb, &dbb, &d_A_log, &d_dt_bias, &d_initial}) keep(*buffer);
  guards(d_initial, N * Hv * K * V, untouched);
  if (run.fused_views) {
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t i = qkv_row - 3; i < qkv_row; ++i) outcome.touched_outside += dqb.get(t * qkv_row + i) != untouched;
      for (std::int64_t i = 0; i < Hv * V; ++i) outcome.touched_outside += dgb.get(t * gates_row + i) != untouched;
    }
    guards(dqb, T * qkv_row, untouched), guards(dgb, T * gates_row, untouched);
  } else {
    guards(dqb, T * Hk * K, untouched), guards(dkb, T * Hk * K, untouched), guards(dvb, T * Hv * V, untouched);
    guards(dgb, T * Hv, untouched), guards(dbb, T * Hv, untouched);
  }
  return outcome;
}

}  // namespace deltron::test
