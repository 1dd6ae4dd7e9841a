// See generate.h. Every token is drawn from a forward pass over the whole context.
#include "src/train/generate.h"

#include <algorithm>
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

void generate(Session& session, std::vector<std::int32_t>& tokens, const GenerateOptions& options,
              const std::function<void(std::int32_t)>& emit) {
  DELTRON_CHECK(!tokens.empty(), "generation starts from at least one token");
  Context& ctx = *session.ctx;
  GradModeGuard no_graph(ctx, false);
  RngStream stream({options.seed, 0, kRngSiteSampling}, 0);
  for (std::int64_t drawn = 0; drawn < options.max_tokens; ++drawn) {
    poll_stop("generation");
    const auto length = static_cast<std::int64_t>(tokens.size());
    const std::int64_t begin = std::max<std::int64_t>(0, length - options.max_context);
    HostBatch batch;
    batch.tokens.assign(tokens.begin() + begin, tokens.end());
    batch.labels.assign(batch.tokens.size(), kIgnoreLabel);
    batch.cu_seqlens = {0, length - begin};
    const DeviceBatch device = upload(ctx, batch);
    const Tensor logits = session.model->logits(ctx, device.ids, device.layout, {});
    const std::vector<double> last = to_doubles(ctx, logits.slice(0, logits.size(0) - 1, 1));
    const std::int32_t id = sample_token(last, options, stream.uniform());
    tokens.push_back(id);
    if (id == options.end_token) return;
    emit(id);
  }
}

}  // namespace deltron
