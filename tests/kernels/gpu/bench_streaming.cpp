// Times the kernels bound by memory on the GPU by events: medians over repeated launches, inputs and outputs rotated past the
// cache. Not a test. Usage: bench_streaming [repeats]. Sizes of configs/h200_gdn_500m.yaml: 8 x 4096 tokens, bf16. Columns: time,
// bytes that must move once, their rate, and its share of what a device-to-device copy reaches in the same process.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/causal_conv1d.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/l2_norm.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "src/base/bfloat16.h"

namespace {

using namespace deltron;
using namespace deltron::kernels;

constexpr std::int64_t kTokens = 8 * 4096, kChannels = 4096, kHidden = 1024, kHeads = 16, kKeyHeads = 8, kDim = 128, kFfn = 3072;
constexpr std::int64_t kWidest = kTokens * 2 * kFfn;  // elements of the widest tensor
constexpr int kSets = 2;

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "cuda: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

void* allocate(std::int64_t bytes) {
  void* data = nullptr;
  require(cudaMalloc(&data, static_cast<std::size_t>(bytes)));
  require(cudaMemset(data, 0, static_cast<std::size_t>(bytes)));
  return data;
}
void* random_bfloat16(std::int64_t count, std::uint64_t seed) {
  // One random stretch, repeated: the values' size and sign matter, not their independence.
  std::vector<bfloat16> values(std::size_t{1} << 20);
  for (bfloat16& value : values) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    value = to_bfloat16(static_cast<float>(seed >> 40) / 4194304.0f - 2.0f);
  }
  void* data = allocate(2 * count);
  const std::int64_t stretch = static_cast<std::int64_t>(values.size());
  for (std::int64_t at = 0; at < count; at += stretch) {
    const void* from = at == 0 ? static_cast<const void*>(values.data()) : data;
    require(cudaMemcpy(static_cast<char*>(data) + 2 * at, from, static_cast<std::size_t>(2 * std::min(stretch, count - at)),
                       cudaMemcpyDefault));
  }
  return data;
}

