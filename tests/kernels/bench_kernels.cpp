// Speed of the row kernels on the CPU at training sizes: microseconds and GB/s by threads. A program to run by hand, not a test.
//   bench_kernels [threads ...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <vector>

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "src/base/thread_pool.h"

namespace {

using namespace deltron;
using namespace deltron::kernels;

constexpr std::int64_t kRows = 4096, kCols = 128, kFfn = 256, kVocab = 256;

// On cache lines, as the framework's own allocator has it.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* data, std::size_t) { ::operator delete(data, std::align_val_t{64}); }
  bool operator==(const LineAllocator&) const { return true; }
};
using Floats = std::vector<float, LineAllocator<float>>;

double best_seconds(const std::function<void()>& run) {
  double best = 1e30;
  for (int repeat = 0; repeat < 40; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void measure(int threads) {
  ThreadPool pool(threads);
  StreamHandle stream;
  stream.pool = &pool;
  const std::size_t most = static_cast<std::size_t>(kRows * 2 * kFfn);
  Floats a(most, 0.5f), b(most, 0.25f), c(most), e(most), statistics(kRows, 1.0f), weight(kCols, 1.0f), partial(1 << 20);
  std::vector<std::int32_t> ids(kRows), offsets(kRows);
  std::vector<std::int64_t> samples(kRows, 7);
  for (std::int64_t i = 0; i < kRows; ++i) {
    ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 31 % kVocab);
    offsets[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
  }
  const auto report = [&](const char* name, double floats, const std::function<void()>& run) {
    const double time = best_seconds(run);
    std::printf("%d threads  %-24s %8.1f us  %6.1f GB/s\n", threads, name, 1e6 * time, 4e-9 * floats / time);
  };
  const HeadView x{a.data(), 0, kCols, kCols}, dy{b.data(), 0, kCols, kCols};
  const MutableHeadView y{c.data(), 0, kCols, kCols};
  const double block = static_cast<double>(kRows * kCols);
  RmsNormForwardArgs norm;
  norm.rows = kRows;
  norm.cols = kCols;
  norm.x = x;
  norm.weight = weight.data();
  norm.rstd = statistics.data();
  norm.y = y;
  report("rms_norm_forward", 2 * block, [&] { cpu::rms_norm_forward(norm, stream); });
  RmsNormBackwardArgs slope;
  slope.rows = kRows;
  slope.cols = kCols;
  slope.x = x;
  slope.dy = dy;
  slope.weight = weight.data();
  slope.rstd = statistics.data();
  slope.dx = y;
  slope.dweight = e.data();
  slope.workspace = {partial.data(), static_cast<std::int64_t>(partial.size() * 4)};
  report("rms_norm_backward", 3 * block, [&] { cpu::rms_norm_backward(slope, stream); });
  const SwigluForwardArgs glu{kRows, kFfn, DType::F32, {a.data(), 2 * kFfn}, {c.data(), kFfn}};
  report("swiglu_forward", 3.0 * kRows * kFfn, [&] { cpu::swiglu_forward(glu, stream); });
  const SwigluBackwardArgs unglu{kRows, kFfn, DType::F32, {a.data(), 2 * kFfn}, {b.data(), kFfn}, {c.data(), 2 * kFfn}, {e.data(), kFfn}};
  report("swiglu_backward", 6.0 * kRows * kFfn, [&] { cpu::swiglu_backward(unglu, stream); });
  const CrossEntropyForwardArgs loss{kRows, kVocab, DType::F32, {a.data(), kVocab}, ids.data(), statistics.data(), e.data()};
  report("cross_entropy_forward", 1.0 * kRows * kVocab, [&] { cpu::cross_entropy_forward(loss, stream); });
  const CrossEntropyBackwardArgs unloss{kRows, kVocab, DType::F32, {a.data(), kVocab}, ids.data(), e.data(), statistics.data(), {c.data(), kVocab}};
  report("cross_entropy_backward", 2.0 * kRows * kVocab, [&] { cpu::cross_entropy_backward(unloss, stream); });
  report("add", 3 * block, [&] { cpu::add({kRows * kCols, a.data(), b.data(), c.data(), DType::F32}, stream); });
  const TokenRng rng{1, samples.data(), offsets.data(), 0.1};
  report("dropout_add", 3 * block, [&] { cpu::dropout_add({kRows, kCols, a.data(), b.data(), c.data(), DType::F32, rng}, stream); });
  report("sigmoid_gate_forward", 3 * block, [&] {
    cpu::sigmoid_gate_forward({kRows, kCols, DType::F32, {a.data(), kCols}, {b.data(), kCols}, {c.data(), kCols}}, stream);
  });
  report("embedding_forward", 2 * block, [&] {
    cpu::embedding_forward({kRows, kVocab, kCols, ids.data(), a.data(), DType::F32, c.data(), DType::F32}, stream);
  });
  report("embedding_backward", 2 * block, [&] {
    cpu::embedding_backward({kRows, kVocab, kCols, ids.data(), b.data(), DType::F32, c.data(), {}}, stream);
  });
  report("convert_to_bf16", 1.5 * block, [&] {
    cpu::convert({kRows, kCols, {a.data(), kCols}, DType::F32, {c.data(), kCols}, DType::BF16}, stream);
  });
}

}  // namespace

int main(int count, char** values) {
  std::vector<int> threads;
  for (int i = 1; i < count; ++i) threads.push_back(std::max(1, std::atoi(values[i])));
  if (threads.empty()) threads = {1, 2};
  for (const int used : threads) measure(used);
  return 0;
}
