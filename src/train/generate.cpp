// See generate.h.
#include "src/train/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "src/base/rng.h"
#include "src/base/signals.h"

namespace deltron {

std::int32_t sample_token(const std::vector<double>& logits, const GenerateOptions& options, double uniform) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (options.temperature == 0) return order.front();
  if (options.top_k > 0 && static_cast<std::size_t>(options.top_k) < order.size()) order.resize(static_cast<std::size_t>(options.top_k));
  std::vector<double> weights;
  double total = 0;
  const double top = logits[static_cast<std::size_t>(order.front())];
  for (std::int32_t id : order) {
    weights.push_back(std::exp((logits[static_cast<std::size_t>(id)] - top) / options.temperature));
    total += weights.back();
  }
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options.top_p * total)) kept += weights[count++];
  double place = uniform * kept;
  for (std::size_t i = 0; i < count; ++i) {
    place -= weights[i];
    if (place < 0) return order[i];
  }
  return order[count - 1];
}

GenerateReport generate(Session& session, std::vector<std::int32_t>& tokens, const GenerateOptions& options,
                        const std::function<void(std::int32_t)>& emit) {
  DELTRON_CHECK(!tokens.empty(), "generation starts from at least one token");
  Context& ctx = *session.ctx;
  RngStream stream({options.seed, 0, kRngSiteSampling}, 0);
  GenerateReport report;
  report.prompt_tokens = static_cast<std::int64_t>(tokens.size());
  DecodeCache cache;
  std::vector<std::int32_t> next = tokens;
  auto start = std::chrono::steady_clock::now();
  const auto lap = [&start] {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - start).count();
    start = now;
    return seconds;
  };
  while (report.drawn < options.max_tokens) {
    poll_stop("generation");
    const std::vector<double> logits = to_doubles(ctx, session.model->next_logits(ctx, next, cache));
    if (report.drawn == 0) report.prompt_seconds = lap();
    const std::int32_t id = sample_token(logits, options, stream.uniform());
    report.drawn++;
    report.ended = id == options.end_token;
    if (report.ended) break;
    tokens.push_back(id);
    emit(id);
    next = {id};
  }
  report.seconds = lap();
  return report;
}

}  // namespace deltron
