// Times forward and backward of gated delta rule 2 on the CPU with raw gates, as the layer calls it: ms, ns a token and head,
// GFLOP/s of the products that the chunked form needs (triangular ones counted half). Not a test. Usage: bench_gated_delta_rule_2
// [threads] [repeats]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/gated_delta_rule_2.h"
#include "src/base/thread_pool.h"
#include "tests/support/compare.h"
#include "tests/support/typed_buffer.h"

namespace {

using namespace deltron;
using namespace deltron::kernels;

// Products of one full chunk and head: M and P (lower halves), T, T R, P U, three with the state; backward: M, T, T R and the state
// again, P, dP, dM, dQ, dC and dk from pairs, dU and Z, six with states.
double forward_flops(double K, double V) { return 2 * (64 * 64 * K + 64.0 * 64 * 64 / 6 + 64 * 64 * V + 3 * 64 * K * V); }
double backward_flops(double K, double V) {
  const double rebuild = 64 * 64 * K / 2 + 64.0 * 64 * 64 / 6 + 64 * 64 * V / 2 + 2 * 64 * K * V;
  const double reverse = 64 * 64 * K / 2 + 4 * (64 * 64 * V / 2) + 4 * (64 * 64 * K / 2) + 6 * 64 * K * V;
  return 2 * (rebuild + reverse);
}

struct Case {
  std::string name;
  std::vector<std::int64_t> offsets;
  std::int64_t key_heads, group, dim;
  DType dtype = DType::F32;
  double gate_shift = 0;  // of f: large values decay within a few tokens
};

void bench(const Case& c, int threads, int repeats) {
  ThreadPool pool(threads);
  StreamHandle stream;
  stream.pool = &pool;
  const std::int64_t T = c.offsets.back(), N = static_cast<std::int64_t>(c.offsets.size()) - 1, K = c.dim, Hk = c.key_heads,
                     Hv = c.key_heads * c.group, dq = Hk * K, dv = Hv * K;
  test::TestRandom random(1);
  const auto filled = [&](std::int64_t count, double shift) {
    test::TypedBuffer buffer(c.dtype, count, 0);
    for (std::int64_t i = 0; i < count; ++i) buffer.set(i, random.next() + shift);
    return buffer;
  };
  const std::int64_t qkv_row = 2 * dq + dv, gates_row = 2 * dv + 2 * dq;  // z | f | b | w
  test::TypedBuffer qkv = filled(T * qkv_row, 0), gates = filled(T * gates_row, c.gate_shift), o = filled(T * dv, 0),
                    d_o = filled(T * dv, 0), d_qkv = filled(T * qkv_row, 0), d_gates = filled(T * gates_row, 0);
  std::vector<float> A_log(Hk, 0.5f), dt_bias(dq, -3.0f), d_A_log(Hk), d_dt_bias(dq);
  GatedDeltaRule2ForwardArgs f;
  GatedDeltaRule2BackwardArgs b;
  const auto fill = [&](auto& args) {
    args.tokens = T, args.key_heads = args.gate_heads = Hk, args.value_heads = Hv, args.key_dim = args.value_dim = K;
    args.documents = Documents{N, c.offsets.data()};
    args.dtype = args.decay_dtype = args.erase_dtype = args.write_dtype = c.dtype;
    args.q = HeadView{qkv.at(0), 0, qkv_row, K}, args.k = HeadView{qkv.at(dq), 0, qkv_row, K},
    args.v = HeadView{qkv.at(2 * dq), 0, qkv_row, K};
    args.gate_form = GateForm::Raw;
    args.decay = HeadView{gates.at(dv), 0, gates_row, K}, args.erase = HeadView{gates.at(dv + dq), 0, gates_row, K};
    args.write = HeadView{gates.at(dv + 2 * dq), 0, gates_row, K};
    args.A_log = A_log.data(), args.dt_bias = dt_bias.data(), args.use_qk_l2norm = true, args.scale = 0.2;
  };
  fill(f), fill(b);
  f.o = MutableHeadView{o.at(0), 0, dv, K};
  b.d_o = HeadView{d_o.at(0), 0, dv, K};
  b.dq = MutableHeadView{d_qkv.at(0), 0, qkv_row, K}, b.dk = MutableHeadView{d_qkv.at(dq), 0, qkv_row, K};
  b.dv = MutableHeadView{d_qkv.at(2 * dq), 0, qkv_row, K};
  b.d_decay = MutableHeadView{d_gates.at(dv), 0, gates_row, K}, b.d_erase = MutableHeadView{d_gates.at(dv + dq), 0, gates_row, K};
  b.d_write = MutableHeadView{d_gates.at(dv + 2 * dq), 0, gates_row, K}, b.d_gate_dtype = c.dtype;
  b.d_A_log = d_A_log.data(), b.d_dt_bias = d_dt_bias.data();
  std::vector<char> workspace(static_cast<std::size_t>(cpu::gated_delta_rule_2_forward_workspace_bytes(f, stream)));
  f.workspace = Workspace{workspace.data(), static_cast<std::int64_t>(workspace.size())};
  std::vector<char> back_workspace(static_cast<std::size_t>(cpu::gated_delta_rule_2_backward_workspace_bytes(b, stream)));
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
  const double forward = best_ms([&] { cpu::gated_delta_rule_2_forward(f, stream); });
  const double backward = best_ms([&] { cpu::gated_delta_rule_2_backward(b, stream); });
  const double size = static_cast<double>(K), heads = static_cast<double>(T * Hv);
  std::printf(
      "%-28s %s threads %d: forward %7.2f ms %6.1f ns %6.1f GFLOP/s | backward %7.2f ms %6.1f ns %6.1f GFLOP/s | workspace %.2f + "
      "%.2f MiB\n",
      c.name.c_str(), dtype_name(c.dtype), threads, forward, forward * 1e6 / heads,
      forward_flops(size, size) * heads / 64 / forward * 1e-6, backward, backward * 1e6 / heads,
      backward_flops(size, size) * heads / 64 / backward * 1e-6, static_cast<double>(workspace.size()) / 1048576,
      static_cast<double>(back_workspace.size()) / 1048576);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 20;
  std::printf("%s\n", cpu::gated_delta_rule_2_kernel_name());
  std::vector<std::int64_t> dense, ragged = {0};
  for (std::int64_t i = 0; i <= 16; ++i) dense.push_back(i * 256);
  test::TestRandom random(7);
  while (ragged.back() < 4096)
    ragged.push_back(std::min<std::int64_t>(4096, ragged.back() + 20 + static_cast<std::int64_t>(200 * (random.next() + 1) / 2)));
  const Case cases[] = {{"16x256 4 heads of 32", dense, 4, 1, 32},
                        {"16x256 2 heads of 64", dense, 2, 1, 64},
                        {"16x256 2 heads of 128", dense, 2, 1, 128},
                        {"16x256 2 heads of 128, 4 v", dense, 2, 2, 128},
                        {"ragged 4 heads of 32", ragged, 4, 1, 32},
                        {"1x4096 1 head of 32", {0, 4096}, 1, 1, 32},
                        {"16x256 4 of 32, strong decay", dense, 4, 1, 32, DType::F32, 8},
                        {"16x256 4 heads of 32", dense, 4, 1, 32, DType::BF16}};
  for (const Case& c : cases) bench(c, threads, repeats);
  return 0;
}
