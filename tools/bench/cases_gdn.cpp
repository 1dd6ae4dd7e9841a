// What stands around the delta rule: causal convolution, L2 norm of q and k, the fused preparation (with the gates), gated RMSNorm.
#include "kernels/causal_conv1d.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/gdn_pre_rule.h"
#include "kernels/l2_norm.h"

#include "src/tensor/launch.h"
#include "tools/bench/kernel_case.h"

namespace deltron::tools {
namespace {

using Launch = std::function<void()>;

template <class Args>
void conv_sizes(Args& a, const CaseSetting& setting) {
  a.tokens = setting.sizes.tokens;
  a.channels = setting.sizes.conv_channels();
  a.kernel = setting.sizes.conv_kernel;
  a.documents = setting.layout->device_documents();
  a.dtype = a.weight_dtype = setting.dtype;
}

void add_convolution(const CaseSetting& setting, CaseTable& table) {
  const std::int64_t T = setting.sizes.tokens, C = setting.sizes.conv_channels(), taps = setting.sizes.conv_kernel;
  const DType dtype = setting.dtype;
  const auto elements = static_cast<double>(T * C);
  const std::string shape = std::to_string(T) + " x " + std::to_string(C) + ", " + std::to_string(taps) + " taps";
  table.push_back({"causal_conv1d", "causal_conv1d_forward", shape, stream_work(2 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor x = memory.random({T, C}, dtype), w = memory.random({C, taps}, dtype), y = memory.empty({T, C}, dtype);
                     kernels::CausalConv1dForwardArgs a;
                     conv_sizes(a, setting);
                     a.x = matrix_view(x);
                     a.weight = w.data();
                     a.y = mutable_matrix_view(y);
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, causal_conv1d_forward, a); static_cast<void>(x), static_cast<void>(w), static_cast<void>(y); };
                   }});
  table.push_back({"causal_conv1d", "causal_conv1d_backward", shape, stream_work(3 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor x = memory.random({T, C}, dtype), dy = memory.random({T, C}, dtype), w = memory.random({C, taps}, dtype);
                     const Tensor dx = memory.empty({T, C}, dtype), dw = memory.random({C, taps}, compute_dtype(dtype));
                     kernels::CausalConv1dBackwardArgs a;
                     conv_sizes(a, setting);
                     a.x = matrix_view(x);
                     a.dy = matrix_view(dy);
                     a.weight = w.data();
                     a.dx = mutable_matrix_view(dx);
                     a.dweight = dw.data();
                     a.workspace = memory.workspace(DELTRON_WORKSPACE_BYTES(ctx, causal_conv1d_backward, a));
                     const std::vector<Tensor> held = {x, dy, w, dx, dw};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, causal_conv1d_backward, a); static_cast<void>(held); };
                   }});
}

// Both q and k of a token, as the model calls it.
void add_l2_norm(const CaseSetting& setting, CaseTable& table) {
  const std::int64_t T = setting.sizes.tokens, heads = 2 * setting.sizes.key_heads, dim = setting.sizes.key_dim;
  const DType dtype = setting.dtype;
  const auto elements = static_cast<double>(T * heads * dim);
  const std::string shape = std::to_string(T) + " x " + std::to_string(heads) + " x " + std::to_string(dim);
  const auto sizes = [=](auto& a) { a.rows = T, a.heads = heads, a.dim = dim, a.dtype = dtype; };
  table.push_back({"l2_norm", "l2_norm_forward", shape, stream_work(2 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor x = memory.random({T, heads, dim}, dtype), y = memory.empty({T, heads, dim}, dtype);
                     const Tensor rstd = memory.empty({T, heads}, compute_dtype(dtype));
                     kernels::L2NormForwardArgs a;
                     sizes(a);
                     a.x = head_view(x);
                     a.y = mutable_head_view(y);
                     a.rstd = rstd.data();
                     const std::vector<Tensor> held = {x, y, rstd};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, l2_norm_forward, a); static_cast<void>(held); };
                   }});
  table.push_back({"l2_norm", "l2_norm_backward", shape, stream_work(3 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor y = memory.random({T, heads, dim}, dtype, 0.1), dy = memory.random({T, heads, dim}, dtype);
                     const Tensor dx = memory.empty({T, heads, dim}, dtype), rstd = memory.random({T, heads}, compute_dtype(dtype), 0.01, 0.1);
                     kernels::L2NormBackwardArgs a;
                     sizes(a);
                     a.y = head_view(y);
                     a.dy = head_view(dy);
                     a.rstd = rstd.data();
                     a.dx = mutable_head_view(dx);
                     const std::vector<Tensor> held = {y, dy, dx, rstd};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, l2_norm_backward, a); static_cast<void>(held); };
                   }});
}

