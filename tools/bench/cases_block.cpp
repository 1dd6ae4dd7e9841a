// Kernels of every decoder layer: RMSNorm, SwiGLU, dropout on the residual branch, sums, conversions.
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

#include "src/tensor/launch.h"
#include "tools/bench/kernel_case.h"

namespace deltron::tools {
namespace {

using Launch = std::function<void()>;

std::string rows_of(std::int64_t rows, std::int64_t columns) { return std::to_string(rows) + " x " + std::to_string(columns); }

kernels::HeadView rows_view(const Tensor& x) { return {x.data(), 0, x.stride(0), x.size(1)}; }
kernels::MutableHeadView mutable_rows_view(const Tensor& x) { return {x.data(), 0, x.stride(0), x.size(1)}; }

void add_rms_norm(const CaseSetting& setting, CaseTable& table) {
  const std::int64_t T = setting.sizes.tokens, h = setting.sizes.hidden;
  const DType dtype = setting.dtype, compute = setting.compute();
  const auto elements = static_cast<double>(T * h);
  const auto sizes = [=](auto& a) { a.rows = T, a.cols = h, a.dtype = a.weight_dtype = dtype; };
  table.push_back({"rms_norm", "rms_norm_forward", rows_of(T, h), stream_work(2 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor x = memory.random({T, h}, dtype), w = memory.random({h}, dtype, 0.1, 1), y = memory.empty({T, h}, dtype), rstd = memory.empty({T}, compute);
                     kernels::RmsNormForwardArgs a;
                     sizes(a);
                     a.x = rows_view(x);
                     a.weight = w.data();
                     a.rstd = rstd.data();
                     a.y = mutable_rows_view(y);
                     const std::vector<Tensor> held = {x, w, y, rstd};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, rms_norm_forward, a); static_cast<void>(held); };
                   }});
  table.push_back({"rms_norm", "rms_norm_backward", rows_of(T, h), stream_work(3 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor x = memory.random({T, h}, dtype), dy = memory.random({T, h}, dtype), w = memory.random({h}, dtype, 0.1, 1);
                     const Tensor dx = memory.empty({T, h}, dtype), rstd = memory.random({T}, compute, 0.1, 1), dw = memory.random({h}, compute);
                     kernels::RmsNormBackwardArgs a;
                     sizes(a);
                     a.x = rows_view(x);
                     a.dy = rows_view(dy);
                     a.weight = w.data();
                     a.rstd = rstd.data();
                     a.dx = mutable_rows_view(dx);
                     a.dweight = dw.data();
                     a.workspace = memory.workspace(DELTRON_WORKSPACE_BYTES(ctx, rms_norm_backward, a));
                     const std::vector<Tensor> held = {x, dy, w, dx, rstd, dw};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, rms_norm_backward, a); static_cast<void>(held); };
                   }});
}

void add_swiglu(const CaseSetting& setting, CaseTable& table) {
  const std::int64_t T = setting.sizes.tokens, ffn = setting.sizes.ffn;
  const DType dtype = setting.dtype;
  const auto elements = static_cast<double>(T * ffn);
  table.push_back({"swiglu", "swiglu_forward", rows_of(T, ffn), stream_work(3 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor h = memory.random({T, 2 * ffn}, dtype), y = memory.empty({T, ffn}, dtype);
                     const kernels::SwigluForwardArgs a{T, ffn, dtype, matrix_view(h), mutable_matrix_view(y)};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, swiglu_forward, a); static_cast<void>(h), static_cast<void>(y); };
                   }});
  for (const bool again : {false, true}) {
    table.push_back({"swiglu", again ? "swiglu_backward with output" : "swiglu_backward", rows_of(T, ffn), stream_work((again ? 6 : 5) * elements, setting.item()),
                     [=](CaseMemory& memory) -> Launch {
                       Context& ctx = memory.ctx();
                       const Tensor h = memory.random({T, 2 * ffn}, dtype), dy = memory.random({T, ffn}, dtype), dh = memory.empty({T, 2 * ffn}, dtype);
                       const Tensor y = again ? memory.empty({T, ffn}, dtype) : Tensor();
                       kernels::SwigluBackwardArgs a{T, ffn, dtype, matrix_view(h), matrix_view(dy), mutable_matrix_view(dh), {}};
                       if (again) a.y = mutable_matrix_view(y);
                       const std::vector<Tensor> held = {h, dy, dh, y};
                       return [=, &ctx] { DELTRON_LAUNCH(ctx, swiglu_backward, a); static_cast<void>(held); };
                     }});
  }
}

void add_sums(const CaseSetting& setting, CaseTable& table) {
  const std::int64_t T = setting.sizes.tokens, h = setting.sizes.hidden;
  const DType dtype = setting.dtype;
  const LayoutPtr layout = setting.layout;
  const auto elements = static_cast<double>(T * h);
  table.push_back({"dropout", "dropout_add", rows_of(T, h) + ", 10 %", stream_work(3 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor x = memory.random({T, h}, dtype), residual = memory.random({T, h}, dtype), y = memory.empty({T, h}, dtype);
                     kernels::DropoutAddArgs a{T, h, x.data(), residual.data(), y.data(), dtype, layout->token_rng({1, 0, kRngSiteHiddenDropoutMixer}, 0.1)};
                     const std::vector<Tensor> held = {x, residual, y};
                     return [=, &ctx] { DELTRON_LAUNCH(ctx, dropout_add, a); static_cast<void>(held), static_cast<void>(layout); };
                   }});
  table.push_back({"elementwise", "add", rows_of(T, h), stream_work(3 * elements, setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor a = memory.random({T, h}, dtype), b = memory.random({T, h}, dtype), y = memory.empty({T, h}, dtype);
                     return [=, &ctx] { add(ctx, a, b, y); };
                   }});
  table.push_back({"elementwise", "convert from fp32", rows_of(T, h), stream_work(elements, 4 + setting.item()), [=](CaseMemory& memory) -> Launch {
                     Context& ctx = memory.ctx();
                     const Tensor x = memory.random({T, h}, DType::F32), y = memory.empty({T, h}, dtype);
                     return [=, &ctx] { convert(ctx, x, y); };
                   }});
}

}  // namespace

void add_block_cases(const CaseSetting& setting, CaseTable& table) {
  add_rms_norm(setting, table);
  add_swiglu(setting, table);
  add_sums(setting, table);
}

}  // namespace deltron::tools
