// Time of attention forward and backward at training shapes. A benchmark, not a test: bench_attention [threads [documents length
// dim]].
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/attention.h"
#include "src/base/rng.h"
#include "src/base/thread_pool.h"

namespace deltron {
namespace {

// Memory as the framework's allocators hand it out: on a cache line.
template <class T>
class Aligned {
 public:
  explicit Aligned(std::size_t count)
      : memory_(count * sizeof(T) + 64),
        data_(reinterpret_cast<T*>((reinterpret_cast<std::uintptr_t>(memory_.data()) + 63) / 64 * 64)),
        count_(count) {}
  T* data() { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + count_; }
  std::size_t size() const { return count_; }

 private:
  std::vector<char> memory_;
  T* data_;
  std::size_t count_;
};

template <class F>
double best_ms(const F& function) {
  double best = 1e30;
  for (int round = 0; round < 20; ++round) {
    const auto start = std::chrono::steady_clock::now();
    function();
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

void measure(ThreadPool& pool, std::int64_t documents, std::int64_t length, std::int64_t dim, double drop) {
  const StreamHandle stream{DeviceKind::Cpu, nullptr, &pool};
  const std::int64_t tokens = documents * length, heads = 4, groups = 2;
  std::vector<std::int64_t> offsets, sample(static_cast<std::size_t>(tokens), 1);
  std::vector<std::int32_t> position;
  for (std::int64_t n = 0; n <= documents; ++n) offsets.push_back(n * length);
  for (std::int64_t t = 0; t < tokens; ++t) position.push_back(static_cast<std::int32_t>(t));
  RngStream draw(RngSite{1, 0, kRngSiteData}, 0);
  const auto fill = [&](std::int64_t count) {
    Aligned<float> x(static_cast<std::size_t>(count * dim));
    for (float& value : x) value = static_cast<float>(draw.normal());
    return x;
  };
  Aligned<float> q = fill(tokens * heads), k = fill(tokens * groups), v = fill(tokens * groups), d_o = fill(tokens * heads);
  Aligned<float> o(q.size()), dq(q.size()), dk(k.size()), dv(v.size()), lse(static_cast<std::size_t>(tokens * heads));
  kernels::AttentionForwardArgs f;
  f.tokens = tokens, f.query_heads = heads, f.kv_heads = groups, f.dim = dim, f.scale = 1 / std::sqrt(static_cast<double>(dim));
  f.documents = {documents, offsets.data()};
  f.q = {q.data(), 0, heads * dim, dim}, f.k = {k.data(), 0, groups * dim, dim}, f.v = {v.data(), 0, groups * dim, dim};
  f.o = {o.data(), 0, heads * dim, dim}, f.log_sum_exp = lse.data(), f.rng = {9, sample.data(), position.data(), drop};
  kernels::AttentionBackwardArgs b;
  b.tokens = tokens, b.query_heads = heads, b.kv_heads = groups, b.dim = dim, b.scale = f.scale, b.documents = f.documents;
  b.q = f.q, b.k = f.k, b.v = f.v, b.o = {o.data(), 0, heads * dim, dim}, b.d_o = {d_o.data(), 0, heads * dim, dim};
  b.dq = {dq.data(), 0, heads * dim, dim}, b.dk = {dk.data(), 0, groups * dim, dim}, b.dv = {dv.data(), 0, groups * dim, dim};
  b.log_sum_exp = lse.data(), b.rng = f.rng;
  Aligned<char> forward_space(static_cast<std::size_t>(kernels::cpu::attention_forward_workspace_bytes(f, stream)));
  Aligned<char> backward_space(static_cast<std::size_t>(kernels::cpu::attention_backward_workspace_bytes(b, stream)));
  f.workspace = {forward_space.data(), static_cast<std::int64_t>(forward_space.size())};
  b.workspace = {backward_space.data(), static_cast<std::int64_t>(backward_space.size())};
  const double forward = best_ms([&] { kernels::cpu::attention_forward(f, stream); });
  const double backward = best_ms([&] { kernels::cpu::attention_backward(b, stream); });
  // Useful work: the causal half of the products, 2 forward and 5 backward.
  const double gflop =
      1e-9 * static_cast<double>(documents * heads) * static_cast<double>(length * (length + 1)) * static_cast<double>(dim);
  std::printf(
      "%3lld x %5lld  H %lld/%lld  D %3lld  drop %.1f  threads %d: forward %7.3f ms (%5.0f GFLOP/s)  backward %7.3f ms (%5.0f "
      "GFLOP/s)\n",
      static_cast<long long>(documents), static_cast<long long>(length), static_cast<long long>(heads),
      static_cast<long long>(groups), static_cast<long long>(dim), drop, pool.threads(), forward, 2e3 * gflop / forward, backward,
      5e3 * gflop / backward);
}

}  // namespace
}  // namespace deltron

int main(int argc, char** argv) {
  deltron::ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : 2);
  if (argc == 5) {
    deltron::measure(pool, std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]), 0);
    return 0;
  }
  for (std::int64_t dim : {32, 64, 128}) {
    deltron::measure(pool, 16, 256, dim, 0);
    deltron::measure(pool, 1, 4096, dim, 0);
  }
  deltron::measure(pool, 16, 256, 32, 0.1);
}
