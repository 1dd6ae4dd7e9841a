// Runs the CPU kernels of gated delta rule 2 on a DeltaRule2Problem: storage of any dtype, rows with gaps as views of a projection
// have them (NaN in inputs, a mark in outputs that must stay), token orders of packed, batch-first and sequence-first tensors, any
// number of threads.
#pragma once

#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "kernels/gated_delta_rule_2.h"
#include "src/base/thread_pool.h"
#include "tests/support/reference_gated_delta_rule_2.h"
#include "tests/support/rule_backend.h"
#include "tests/support/typed_buffer.h"

namespace deltron::test {

using DeltaRule2Backend = RuleBackend<kernels::GatedDeltaRule2ForwardArgs, kernels::GatedDeltaRule2BackwardArgs>;
inline const DeltaRule2Backend& gated_delta_rule_2_on_cpu() {
  using namespace deltron::kernels;
  static const DeltaRule2Backend backend{&cpu::gated_delta_rule_2_forward_workspace_bytes,
                                         &cpu::gated_delta_rule_2_backward_workspace_bytes,
                                         [](const GatedDeltaRule2ForwardArgs& args, const StreamHandle& stream, const HostRanges&) {
                                           cpu::gated_delta_rule_2_forward(args, stream);
                                         },
                                         [](const GatedDeltaRule2BackwardArgs& args, const StreamHandle& stream,
                                            const HostRanges&) { cpu::gated_delta_rule_2_backward(args, stream); },
                                         [](const GatedDeltaRule2ForwardArgs&) { return cpu::gated_delta_rule_2_kernel_name(); },
                                         [](const GatedDeltaRule2BackwardArgs&) { return cpu::gated_delta_rule_2_kernel_name(); }};
  return backend;
}

struct DeltaRule2Run {
  DType dtype = DType::F32;
  DType decay_dtype = DType::F32, gate_dtype = DType::F32;  // of g or f; of b and w
  DType d_gate_dtype = DType::F32;
  int threads = 2;
  bool backward = true;
  std::int64_t gap = 0;                                               // elements between the rows of every tensor
  enum Layout { Packed, BatchFirst, SequenceFirst } layout = Packed;  // the last two need equal lengths
};

// Everything as doubles, plus the raw bytes of all outputs for bitwise comparison.
struct DeltaRule2Outcome {
  DeltaRule2Result result;
  std::vector<char> bits;
  std::string forward_kernel, backward_kernel;
  std::int64_t touched_outside = 0;  // elements outside the tensors that were written
};

inline DeltaRule2Outcome run_gated_delta_rule_2(const DeltaRule2Problem& p, const DeltaRule2Run& run,
                                                const DeltaRule2Backend& backend = gated_delta_rule_2_on_cpu()) {
  using namespace deltron::kernels;
  const std::int64_t T = p.tokens(), N = p.documents(), Hk = p.key_heads, Hv = p.value_heads, Hg = p.gate_heads, K = p.key_dim,
                     V = p.value_dim;
  const std::int64_t length = N > 0 ? p.offsets[1] - p.offsets[0] : 0;
  const DType compute = compute_dtype(run.dtype);
  const double untouched = -77;
  ThreadPool pool(run.threads, false);
  StreamHandle stream;
  stream.pool = &pool;
  const auto ranges = [](std::initializer_list<TypedBuffer*> buffers, std::vector<char>& memory_of_call) {
    HostRanges result{{memory_of_call.data(), memory_of_call.size()}};
    for (TypedBuffer* buffer : buffers) result.emplace_back(buffer->data(), buffer->bytes().size());
    return result;
  };

  // A [T, heads, dim] tensor in rows of heads * dim + gap elements, with 32 more behind it.
  struct Tensor {
    TypedBuffer buffer;
    std::int64_t heads, dim, row;
  };
  const auto row_of = [&](std::int64_t t) { return run.layout == DeltaRule2Run::SequenceFirst ? t % length * N + t / length : t; };
  const auto make = [&](DType dtype, std::int64_t heads, std::int64_t dim, double fill) {
    const std::int64_t row = heads * dim + run.gap;
    return Tensor{TypedBuffer(dtype, T * row + 32, fill), heads, dim, row};
  };
  const auto given = [&](DType dtype, std::int64_t heads, std::int64_t dim, const std::vector<double>& values) {
    Tensor tensor = make(dtype, heads, dim, std::numeric_limits<double>::quiet_NaN());
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t i = 0; i < heads * dim; ++i)
        tensor.buffer.set(row_of(t) * tensor.row + i, values[static_cast<std::size_t>(t * heads * dim + i)]);
    }
    return tensor;
  };
  const auto view = [&](Tensor& tensor, auto as) {
    as.data = tensor.buffer.data();
    as.head_stride = tensor.dim;
    as.token_stride = run.layout == DeltaRule2Run::SequenceFirst ? tensor.row * N : tensor.row;
    as.sequence_stride = run.layout == DeltaRule2Run::SequenceFirst ? tensor.row
                         : run.layout == DeltaRule2Run::BatchFirst  ? tensor.row * length
                                                                    : 0;
    return as;
  };
  DeltaRule2Outcome outcome;
  const auto taken = [&](const Tensor& tensor) {
    const std::int64_t width = tensor.heads * tensor.dim;
    std::vector<double> values(static_cast<std::size_t>(T * width));
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t i = 0; i < tensor.row; ++i) {
        const double value = tensor.buffer.get(row_of(t) * tensor.row + i);
        if (i < width) values[static_cast<std::size_t>(t * width + i)] = value;
        if (i >= width) outcome.touched_outside += value != untouched;
      }
    }
    for (std::int64_t i = T * tensor.row; i < tensor.buffer.size(); ++i)
      outcome.touched_outside += tensor.buffer.get(i) != untouched;
    outcome.bits.insert(outcome.bits.end(), tensor.buffer.bytes().begin(), tensor.buffer.bytes().end());
    return values;
  };
  const auto plain = [&](const std::vector<double>& values) {
    TypedBuffer buffer(compute, static_cast<std::int64_t>(values.size()), 0);
    for (std::size_t i = 0; i < values.size(); ++i) buffer.set(static_cast<std::int64_t>(i), values[i]);
    return buffer;
  };
  const auto flat = [&](const TypedBuffer& buffer, std::int64_t count) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = buffer.get(i);
    for (std::int64_t i = count; i < buffer.size(); ++i) outcome.touched_outside += buffer.get(i) != untouched;
    outcome.bits.insert(outcome.bits.end(), buffer.bytes().begin(), buffer.bytes().end());
    return values;
  };
  // Every byte of workspace is NaN before the call; bytes behind it must stay.
  std::vector<char> memory;
  const auto workspace = [&](std::int64_t bytes) {
    memory.assign(static_cast<std::size_t>(bytes) + 64, '\xff');
    return Workspace{memory.data() + 3, bytes};
  };
  const auto check_workspace = [&](std::int64_t bytes) {
    for (std::size_t i = static_cast<std::size_t>(bytes) + 3; i < memory.size(); ++i)
      outcome.touched_outside += memory[i] != '\xff';
  };

  Tensor q = given(run.dtype, Hk, K, p.q), k = given(run.dtype, Hk, K, p.k), v = given(run.dtype, Hv, V, p.v);
  Tensor decay = given(run.decay_dtype, Hg, K, p.decay), erase = given(run.gate_dtype, Hg, K, p.erase),
         write = given(run.gate_dtype, Hv, V, p.write);
  TypedBuffer A_log = plain(p.A_log), dt_bias = plain(p.dt_bias), initial = plain(p.initial_state),
              d_final = plain(p.d_final_state);
  Tensor o = make(run.dtype, Hv, V, untouched);
  TypedBuffer final_state(compute, N * Hv * K * V + 32, untouched);
  GatedDeltaRule2ForwardArgs f;
  f.tokens = T, f.key_heads = Hk, f.value_heads = Hv, f.gate_heads = Hg, f.key_dim = K, f.value_dim = V;
  f.documents = Documents{N, p.offsets.data()};
  f.dtype = run.dtype;
  f.q = view(q, HeadView{}), f.k = view(k, HeadView{}), f.v = view(v, HeadView{});
  f.gate_form = p.raw ? GateForm::Raw : GateForm::Activated;
  f.decay = view(decay, HeadView{}), f.decay_dtype = run.decay_dtype;
  f.erase = view(erase, HeadView{}), f.write = view(write, HeadView{}), f.erase_dtype = f.write_dtype = run.gate_dtype;
  f.A_log = p.raw ? A_log.data() : nullptr, f.dt_bias = p.raw ? dt_bias.data() : nullptr;
  f.allow_neg_eigval = p.allow_neg_eigval, f.use_qk_l2norm = p.l2norm, f.scale = p.scale;
  f.initial_state = p.initial_state.empty() ? nullptr : initial.data();
  f.final_state = final_state.data();
  f.o = view(o, MutableHeadView{});
  const std::int64_t bytes = backend.forward_bytes(f, stream);
  f.workspace = workspace(bytes);
  outcome.forward_kernel = backend.forward_kernel(f);
  backend.forward(f, stream,
                  ranges({&q.buffer, &k.buffer, &v.buffer, &decay.buffer, &erase.buffer, &write.buffer, &A_log, &dt_bias, &initial,
                          &o.buffer, &final_state},
                         memory));
  check_workspace(bytes);
  DeltaRule2Result& r = outcome.result;
  r.o = taken(o);
  r.final_state = flat(final_state, N * Hv * K * V);
  if (!run.backward) return outcome;

  Tensor d_o = given(run.dtype, Hv, V, p.d_o);
  Tensor dq = make(run.dtype, Hk, K, untouched), dk = make(run.dtype, Hk, K, untouched), dv = make(run.dtype, Hv, V, untouched);
  Tensor d_decay = make(run.d_gate_dtype, Hg, K, untouched), d_erase = make(run.d_gate_dtype, Hg, K, untouched),
         d_write = make(run.d_gate_dtype, Hv, V, untouched);
  TypedBuffer d_A_log(compute, Hg, 0), d_dt_bias(compute, Hg * K, 0), d_initial(compute, N * Hv * K * V + 32, untouched);
  GatedDeltaRule2BackwardArgs b;
  b.tokens = T, b.key_heads = Hk, b.value_heads = Hv, b.gate_heads = Hg, b.key_dim = K, b.value_dim = V;
  b.documents = f.documents, b.dtype = f.dtype, b.q = f.q, b.k = f.k, b.v = f.v;
  b.gate_form = f.gate_form, b.decay = f.decay, b.decay_dtype = f.decay_dtype, b.erase = f.erase, b.erase_dtype = f.erase_dtype;
  b.write = f.write, b.write_dtype = f.write_dtype, b.A_log = f.A_log, b.dt_bias = f.dt_bias;
  b.allow_neg_eigval = f.allow_neg_eigval, b.use_qk_l2norm = f.use_qk_l2norm, b.scale = f.scale, b.initial_state = f.initial_state;
  b.d_o = view(d_o, HeadView{});
  b.d_final_state = p.d_final_state.empty() ? nullptr : d_final.data();
  b.dq = view(dq, MutableHeadView{}), b.dk = view(dk, MutableHeadView{}), b.dv = view(dv, MutableHeadView{});
  b.d_decay = view(d_decay, MutableHeadView{}), b.d_erase = view(d_erase, MutableHeadView{});
  b.d_write = view(d_write, MutableHeadView{}), b.d_gate_dtype = run.d_gate_dtype;
  b.d_A_log = p.raw ? d_A_log.data() : nullptr, b.d_dt_bias = p.raw ? d_dt_bias.data() : nullptr;
  b.d_initial_state = d_initial.data();
  const std::int64_t back_bytes = backend.backward_bytes(b, stream);
  b.workspace = workspace(back_bytes);
  outcome.backward_kernel = backend.backward_kernel(b);
  backend.backward(
      b, stream,
      ranges({&q.buffer,       &k.buffer,       &v.buffer,       &decay.buffer, &erase.buffer, &write.buffer, &A_log,
              &dt_bias,        &initial,        &d_final,        &d_o.buffer,   &dq.buffer,    &dk.buffer,    &dv.buffer,
              &d_decay.buffer, &d_erase.buffer, &d_write.buffer, &d_A_log,      &d_dt_bias,    &d_initial},
             memory));
  check_workspace(back_bytes);
  r.d_q = taken(dq), r.d_k = taken(dk), r.d_v = taken(dv);
  r.d_decay = taken(d_decay), r.d_erase = taken(d_erase), r.d_write = taken(d_write);
  r.d_A_log = flat(d_A_log, Hg), r.d_dt_bias = flat(d_dt_bias, Hg * K), r.d_initial_state = flat(d_initial, N * Hv * K * V);
  return outcome;
}

}  // namespace deltron::test
