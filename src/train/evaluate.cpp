// See evaluate.h.
#include "src/train/evaluate.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "distributed/functions_tensor_parallel.h"
#include "distributed/local_batch.h"
#include "src/base/human.h"
#include "src/train/step_agreement.h"

namespace deltron {
namespace {

// The id with the highest score of each row; ids of equal score: the lowest. `logits` [T, part of the vocabulary].
std::vector<std::int64_t> best_ids(Context& ctx, const Tensor& logits, std::int64_t vocabulary) {
  const VocabularyPart part = vocabulary_part(ctx, vocabulary);
  const std::int64_t rows = logits.size(0), columns = logits.size(1), first = part.whole > 0 ? part.first : 0;
  const std::int64_t known = std::min(columns, vocabulary - first);  // the rest is padding
  std::vector<double> scores;
  const bool in_place = logits.dtype() == DType::F32 && ctx.device() == DeviceKind::Cpu;
  if (!in_place) scores = to_doubles(ctx, logits);
  const float* direct = in_place ? logits.data_as<const float>() : nullptr;
  const auto score = [&](std::int64_t at) { return direct != nullptr ? static_cast<double>(direct[at]) : scores[static_cast<std::size_t>(at)]; };
  std::vector<double> best_score, best_id;
  for (std::int64_t t = 0; t < rows; ++t) {
    std::int64_t best = 0;
    for (std::int64_t id = 1; id < known; ++id) {
      if (score(t * columns + id) > score(t * columns + best)) best = id;
    }
    best_score.push_back(known > 0 ? score(t * columns + best) : -std::numeric_limits<double>::infinity());
    best_id.push_back(static_cast<double>(first + best));
  }
  if (part.whole > 0) {
    const auto gathered = [&](const std::vector<double>& mine, const char* what) {
      return to_doubles(ctx, part.gather(ctx, make_tensor(ctx, {rows}, DType::F64, mine, what), what));
    };
    const std::vector<double> all_scores = gathered(best_score, "best scores"), all_ids = gathered(best_id, "best ids");
    best_score.assign(all_scores.begin(), all_scores.begin() + rows);
    best_id.assign(all_ids.begin(), all_ids.begin() + rows);
    for (std::size_t at = static_cast<std::size_t>(rows); at < all_scores.size(); ++at) {
      const std::size_t t = at % static_cast<std::size_t>(rows);
      if (all_scores[at] > best_score[t]) best_score[t] = all_scores[at], best_id[t] = all_ids[at];
    }
  }
  return {best_id.begin(), best_id.end()};
}

void evaluate_batch(Session& session, HostBatch batch, const EvaluateOptions& options, EvaluationResult& result) {
  Context& ctx = *session.ctx;
  GradModeGuard no_graph(ctx, false);
  pad_for_ranks(ctx, batch);
  const DeviceBatch device = upload(ctx, batch);
  const ForwardMode mode{.training = false, .without_linear_mixers = options.without_linear_mixers};
  const Tensor logits = session.model->logits(ctx, device.ids, device.layout, mode);
  const std::vector<double> losses = to_doubles(ctx, session.model->token_losses(ctx, logits, device.labels));
  const std::vector<std::int64_t> best = best_ids(ctx, logits, session.config.model.vocab_size);
  const std::vector<std::int32_t> labels = local_tokens(ctx, batch.cu_seqlens, batch.labels);
  for (std::size_t t = 0; t < labels.size(); ++t) {
    if (labels[t] == kIgnoreLabel) continue;
    result.nats += losses[t];
    result.predictions++;
    if (best[t] == labels[t]) result.correct++;
  }
}

}  // namespace

double EvaluationResult::perplexity() const { return std::exp(loss()); }
double EvaluationResult::bits_per_character() const {
  return characters > 0 ? nats / std::log(2.0) / static_cast<double>(characters) : 0;
}
double EvaluationResult::bits_per_byte() const { return bytes > 0 ? nats / std::log(2.0) / static_cast<double>(bytes) : 0; }

namespace {

// Batches 0 ... count - 1 of `read`, each on one data-parallel rank. All ranks make equally many rounds, so that a stop on one of them stops
// all at the same place.
template <class Read>
void evaluate_all(Session& session, std::int64_t count, const Read& read, const EvaluateOptions& options, EvaluationResult& result) {
  const ParallelState& place = parallel_state(*session.ctx);
  for (std::int64_t first = 0; first < count; first += place.dp()) {
    agree_on_stop(*session.channel, "evaluation");
    const std::int64_t mine = first + place.dp_rank();
    if (mine < count) evaluate_batch(session, read(mine), options, result);
  }
  if (session.channel->size() == 1) return;
  // Tensor-parallel ranks have all judged the same tokens: one of them counts.
  const double counts = place.tp_rank() == 0 ? 1 : 0;
  session.channel->begin_numbers({counts * result.nats, counts * static_cast<double>(result.predictions), counts * static_cast<double>(result.correct)});
  result.nats = 0;
  result.predictions = result.correct = 0;
  for (const std::vector<double>& rank : session.channel->finish_numbers()) {
    result.nats += rank[0];
    result.predictions += static_cast<std::int64_t>(rank[1]);
    result.correct += static_cast<std::int64_t>(rank[2]);
  }
}

}  // namespace

std::vector<EvaluationResult> evaluate(Session& session, const EvaluateOptions& options) {
  const DataOptions data = data_options(session.config, options.seq_length);
  const std::int64_t max_tokens = std::max(data.seq_length, session.config.training.micro_batch_size * session.config.training.seq_length);
  std::vector<EvaluationResult> results;
  const auto start = std::chrono::steady_clock::now();
  const auto finish = [&](EvaluationResult& result) {
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    results.push_back(result);
  };
  if (session.config.data.synthetic != SyntheticTask::None) {
    EvaluationResult result;
    result.name = "synthetic";
    const std::int64_t batch_size = std::max<std::int64_t>(1, max_tokens / data.seq_length);
    const BatchLoader loader(make_sample_source(data, options.split, options.samples), batch_size);
    const std::int64_t end = options.max_batches > 0 ? std::min(options.samples, options.max_batches * batch_size) : options.samples;
    evaluate_all(session, (end + batch_size - 1) / batch_size, [&](std::int64_t i) { return loader.batch(i * batch_size); }, options, result);
    finish(result);
    return results;
  }
  for (const NamedEvaluation& evaluation : make_evaluation_sources(data, options.split, max_tokens)) {
    EvaluationResult result;
    result.name = evaluation.name;
    const std::int64_t all = evaluation.source->num_batches();
    const std::int64_t batches = options.max_batches > 0 ? std::min(all, options.max_batches) : all;
    evaluate_all(session, batches, [&](std::int64_t i) { return evaluation.source->batch(i); }, options, result);
    if (batches == all) {  // a part of the split has no character count of its own
      result.characters = evaluation.text.characters;
      result.bytes = evaluation.text.bytes;
    }
    finish(result);
  }
  return results;
}

std::string to_text(const EvaluationResult& result) {
  std::string text = result.name + ": loss " + fixed(result.loss(), 4) + " nats per token, perplexity " + fixed(result.perplexity(), 3) +
                     ", top-1 accuracy " + fixed(100 * result.accuracy(), 2) + " %";
  if (result.characters > 0) text += ", " + fixed(result.bits_per_character(), 4) + " bits per character";
  if (result.bytes > 0 && result.bytes != result.characters) text += ", " + fixed(result.bits_per_byte(), 4) + " bits per byte";
  return text + " (" + thousands(result.predictions) + " predictions, " + human_seconds(result.seconds) + ")";
}

}  // namespace deltron