struct Bench {
  int repeats;
  double copy_rate = 0;  // bytes read and written a second
  template <class F>
  double median_seconds(const F& function) const {
    cudaEvent_t begin, end;
    require(cudaEventCreate(&begin)), require(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = -3; i < repeats; ++i) {
      require(cudaEventRecord(begin));
      function((i + kSets * 3) % kSets);
      require(cudaEventRecord(end));
      require(cudaEventSynchronize(end));
      float ms;
      require(cudaEventElapsedTime(&ms, begin, end));
      if (i >= 0) times.push_back(ms);
    }
    cudaEventDestroy(begin), cudaEventDestroy(end);
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]) / 1e3;
  }
  template <class F>
  void row(const char* name, std::int64_t elements, const F& function) const {
    const double seconds = median_seconds(function), bytes = 2.0 * static_cast<double>(elements);
    std::printf("%-28s %8.1f us  %7.1f MB  %5.2f TB/s  %5.1f %%  floor %6.1f us\n", name, seconds * 1e6, bytes / 1e6,
                bytes / seconds / 1e12, 100 * bytes / seconds / copy_rate, bytes / copy_rate * 1e6);
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  Bench bench{argc > 1 ? std::max(1, std::atoi(argv[1])) : 20};
  const StreamHandle stream{DeviceKind::Cuda, nullptr, nullptr};
  void *in[kSets][3], *out[kSets][2];
  for (int s = 0; s < kSets; ++s) {
    for (int i = 0; i < 3; ++i) in[s][i] = random_bfloat16(kWidest, static_cast<std::uint64_t>(s * 3 + i + 1));
    for (void*& each : out[s]) each = allocate(2 * kWidest);
  }
  const void* weight = random_bfloat16(kChannels * 4, 99);
  void* const dweight = allocate(4 * kChannels * 4);
  void* const rstd = allocate(4 * kTokens * kHeads);
  const std::int64_t workspace_bytes = std::int64_t{1} << 28;
  const Workspace workspace{allocate(workspace_bytes), workspace_bytes};
  std::vector<std::int64_t> offsets;
  for (std::int64_t n = 0; n <= 8; ++n) offsets.push_back(n * 4096);
  void* const device_offsets = allocate(9 * 8);
  require(cudaMemcpy(device_offsets, offsets.data(), 9 * 8, cudaMemcpyHostToDevice));

  const double copy = bench.median_seconds(
      [&](int s) { require(cudaMemcpyAsync(out[s][0], in[s][0], 2 * kWidest, cudaMemcpyDeviceToDevice, nullptr)); });
  bench.copy_rate = 4.0 * static_cast<double>(kWidest) / copy;
  std::printf("copy %.2f TB/s, read and written\n", bench.copy_rate / 1e12);

  const std::int64_t conv = kTokens * kChannels;
  const auto common_conv = [&](auto& a, int s) {
    a.tokens = kTokens, a.channels = kChannels, a.dtype = a.weight_dtype = DType::BF16, a.weight = weight;
    a.documents = Documents{8, static_cast<const std::int64_t*>(device_offsets), offsets.data()};
    a.x = {in[s][0], kChannels};
  };
  bench.row("causal_conv1d forward", 2 * conv, [&](int s) {
    CausalConv1dForwardArgs a;
    common_conv(a, s), a.y = {out[s][0], kChannels};
    cuda::causal_conv1d_forward(a, stream);
  });
  bench.row("causal_conv1d backward", 3 * conv, [&](int s) {
    CausalConv1dBackwardArgs a;
    common_conv(a, s), a.dy = {in[s][1], kChannels}, a.dx = {out[s][0], kChannels}, a.dweight = dweight, a.workspace = workspace;
    cuda::causal_conv1d_backward(a, stream);
  });

  const std::int64_t gated = kTokens * kHeads * kDim;
  const auto heads = [](const void* data, std::int64_t count) { return HeadView{data, 0, count * kDim, kDim}; };
  const auto heads_out = [](void* data, std::int64_t count) { return MutableHeadView{data, 0, count * kDim, kDim}; };
  const auto common_gated = [&](auto& a, int s) {
    a.rows = kTokens, a.heads = kHeads, a.dim = kDim, a.dtype = a.weight_dtype = DType::BF16, a.weight = weight, a.rstd = rstd;
    a.x = heads(in[s][0], kHeads), a.z = heads(in[s][1], kHeads);
  };
  bench.row("gated_rms_norm forward", 3 * gated, [&](int s) {
    GatedRmsNormForwardArgs a;
    common_gated(a, s), a.y = heads_out(out[s][0], kHeads);
    cuda::gated_rms_norm_forward(a, stream);
  });
  bench.row("gated_rms_norm backward", 5 * gated, [&](int s) {
    GatedRmsNormBackwardArgs a;
    common_gated(a, s), a.dy = heads(in[s][2], kHeads), a.dx = heads_out(out[s][0], kHeads), a.dz = heads_out(out[s][1], kHeads);
    a.dweight = dweight, a.workspace = workspace;
    cuda::gated_rms_norm_backward(a, stream);
  });

  const std::int64_t hidden = kTokens * kHidden;
  const auto common_rms = [&](auto& a, int s) {
    a.rows = kTokens, a.cols = kHidden, a.dtype = a.weight_dtype = DType::BF16, a.weight = weight, a.rstd = rstd;
    a.x = {in[s][0], 0, kHidden, kHidden};
  };
  bench.row("rms_norm forward", 2 * hidden, [&](int s) {
    RmsNormForwardArgs a;
    common_rms(a, s), a.y = {out[s][0], 0, kHidden, kHidden};
    cuda::rms_norm_forward(a, stream);
  });
  bench.row("rms_norm backward", 3 * hidden, [&](int s) {
    RmsNormBackwardArgs a;
    common_rms(a, s), a.dy = {in[s][1], 0, kHidden, kHidden}, a.dx = {out[s][0], 0, kHidden, kHidden};
    a.dweight = dweight, a.workspace = workspace;
    cuda::rms_norm_backward(a, stream);
  });

  const std::int64_t ffn = kTokens * kFfn;
  bench.row("swiglu forward", 3 * ffn, [&](int s) {
    SwigluForwardArgs a;
    a.rows = kTokens, a.ffn = kFfn, a.dtype = DType::BF16, a.h = {in[s][0], 2 * kFfn}, a.y = {out[s][0], kFfn};
    cuda::swiglu_forward(a, stream);
  });
  for (const bool again : {false, true}) {
    bench.row(again ? "swiglu backward, y again" : "swiglu backward", (again ? 6 : 5) * ffn, [&](int s) {
      SwigluBackwardArgs a;
      a.rows = kTokens, a.ffn = kFfn, a.dtype = DType::BF16, a.h = {in[s][0], 2 * kFfn}, a.dy = {in[s][1], kFfn};
      a.dh = {out[s][0], 2 * kFfn};
      if (again) a.y = {out[s][1], kFfn};
      cuda::swiglu_backward(a, stream);
    });
  }

  const std::int64_t keys = kTokens * kKeyHeads * kDim;
  bench.row("l2_norm forward", 2 * keys, [&](int s) {
    L2NormForwardArgs a;
    a.rows = kTokens, a.heads = kKeyHeads, a.dim = kDim, a.dtype = DType::BF16, a.rstd = rstd;
    a.x = heads(in[s][0], kKeyHeads), a.y = heads_out(out[s][0], kKeyHeads);
    cuda::l2_norm_forward(a, stream);
  });
  bench.row("l2_norm backward", 3 * keys, [&](int s) {
    L2NormBackwardArgs a;
    a.rows = kTokens, a.heads = kKeyHeads, a.dim = kDim, a.dtype = DType::BF16, a.rstd = rstd;
    a.y = heads(in[s][0], kKeyHeads), a.dy = heads(in[s][1], kKeyHeads), a.dx = heads_out(out[s][0], kKeyHeads);
    cuda::l2_norm_backward(a, stream);
  });
  require(cudaDeviceSynchronize());
  return 0;
}
