// Times forward and backward of the gated delta rule on the CPU: ms, ns a token and head, GFLOP/s of the products that the
// chunked form needs (triangular ones counted half). Not a test. Usage: bench_gated_delta_rule [threads] [repeats]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/gated_delta_rule.h"
#include "src/base/bfloat16.h"
#include "src/base/thread_pool.h"
#include "tests/support/compare.h"

namespace {

using namespace deltron;
using namespace deltron::kernels;

// Products of one full chunk and value head; KK and QK once a key head (group 1 here).
double forward_flops(double K, double V) { return 2 * (64 * 64 * K + 64.0 * 64 * 64 / 6 + 64 * 64 * V + 3 * 64 * K * V); }
double backward_flops(double K, double V) {
  const double rebuild = 64 * 64 * V / 2 + 2 * 64 * K * V;
  const double reverse = 64 * 64 * K + 4 * (64 * 64 * V / 2) + 4 * (64 * 64 * K / 2) + 6 * 64 * K * V;
  return 2 * (rebuild + reverse);
}

void bench(const char* name, std::vector<std::int64_t> offsets, std::int64_t heads, std::int64_t dim, DType dtype, int threads,
           int repeats) {
  ThreadPool pool(threads);
  StreamHandle stream;
  stream.pool = &pool;
  const std::int64_t T = offsets.back(), N = static_cast<std::int64_t>(offsets.size()) - 1, D = heads * dim;
  const std::size_t item = dtype_size(dtype);
  test::TestRandom random(1);
  const auto fill = [&](std::int64_t count) {
    std::vector<char> bytes(static_cast<std::size_t>(count) * item);
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(random.next());
      if (dtype == DType::F32) reinterpret_cast<float*>(bytes.data())[i] = value;
      if (dtype == DType::BF16) reinterpret_cast<bfloat16*>(bytes.data())[i] = to_bfloat16(value);
    }
    return bytes;
  };
  std::vector<char> qkv = fill(T * 3 * D), gates = fill(T * (D + 2 * heads)), o = fill(T * D), d_o = fill(T * D),
                    d_qkv = fill(T * 3 * D), d_gates = fill(T * (D + 2 * heads)), inverse = fill(T * heads * 64);
  std::vector<float> A_log(heads, 0.5f), dt_bias(heads, 1.0f), d_A_log(heads), d_dt_bias(heads);
  GatedDeltaRuleForwardArgs f;
  f.tokens = T, f.key_heads = heads, f.value_heads = heads, f.key_dim = dim, f.value_dim = dim;
  f.documents = Documents{N, offsets.data()};
  f.dtype = f.decay_dtype = f.beta_dtype = dtype;
  const auto at = [&](std::vector<char>& b, std::int64_t i) { return b.data() + static_cast<std::size_t>(i) * item; };
  f.q = HeadView{at(qkv, 0), 0, 3 * D, dim}, f.k = HeadView{at(qkv, D), 0, 3 * D, dim},
  f.v = HeadView{at(qkv, 2 * D), 0, 3 * D, dim};
  f.gate_form = GateForm::Raw;
  f.beta = HeadView{at(gates, D), 0, D + 2 * heads, 1}, f.decay = HeadView{at(gates, D + heads), 0, D + 2 * heads, 1};
  f.A_log = A_log.data(), f.dt_bias = dt_bias.data(), f.use_qk_l2norm = true, f.scale = 0.2;
  f.o = MutableHeadView{o.data(), 0, D, dim};
  f.t_inverse = inverse.data();
  std::vector<char> workspace(static_cast<std::size_t>(cpu::gated_delta_rule_forward_workspace_bytes(f, stream)));
  f.workspace = Workspace{workspace.data(), static_cast<std::int64_t>(workspace.size())};
  GatedDeltaRuleBackwardArgs b;
  b.tokens = T, b.key_heads = heads, b.value_heads = heads, b.key_dim = dim, b.value_dim = dim;
  b.documents = f.documents, b.dtype = b.decay_dtype = b.beta_dtype = b.d_gate_dtype = dtype;
  b.q = f.q, b.k = f.k, b.v = f.v, b.gate_form = f.gate_form, b.decay = f.decay, b.beta = f.beta, b.A_log = f.A_log;
  b.dt_bias = f.dt_bias, b.use_qk_l2norm = true, b.scale = f.scale, b.t_inverse = f.t_inverse;
  b.d_o = HeadView{d_o.data(), 0, D, dim};
  b.dq = MutableHeadView{at(d_qkv, 0), 0, 3 * D, dim}, b.dk = MutableHeadView{at(d_qkv, D), 0, 3 * D, dim};
  b.dv = MutableHeadView{at(d_qkv, 2 * D), 0, 3 * D, dim};
  b.d_beta = MutableHeadView{at(d_gates, D), 0, D + 2 * heads, 1};
  b.d_decay = MutableHeadView{at(d_gates, D + heads), 0, D + 2 * heads, 1};
  b.d_A_log = d_A_log.data(), b.d_dt_bias = d_dt_bias.data();
  std::vector<char> back_workspace(static_cast<std::size_t>(cpu::gated_delta_rule_backward_workspace_bytes(b, stream)));
  b.workspace = Workspace{back_workspace.data(), static_cast<std::int64_t>(back_workspace.size())};
  const auto best_ms = [&](const auto& function) {
    double best = 1e30;
    for (int i = 0; i < repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      function();
      best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  const double forward = best_ms([&] { cpu::gated_delta_rule_forward(f, stream); });
  const double backward = best_ms([&] { cpu::gated_delta_rule_backward(b, stream); });
  const double chunk_heads = static_cast<double>(T) / 64 * static_cast<double>(heads);
  std::printf(
      "%-22s %s threads %d: forward %7.2f ms %6.1f ns %6.1f GFLOP/s | backward %7.2f ms %6.1f ns %6.1f GFLOP/s | workspace %.2f + "
      "%.2f MiB\n",
      name, dtype_name(dtype), threads, forward, forward * 1e6 / static_cast<double>(T * heads),
      forward_flops(dim, dim) * chunk_heads / forward * 1e-6, backward, backward * 1e6 / static_cast<double>(T * heads),
      backward_flops(dim, dim) * chunk_heads / backward * 1e-6, static_cast<double>(workspace.size()) / 1048576,
      static_cast<double>(back_workspace.size()) / 1048576);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 20;
  std::printf("%s\n", cpu::gated_delta_rule_kernel_name());
  std::vector<std::int64_t> dense, ragged = {0};
  for (std::int64_t i = 0; i <= 16; ++i) dense.push_back(i * 256);
  test::TestRandom random(7);
  while (ragged.back() < 4096)
    ragged.push_back(std::min<std::int64_t>(4096, ragged.back() + 20 + static_cast<std::int64_t>(200 * (random.next() + 1) / 2)));
  bench("16x256 4 heads of 32", dense, 4, 32, DType::F32, threads, repeats);
  bench("16x256 2 heads of 64", dense, 2, 64, DType::F32, threads, repeats);
  bench("16x256 2 heads of 128", dense, 2, 128, DType::F32, threads, repeats);
  bench("ragged 4 heads of 32", ragged, 4, 32, DType::F32, threads, repeats);
  bench("1x4096 1 head of 32", {0, 4096}, 1, 32, DType::F32, threads, repeats);
  bench("16x256 4 heads of 32", dense, 4, 32, DType::BF16, threads, repeats);
  return 0;
}
