// Matrix products of every projection of the model: forward, gradient of the input, gradient of the weight (into fp32).
#include "kernels/matmul.h"

#include "tools/bench/kernel_case.h"

namespace deltron::tools {
namespace {

std::string shape_of(std::int64_t m, std::int64_t k, std::int64_t n) {
  return std::to_string(m) + " x " + std::to_string(k) + " x " + std::to_string(n);
}

// x [T,in] w [out,in]: y = x w^T, dx = dy w, dw += dy^T x.
void add_projection(const CaseSetting& setting, CaseTable& table, const std::string& name, std::int64_t in, std::int64_t out) {
  const std::int64_t T = setting.sizes.tokens;
  const DType dtype = setting.dtype, gradient = setting.compute();
  const double item = setting.item(), wide = static_cast<double>(dtype_size(gradient)), t = static_cast<double>(T);
  const auto i = static_cast<double>(in), o = static_cast<double>(out);
  Work weight = matmul_work(o, i, t, item, wide);
  weight.bytes += o * i * wide;  // the sum so far is read
  table.push_back({"matmul", "matmul_forward " + name, shape_of(T, in, out), matmul_work(t, o, i, item, item), [=](CaseMemory& memory) {
                     const Tensor x = memory.random({T, in}, dtype), w = memory.random({out, in}, dtype), y = memory.empty({T, out}, dtype);
                     Context& ctx = memory.ctx();
                     return std::function<void()>([=, &ctx] { matmul(ctx, x, transposed(w), y); });
                   }});
  table.push_back({"matmul", "matmul_input_gradient " + name, shape_of(T, out, in), matmul_work(t, i, o, item, item), [=](CaseMemory& memory) {
                     const Tensor dy = memory.random({T, out}, dtype), w = memory.random({out, in}, dtype), dx = memory.empty({T, in}, dtype);
                     Context& ctx = memory.ctx();
                     return std::function<void()>([=, &ctx] { matmul(ctx, dy, w, dx); });
                   }});
  table.push_back({"matmul", "matmul_weight_gradient " + name, shape_of(out, T, in), weight, [=](CaseMemory& memory) {
                     const Tensor dy = memory.random({T, out}, dtype), x = memory.random({T, in}, dtype), dw = memory.random({out, in}, gradient);
                     Context& ctx = memory.ctx();
                     return std::function<void()>([=, &ctx] { matmul(ctx, transposed(dy), x, dw, true); });
                   }});
}

}  // namespace

void add_matmul_cases(const CaseSetting& setting, CaseTable& table) {
  const KernelSizes& s = setting.sizes;
  if (s.linear()) {
    add_projection(setting, table, "gdn.in_proj.qkv", s.hidden, s.conv_channels());
    add_projection(setting, table, "gdn.in_proj.gates", s.hidden, s.gate_channels(s.second_rule));
    add_projection(setting, table, "gdn.out_proj", s.dv(), s.hidden);
  }
  if (s.softmax()) {
    const std::int64_t q = s.query_heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    add_projection(setting, table, "attn.qkv", s.hidden, (s.output_gate ? 2 * q : q) + 2 * kv);
    add_projection(setting, table, "attn.proj", q, s.hidden);
  }
  add_projection(setting, table, "mlp.fc1", s.hidden, 2 * s.ffn);
  add_projection(setting, table, "mlp.fc2", s.ffn, s.hidden);
  add_projection(setting, table, "logits", s.hidden, s.vocab);
}

}  // namespace deltron::tools
