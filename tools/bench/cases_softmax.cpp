// Softmax attention layers: the core, rotary embedding, the output gate.
#include "kernels/attention.h"
#include "kernels/rope.h"

#include <cmath>

#include "src/autograd/attention_choice.h"
#include "src/tensor/launch.h"
#include "tools/bench/kernel_case.h"

namespace deltron::tools {
namespace {

using Launch = std::function<void()>;

template <class Args>
void core_sizes(Args& a, const CaseSetting& setting, const LayoutPtr& layout) {
  a.tokens = setting.sizes.tokens;
  a.query_heads = setting.sizes.query_heads;
  a.kv_heads = setting.sizes.kv_heads;
  a.dim = setting.sizes.head_dim;
  a.documents = layout->device_documents();
  a.dtype = setting.dtype;
  a.scale = 1 / std::sqrt(static_cast<double>(setting.sizes.head_dim));
}

// `fused`: by the library's kernels, on `layout`.
Launch core(CaseMemory& memory, const CaseSetting& setting, const LayoutPtr& layout, bool backward, bool fused) {
  Context& ctx = memory.ctx();
  const KernelSizes& s = setting.sizes;
  const DType dtype = setting.dtype;
  const Shape queries = {s.tokens, s.query_heads, s.head_dim}, keys = {s.tokens, s.kv_heads, s.head_dim};
  const Tensor q = memory.random(queries, dtype), k = memory.random(keys, dtype), v = memory.random(keys, dtype);
  const Tensor o = memory.empty(queries, dtype), statistics = memory.empty({s.tokens, s.query_heads}, compute_dtype(dtype));
  kernels::AttentionForwardArgs f;
  core_sizes(f, setting, layout);
  f.q = head_view(q);
  f.k = head_view(k);
  f.v = head_view(v);
  f.o = mutable_head_view(o);
  f.log_sum_exp = statistics.data();
  std::vector<Tensor> held = {q, k, v, o, statistics};
  if (!backward) {
    f.workspace = memory.workspace(attention_workspace_bytes(ctx, fused, f));
    return [=, &ctx] { launch_attention_in(ctx, fused, f); static_cast<void>(held), static_cast<void>(layout); };
  }
  launch_attention(ctx, fused, f);
  const Tensor d_o = memory.random(queries, dtype), dq = memory.empty(queries, dtype), dk = memory.empty(keys, dtype), dv = memory.empty(keys, dtype);
  kernels::AttentionBackwardArgs b;
  core_sizes(b, setting, layout);
  b.q = f.q;
  b.k = f.k;
  b.v = f.v;
  b.o = head_view(o);
  b.d_o = head_view(d_o);
  b.log_sum_exp = statistics.data();
  b.dq = mutable_head_view(dq);
  b.dk = mutable_head_view(dk);
  b.dv = mutable_head_view(dv);
  b.workspace = memory.workspace(attention_workspace_bytes(ctx, fused, b));
  held.insert(held.end(), {d_o, dq, dk, dv});
  return [=, &ctx] { launch_attention_in(ctx, fused, b); static_cast<void>(held), static_cast<void>(layout); };
}

}  // namespace

void add_softmax_cases(const CaseSetting& setting, CaseTable& table) {
  const KernelSizes s = setting.sizes;
  const DType dtype = setting.dtype;
  const LayoutPtr layout = setting.layout;
  const std::int64_t T = s.tokens, columns = s.query_heads * s.head_dim;
  const std::string heads = std::to_string(s.query_heads) + "/" + std::to_string(s.kv_heads) + " of " + std::to_string(s.head_dim);
  const std::string shape = std::to_string(T) + " in " + std::to_string(s.documents) + ", heads " + heads;
  const auto elements = static_cast<double>(T * columns);
  const auto add = [&](const std::string& name, bool backward, bool fused, const std::string& kernel) {
    const Work work = backward ? attention_backward_work(s, setting.item()) : attention_forward_work(s, setting.item());
    table.push_back({"attention", name, shape, work, [=](CaseMemory& memory) { return core(memory, setting, layout, backward, fused); }, kernel});
  };
  const AttentionChoice choice =
      choose_attention(*setting.ctx, AttentionBackend::Auto, {dtype, s.query_heads, s.kv_heads, s.head_dim, 0, layout->longest()});
  add("attention_forward", false, false, "own kernels");
  add("attention_backward", true, false, "own kernels");
  if (choice.fused) add("fused_attention_forward", false, true, choice.kernels);
  if (choice.fused) add("fused_attention_backward", true, true, choice.kernels);
  if (s.rotary_dim > 0) {
    table.push_back({"rope", "rope", std::to_string(T) + " x " + heads + ", " + std::to_string(s.rotary_dim) + " turned", stream_work(2 * elements, setting.item()),
                     [=](CaseMemory& memory) -> Launch {
                       Context& ctx = memory.ctx();
                       const Tensor x = memory.random({T, s.query_heads, s.head_dim}, dtype), y = memory.empty({T, s.query_heads, s.head_dim}, dtype);
                       kernels::RopeArgs a;
                       a.tokens = T, a.heads = s.query_heads, a.dim = s.head_dim, a.rotary_dim = s.rotary_dim, a.dtype = dtype;
                       a.positions = layout->positions();
                       a.x = head_view(x);
                       a.y = mutable_head_view(y);
                       return [=, &ctx] { DELTRON_LAUNCH(ctx, rope, a); static_cast<void>(x), static_cast<void>(y), static_cast<void>(layout); };
                     }});
  }
  const std::string flat = std::to_string(T) + " x " + std::to_string(columns);
  table.push_back({"sigmoid_gate", "sigmoid_gate_forward", flat, stream_work(3 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor x = memory.random({T, columns}, dtype), gate = memory.random({T, columns}, dtype), y = memory.empty({T, columns}, dtype);
                     const kernels::SigmoidGateForwardArgs a{T, columns, dtype, matrix_view(x), matrix_view(gate), mutable_matrix_view(y)};
                     const std::vector<Tensor> held = {x, gate, y};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, sigmoid_gate_forward, a); static_cast<void>(held); };
                   }});
  table.push_back({"sigmoid_gate", "sigmoid_gate_backward", flat, stream_work(5 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor x = memory.random({T, columns}, dtype), gate = memory.random({T, columns}, dtype), dy = memory.random({T, columns}, dtype);
                     const Tensor dx = memory.empty({T, columns}, dtype), dgate = memory.empty({T, columns}, dtype);
                     const kernels::SigmoidGateBackwardArgs a{T, columns, dtype, matrix_view(x), matrix_view(gate), matrix_view(dy), mutable_matrix_view(dx), mutable_matrix_view(dgate)};
                     const std::vector<Tensor> held = {x, gate, dy, dx, dgate};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, sigmoid_gate_backward, a); static_cast<void>(held); };
                   }});
}

}  // namespace deltron::tools