void add_gated_norm(const CaseSetting& setting, CaseTable& table) {
  const std::int64_t T = setting.sizes.tokens, heads = setting.sizes.value_heads, dim = setting.sizes.value_dim;
  const std::int64_t columns = setting.sizes.gate_channels(setting.sizes.second_rule);
  const DType dtype = setting.dtype, compute = setting.compute();
  const auto elements = static_cast<double>(T * heads * dim);
  const std::string shape = std::to_string(T) + " x " + std::to_string(heads) + " x " + std::to_string(dim);
  const auto sizes = [=](auto& a) {
    a.rows = T, a.heads = heads, a.dim = dim, a.dtype = dtype;
    a.weight_dtype = compute;
  };
  // z read where the projection wrote it (the fused form) or from a copy.
  for (const bool strided : {false, true}) {
    const std::string name = strided ? " z in place" : "";
    const auto gate = [=](CaseMemory& memory) {
      const Tensor gates = memory.random({T, strided ? columns : heads * dim}, dtype);
      return gates.slice(1, 0, heads * dim).split_last(heads);
    };
    table.push_back({"gated_rms_norm", "gated_rms_norm_forward" + name, shape, stream_work(3 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                       Context& ctx = memory.ctx();
                       const Tensor x = memory.random({T, heads, dim}, dtype), z = gate(memory), y = memory.empty({T, heads, dim}, dtype);
                       const Tensor w = memory.random({dim}, compute, 0.1, 1), rstd = memory.empty({T, heads}, compute);
                       kernels::GatedRmsNormForwardArgs a;
                       sizes(a);
                       a.x = head_view(x);
                       a.z = head_view(z);
                       a.weight = w.data();
                       a.rstd = rstd.data();
                       a.y = mutable_head_view(y);
                       const std::vector<Tensor> held = {x, z, y, w, rstd};
                       return [=, &ctx] { DELTRON_LAUNCH(ctx, gated_rms_norm_forward, a); static_cast<void>(held); };
                     }});
    table.push_back({"gated_rms_norm", "gated_rms_norm_backward" + name, shape, stream_work(5 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                       Context& ctx = memory.ctx();
                       const Tensor x = memory.random({T, heads, dim}, dtype), z = gate(memory), dy = memory.random({T, heads, dim}, dtype);
                       const Tensor w = memory.random({dim}, compute, 0.1, 1), rstd = memory.random({T, heads}, compute, 0.1, 1);
                       const Tensor dx = memory.empty({T, heads, dim}, dtype), dz = gate(memory), dw = memory.random({dim}, compute);
                       kernels::GatedRmsNormBackwardArgs a;
                       sizes(a);
                       a.round_gated = !strided;
                       a.x = head_view(x);
                       a.z = head_view(z);
                       a.dy = head_view(dy);
                       a.weight = w.data();
                       a.rstd = rstd.data();
                       a.dx = mutable_head_view(dx);
                       a.dz = mutable_head_view(dz);
                       a.dweight = dw.data();
                       a.workspace = memory.workspace(DELTRON_WORKSPACE_BYTES(ctx, gated_rms_norm_backward, a));
                       const std::vector<Tensor> held = {x, z, dy, w, rstd, dx, dz, dw};
                       return [=, &ctx] { DELTRON_LAUNCH(ctx, gated_rms_norm_backward, a); static_cast<void>(held); };
                     }});
  }
}

struct PreRule {
  std::int64_t T = 0, C = 0, raw = 0, decay = 0, write = 0, A_log = 0, dt_bias = 0;
};

