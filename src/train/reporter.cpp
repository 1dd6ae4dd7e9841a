// See reporter.h.
#include "src/train/reporter.h"

#include <cstdio>

#include "src/base/human.h"
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

double measure_matmul(Context& ctx) {
  constexpr std::int64_t n = 768;
  const Tensor a = Tensor::zeros(ctx, {n, n}, DType::F32, "ceiling", MemoryTag::Workspace);
  const Tensor b = Tensor::zeros(ctx, {n, n}, DType::F32, "ceiling", MemoryTag::Workspace);
  const Tensor c = Tensor::zeros(ctx, {n, n}, DType::F32, "ceiling", MemoryTag::Workspace);
  double best = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < 0.1) {
    const auto start = std::chrono::steady_clock::now();
    matmul(ctx, a, b, c);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * n * n * n / seconds);
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
