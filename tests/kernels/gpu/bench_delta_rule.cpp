// Times both delta rules on the GPU by events: medians over repeated launches, inputs rotated past the cache. Not a test.
// Usage: bench_delta_rule [repeats]. Columns: forward and backward in ms, workspace in MiB, the kernel that ran.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/gated_delta_rule.h"
#include "kernels/gated_delta_rule_2.h"
#include "src/base/bfloat16.h"

namespace {

using namespace deltron;
using namespace deltron::kernels;

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "cuda: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

struct DeviceMemory {
  void* data = nullptr;
  explicit DeviceMemory(std::size_t bytes) { require(cudaMalloc(&data, bytes + 256)); }
  DeviceMemory(DeviceMemory&& other) noexcept : data(other.data) { other.data = nullptr; }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(data); }
};

template <class T>
DeviceMemory upload(const std::vector<T>& values) {
  DeviceMemory memory(values.size() * sizeof(T));
  require(cudaMemcpy(memory.data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}
DeviceMemory random_bfloat16(std::int64_t count, float scale, float shift, std::uint64_t seed) {
  std::vector<bfloat16> values(static_cast<std::size_t>(count));
  for (bfloat16& value : values) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    value = to_bfloat16(shift + scale * (static_cast<float>(seed >> 40) / 8388608.0f - 1.0f));
  }
  return upload(values);
}

template <class F>
double median_ms(int repeats, const F& function) {
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin)), require(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = -2; i < repeats; ++i) {
    require(cudaEventRecord(begin));
    function(i & 1);
    require(cudaEventRecord(end));
    require(cudaEventSynchronize(end));
    float ms;
    require(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 0) times.push_back(ms);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

struct Case {
  const char* name;
  int rule;
  std::int64_t documents, length, key_heads, value_heads, dim;
};

void bench(const Case& c, int repeats) {
  const std::int64_t T = c.documents * c.length, Hk = c.key_heads, Hv = c.value_heads, D = c.dim;
  std::vector<std::int64_t> offsets;
  for (std::int64_t n = 0; n <= c.documents; ++n) offsets.push_back(n * c.length);
  const DeviceMemory device_offsets = upload(offsets);
  const Documents documents{c.documents, static_cast<const std::int64_t*>(device_offsets.data), offsets.data()};
  const std::int64_t gates = c.rule == 1 ? Hv : Hk * D, writes = c.rule == 1 ? Hv : Hv * D;
  struct Set {
    DeviceMemory q, k, v, decay, erase, write, d_o;
  };
  std::vector<Set> sets;
  for (std::uint64_t s = 1; s <= 2; ++s) {
    sets.push_back(Set{random_bfloat16(T * Hk * D, 1, 0, s), random_bfloat16(T * Hk * D, 1, 0, s + 10),
                       random_bfloat16(T * Hv * D, 1, 0, s + 20), random_bfloat16(T * gates, 2, -2, s + 30),
                       random_bfloat16(T * gates, 2, 0, s + 40), random_bfloat16(T * writes, 2, 0, s + 50),
                       random_bfloat16(T * Hv * D, 1, 0, s + 60)});
  }
  const std::int64_t gate_heads = c.rule == 1 ? Hv : Hk, gate_width = c.rule == 1 ? 1 : D;
  const DeviceMemory A_log = upload(std::vector<float>(static_cast<std::size_t>(gate_heads), 0.0f)),
                     dt_bias = upload(std::vector<float>(static_cast<std::size_t>(gate_heads * gate_width), 0.0f));
  const DeviceMemory o(static_cast<std::size_t>(2 * T * Hv * D)), state(static_cast<std::size_t>(4 * c.documents * Hv * D * D)),
      inverse(static_cast<std::size_t>(2 * T * Hv * 64)), dq(static_cast<std::size_t>(2 * T * Hk * D)),
      dk(static_cast<std::size_t>(2 * T * Hk * D)), dv(static_cast<std::size_t>(2 * T * Hv * D)),
      d_decay(static_cast<std::size_t>(2 * T * gates)), d_erase(static_cast<std::size_t>(2 * T * gates)),
      d_write(static_cast<std::size_t>(2 * T * writes)), d_A(static_cast<std::size_t>(4 * gate_heads)),
      d_bias(static_cast<std::size_t>(4 * gate_heads * gate_width));
  const StreamHandle stream{DeviceKind::Cuda, nullptr, nullptr};
  const auto rows = [](const void* data, std::int64_t heads, std::int64_t dim) { return HeadView{data, 0, heads * dim, dim}; };
  const auto out_rows = [](void* data, std::int64_t heads, std::int64_t dim) { return MutableHeadView{data, 0, heads * dim, dim}; };
  const auto common = [&](auto& a, const Set& s) {
    a.tokens = T, a.key_heads = Hk, a.value_heads = Hv, a.key_dim = D, a.value_dim = D, a.documents = documents,
    a.dtype = DType::BF16;
    a.q = rows(s.q.data, Hk, D), a.k = rows(s.k.data, Hk, D), a.v = rows(s.v.data, Hv, D);
    a.gate_form = GateForm::Raw, a.decay = rows(s.decay.data, gate_heads, gate_width), a.decay_dtype = DType::BF16;
    a.A_log = A_log.data, a.dt_bias = dt_bias.data, a.use_qk_l2norm = true, a.scale = 0.088;
  };
  const auto common_backward = [&](auto& a, const Set& s) {
    a.d_o = rows(s.d_o.data, Hv, D);
    a.dq = out_rows(dq.data, Hk, D), a.dk = out_rows(dk.data, Hk, D), a.dv = out_rows(dv.data, Hv, D);
    a.d_decay = out_rows(d_decay.data, gate_heads, gate_width), a.d_gate_dtype = DType::BF16;
    a.d_A_log = d_A.data, a.d_dt_bias = d_bias.data;
  };
  double forward = 0, backward = 0;
  std::int64_t bytes = 0;
  const char* name = "";
  const auto run = [&](auto f, auto b, const auto& add_forward, const auto& add_backward, auto forward_bytes, auto backward_bytes,
                       auto go_forward, auto go_backward) {
    common(f, sets[0]), add_forward(f, sets[0]);
    common(b, sets[0]), common_backward(b, sets[0]), add_backward(b, sets[0]);
    f.o = out_rows(o.data, Hv, D), f.final_state = state.data;
    bytes = std::max(forward_bytes(f, stream), backward_bytes(b, stream));
    const DeviceMemory workspace(static_cast<std::size_t>(bytes));
    f.workspace = b.workspace = Workspace{workspace.data, bytes};
    forward = median_ms(repeats, [&](int which) {
      common(f, sets[static_cast<std::size_t>(which)]), add_forward(f, sets[static_cast<std::size_t>(which)]);
      go_forward(f, stream);
    });
    backward = median_ms(repeats, [&](int which) {
      const Set& s = sets[static_cast<std::size_t>(which)];
      common(b, s), common_backward(b, s), add_backward(b, s);
      go_backward(b, stream);
    });
  };
  if (c.rule == 1) {
    const auto add = [&](auto& a, const Set& s) {
      a.beta = rows(s.erase.data, Hv, 1), a.beta_dtype = DType::BF16, a.t_inverse = inverse.data;
    };
    GatedDeltaRuleForwardArgs f;
    run(
        f, GatedDeltaRuleBackwardArgs{}, add, [&](auto& a, const Set& s) { add(a, s), a.d_beta = out_rows(d_erase.data, Hv, 1); },
        cuda::gated_delta_rule_forward_workspace_bytes, cuda::gated_delta_rule_backward_workspace_bytes,
        cuda::gated_delta_rule_forward, cuda::gated_delta_rule_backward);
    common(f, sets[0]), add(f, sets[0]), f.o = out_rows(o.data, Hv, D);
    name = cuda::gated_delta_rule_kernel_name(f);
  } else {
    const auto add = [&](auto& a, const Set& s) {
      a.gate_heads = gate_heads, a.erase = rows(s.erase.data, gate_heads, D), a.write = rows(s.write.data, Hv, D);
      a.erase_dtype = a.write_dtype = DType::BF16;
    };
    GatedDeltaRule2ForwardArgs f;
    run(
        f, GatedDeltaRule2BackwardArgs{}, add,
        [&](auto& a, const Set& s) {
          add(a, s), a.d_erase = out_rows(d_erase.data, gate_heads, D), a.d_write = out_rows(d_write.data, Hv, D);
        },
        cuda::gated_delta_rule_2_forward_workspace_bytes, cuda::gated_delta_rule_2_backward_workspace_bytes,
        cuda::gated_delta_rule_2_forward, cuda::gated_delta_rule_2_backward);
    common(f, sets[0]), add(f, sets[0]), f.o = out_rows(o.data, Hv, D);
    name = cuda::gated_delta_rule_2_kernel_name(f);
  }
  std::printf("%-28s forward %8.3f ms  backward %8.3f ms  workspace %7.1f MiB  %s\n", c.name, forward, backward,
              static_cast<double>(bytes) / 1048576, name);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 20;
  const Case cases[] = {{"gdn  1 x 8192", 1, 1, 8192, 16, 32, 128},           {"gdn  1 x 32768", 1, 1, 32768, 16, 32, 128},
                        {"gdn  8 x 1024", 1, 8, 1024, 16, 32, 128},           {"gdn  8 x 4096 hv16", 1, 8, 4096, 8, 16, 128},
                        {"gdn2 1 x 8192 hk16 hv32", 2, 1, 8192, 16, 32, 128}, {"gdn2 1 x 8192 hk32 hv32", 2, 1, 8192, 32, 32, 128}};
  for (const Case& c : cases) {
    if (argc > 2 && std::atoi(argv[2]) != c.rule) continue;
    bench(c, repeats);
  }
  return 0;
}