void add_pre_rule(const CaseSetting& setting, CaseTable& table, bool second) {
  const KernelSizes s = setting.sizes;
  const DType dtype = setting.dtype, compute = setting.compute();
  const LayoutPtr layout = setting.layout;
  PreRule n;
  n.T = s.tokens;
  n.C = s.conv_channels();
  n.raw = second ? 2 * s.dq() + s.dv() : 2 * s.value_heads;
  n.decay = second ? s.dq() : s.value_heads;
  n.write = second ? s.dv() : 0;
  n.A_log = second ? s.key_heads : s.value_heads;
  n.dt_bias = n.decay;
  const auto sizes = [=](auto& a, const Tensor& qkv, const Tensor& raw, const Tensor& conv, const Tensor& A_log, const Tensor& dt_bias) {
    a.tokens = s.tokens, a.key_heads = s.key_heads, a.value_heads = s.value_heads, a.key_dim = s.key_dim, a.value_dim = s.value_dim;
    a.kernel = s.conv_kernel;
    a.gates = second ? kernels::PreRuleGates::Channels : kernels::PreRuleGates::Heads;
    a.documents = layout->device_documents();
    a.dtype = a.conv_weight_dtype = dtype;
    a.qkv = matrix_view(qkv), a.raw = matrix_view(raw), a.conv_weight = conv.data(), a.A_log = A_log.data(), a.dt_bias = dt_bias.data();
  };
  const auto inputs = [=](CaseMemory& memory) {
    return std::vector<Tensor>{memory.random({n.T, n.C}, dtype), memory.random({n.T, n.raw}, dtype), memory.random({n.C, s.conv_kernel}, dtype),
                               memory.random({n.A_log}, compute, 0.5), memory.random({n.dt_bias}, compute, 0.5)};
  };
  const double once = static_cast<double>(n.T) * static_cast<double>(n.C + n.raw) * setting.item();
  const double gates = static_cast<double>(n.T) * (static_cast<double>(n.decay) * (4 + setting.item()) + static_cast<double>(n.write) * setting.item());
  const double prepared = static_cast<double>(n.T * n.C) * setting.item();
  const std::string family = "gdn_pre_rule", variant = second ? " gdn2" : " gdn", shape = std::to_string(n.T) + " x " + std::to_string(n.C) + " + " + std::to_string(n.raw);
  table.push_back({family, family + "_forward" + variant, shape, Work{once + gates + prepared, 0}, [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     std::vector<Tensor> held = inputs(memory);
                     const Tensor out = memory.empty({n.T, n.C}, dtype), decay = memory.empty({n.T, n.decay}, compute), strength = memory.empty({n.T, n.decay}, dtype);
                     const Tensor write = second ? memory.empty({n.T, n.write}, dtype) : Tensor();
                     kernels::GdnPreRuleForwardArgs a;
                     sizes(a, held[0], held[1], held[2], held[3], held[4]);
                     a.prepared = mutable_matrix_view(out);
                     a.decay = decay.data();
                     a.strength = strength.data();
                     a.write = second ? write.data() : nullptr;
                     a.workspace = memory.workspace(DELTRON_WORKSPACE_BYTES(ctx, gdn_pre_rule_forward, a));
                     held.insert(held.end(), {out, decay, strength, write});
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, gdn_pre_rule_forward, a); static_cast<void>(held), static_cast<void>(layout); };
                   }});
  table.push_back({family, family + "_backward" + variant, shape, Work{2 * once + gates + prepared, 0}, [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     std::vector<Tensor> held = inputs(memory);
                     const Tensor d_out = memory.random({n.T, n.C}, dtype), d_decay = memory.random({n.T, n.decay}, compute),
                                  d_strength = memory.random({n.T, n.decay}, dtype), d_qkv = memory.empty({n.T, n.C}, dtype), d_raw = memory.empty({n.T, n.raw}, dtype);
                     const Tensor d_write = second ? memory.random({n.T, n.write}, dtype) : Tensor();
                     const Tensor d_conv = memory.random({n.C, s.conv_kernel}, compute), d_A = memory.random({n.A_log}, compute), d_bias = memory.random({n.dt_bias}, compute);
                     kernels::GdnPreRuleBackwardArgs a;
                     sizes(a, held[0], held[1], held[2], held[3], held[4]);
                     a.d_prepared = matrix_view(d_out);
                     a.d_decay = d_decay.data();
                     a.d_strength = d_strength.data();
                     a.d_write = second ? d_write.data() : nullptr;
                     a.d_qkv = mutable_matrix_view(d_qkv);
                     a.d_raw = mutable_matrix_view(d_raw);
                     a.d_conv_weight = d_conv.data();
                     a.d_A_log = d_A.data();
                     a.d_dt_bias = d_bias.data();
                     a.workspace = memory.workspace(DELTRON_WORKSPACE_BYTES(ctx, gdn_pre_rule_backward, a));
                     held.insert(held.end(), {d_out, d_decay, d_strength, d_qkv, d_raw, d_write, d_conv, d_A, d_bias});
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, gdn_pre_rule_backward, a); static_cast<void>(held), static_cast<void>(layout); };
                   }});
}

}  // namespace

void add_gdn_cases(const CaseSetting& setting, CaseTable& table) {
  add_convolution(setting, table);
  add_l2_norm(setting, table);
  const bool cuda = setting.ctx->kernel_device() == DeviceKind::Cuda;
  const KernelSizes& s = setting.sizes;
  // The fused preparation holds its taps and heads in registers and shared memory.
  const bool fits = cuda ? s.conv_kernel <= kernels::kPreRuleTapsCuda && s.key_dim <= kernels::kPreRuleHeadDimCuda && s.value_dim <= kernels::kPreRuleHeadDimCuda
                         : s.conv_kernel <= kernels::kPreRuleTaps;
  if (fits) {
    add_pre_rule(setting, table, false);
    add_pre_rule(setting, table, true);
  }
  add_gated_norm(setting, table);
}

}  // namespace deltron::tools
