// See reporter.h.
#include "src/train/reporter.h"

#include <cstdio>

#include "src/base/bfloat16.h"
#include "src/base/human.h"
#include "src/base/rng.h"
#include "src/base/log.h"
#include "src/tensor/ops.h"

namespace deltron {

Phase::Phase(std::string name) : name_(std::move(name)), start_(std::chrono::steady_clock::now()) {}

void Phase::done(const std::string& detail) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::string line = name_;
  line.resize(std::max<std::size_t>(line.size() + 1, 14), ' ');
  log_info(line + fixed(seconds, 2) + " s" + (detail.empty() ? "" : "   " + detail));
}

std::string to_text(const StepLine& line) {
  char lr[32];
  std::snprintf(lr, sizeof(lr), "%.3e", line.lr);
  std::string text = "step " + std::to_string(line.step) + "/" + std::to_string(line.total) + " | tokens " + thousands(line.tokens) + " | loss " +
                     fixed(line.loss, 4) + " | grad norm " + fixed(line.gradient_norm, 3) + " | lr " + lr + " | " + fixed(line.step_ms, 1) +
                     " ms | " + thousands(static_cast<std::int64_t>(line.tokens_per_second)) + " tok/s";
  if (line.mfu > 0) text += " | MFU " + fixed(100 * line.mfu, 1) + " %";
  text += " | mem " + human_bytes(static_cast<std::uint64_t>(line.memory)) + " | ETA " + human_seconds(line.eta_seconds);
  return text;
}

namespace {

// The size and type of a large product: fp32 on the CPU, bf16 on a GPU.
double measure_matmul(Context& ctx) {
  const bool cuda = ctx.device() == DeviceKind::Cuda;
  const std::int64_t n = cuda ? 8192 : 768;
  const DType dtype = cuda ? DType::BF16 : DType::F32;
  const Tensor a = Tensor::zeros(ctx, {n, n}, dtype, "ceiling", MemoryTag::Workspace);
  const Tensor b = Tensor::zeros(ctx, {n, n}, dtype, "ceiling", MemoryTag::Workspace);
  const Tensor c = Tensor::zeros(ctx, {n, n}, dtype, "ceiling", MemoryTag::Workspace);
  if (cuda) {  // zeros draw less power and run faster than any data
    std::vector<bfloat16> values(std::size_t{1} << 19);
    RngStream random({7, 0, kRngSiteData}, 0);
    for (bfloat16& value : values) value = to_bfloat16(static_cast<float>(random.normal()));
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(bfloat16));
    for (const Tensor* tensor : {&a, &b}) {
      for (std::int64_t at = 0; at < tensor->bytes(); at += bytes) ctx.upload(static_cast<char*>(tensor->data()) + at, values.data(), bytes);
    }
    matmul(ctx, a, b, c);  // opens the library
    ctx.synchronize();
  }
  double best = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < 0.1) {
    const auto start = std::chrono::steady_clock::now();
    matmul(ctx, a, b, c);
    ctx.synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const auto size = static_cast<double>(n);
    best = std::max(best, 2.0 * size * size * size / seconds);
  }
  return best;
}

}  // namespace

double measure_matmul_ceiling(Context& ctx) {
  if (ctx.is_meta()) return 0;
  double ceiling = 0;
  try {
    ceiling = measure_matmul(ctx);
  } catch (const Error& error) {  // a tight training.memory_limit_gib leaves no room: then without MFU
    if (error.code() != ErrorCode::OutOfMemory) throw;
  }
  ctx.memory()->release_cached();
  ctx.memory()->reset_peak();
  return ceiling;
}

}  // namespace deltron
