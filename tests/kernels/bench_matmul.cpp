// Speed of the CPU matrix products on the shapes of small hybrid models: GFLOP/s by threads. A program to run by hand, not a test.
//   bench_matmul [threads ...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/cpu/blis_gemm.h"
#include "kernels/isa.h"
#include "kernels/matmul.h"
#include "src/base/thread_pool.h"

namespace {

using deltron::DType;
using deltron::kernels::MatmulArgs;

struct Shape {
  std::int64_t m, n, k;
  char form;  // n: Y = X W;  x: dX = dY W^T;  w: dW = X^T dY
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double measure(const Shape& shape, DType dtype, int threads) {
  deltron::ThreadPool pool(threads);
  deltron::StreamHandle stream;
  stream.pool = &pool;
  const std::size_t size = deltron::dtype_size(dtype);
  std::vector<char> a(static_cast<std::size_t>(shape.m * shape.k) * size), b(static_cast<std::size_t>(shape.k * shape.n) * size);
  std::vector<float> c(static_cast<std::size_t>(shape.m * shape.n));
  MatmulArgs args;
  args.m = shape.m;
  args.n = shape.n;
  args.k = shape.k;
  args.a = a.data();
  args.b = b.data();
  args.c = c.data();
  args.a_dtype = args.b_dtype = dtype;
  args.a_row_stride = shape.form == 'w' ? 1 : shape.k;
  args.a_col_stride = shape.form == 'w' ? shape.m : 1;
  args.b_row_stride = shape.form == 'x' ? 1 : shape.n;
  args.b_col_stride = shape.form == 'x' ? shape.k : 1;
  args.c_row_stride = shape.n;
  args.accumulate = shape.form == 'w';
  std::vector<char> workspace(static_cast<std::size_t>(deltron::kernels::cpu::matmul_workspace_bytes(args, stream)));
  args.workspace = {workspace.data(), static_cast<std::int64_t>(workspace.size())};
  double best = 1e30;
  for (int repeat = 0; repeat < 15; ++repeat) {
    const double start = seconds();
    deltron::kernels::cpu::matmul(args, stream);
    best = std::min(best, seconds() - start);
  }
  return 2e-9 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k) / best;
}

}  // namespace

int main(int count, char** values) {
  std::vector<int> threads;
  for (int i = 1; i < count; ++i) threads.push_back(std::max(1, std::atoi(values[i])));
  if (threads.empty()) threads = {1, 2};
  std::printf("vector kernels %s, BLIS kernels %s\n", deltron::kernels::cpu::instruction_set(), deltron::kernels::cpu::blis_kernels());
  std::vector<Shape> shapes;
  for (const auto& [in, out] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {128, 384}, {128, 136}, {128, 128}, {128, 512}, {256, 128}, {128, 264}, {1024, 1024}}) {
    shapes.push_back({4096, out, in, 'n'});
    shapes.push_back({4096, in, out, 'x'});
    shapes.push_back({in, out, 4096, 'w'});
  }
  shapes.push_back({1024, 1024, 1024, 'n'});
  shapes.push_back({1, 1024, 1024, 'n'});
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const Shape& shape : shapes) {
      std::printf("%s %c %5lld x %5lld x %5lld  GFLOP/s", deltron::dtype_name(dtype), shape.form, static_cast<long long>(shape.m),
                  static_cast<long long>(shape.n), static_cast<long long>(shape.k));
      for (const int used : threads) std::printf("  %d: %6.1f", used, measure(shape, dtype, used));
      std::printf("\n");
    }
  }
  return 0;
}
