// See run_log.h.
#include "src/train/run_log.h"

#include "src/base/human.h"
#include "src/base/log.h"
#include "src/base/terminal.h"
#include "src/model/flops.h"
#include "src/train/layer_norms.h"
#include "src/train/run_folder.h"

namespace deltron {

void RunLog::open(std::int64_t step) {
  if (!speaks_) return;
  metrics_.emplace(join_path(run_, kMetricsFile));
  if (config_.logging.tensorboard) events_.emplace(join_path(run_, kTensorboardFolder), step);
}

void RunLog::event(nlohmann::ordered_json line) {
  if (metrics_) metrics_->write(std::move(line));
}

void RunLog::step(const Session& session, const TrainProgress& progress, const StepResult& result, double lr, double seconds, bool always) {
  const bool due = always || progress.step % config_.logging.log_interval == 0 || progress.step == config_.training.train_iters;
  std::vector<std::pair<std::string, double>> layers;
  if (due && config_.logging.log_per_layer_grad_norm) layers = layer_gradient_norms(session, result.parameter_norms);
  if (!speaks_) return;
  recent_.push_back(seconds);
  if (recent_.size() > 50) recent_.pop_front();
  double mean = 0;
  for (double value : recent_) mean += value;
  mean /= static_cast<double>(recent_.size());
  StepLine line;
  line.step = progress.step;
  line.total = config_.training.train_iters;
  line.tokens = progress.consumed_samples * config_.training.seq_length;
  line.loss = result.loss;
  line.gradient_norm = result.gradient_norm;
  line.lr = lr;
  line.step_ms = 1000 * mean;
  line.tokens_per_second = static_cast<double>(result.tokens) / mean;
  const double flops = training_flops_per_token(config_.model).total() * static_cast<double>(result.tokens) + result.attention_flops;
  line.mfu = ceiling_ > 0 ? flops / mean / (ceiling_ * ranks_) : 0;
  line.memory = session.ctx->memory()->stats().peak;
  line.eta_seconds = mean * static_cast<double>(line.total - line.step);
  if (due) {
    log_info(to_text(line));
    record(session, progress, line, layers, flops / mean);
  }
  if (stderr_style().is_tty) {
    const double share = static_cast<double>(line.step) / static_cast<double>(line.total);
    show_progress_line(progress_bar(share, 30) + " " + std::to_string(line.step) + "/" + std::to_string(line.total) + "  loss " +
                       fixed(line.loss, 3) + "  " + thousands(static_cast<std::int64_t>(line.tokens_per_second)) + " tok/s  ETA " +
                       human_seconds(line.eta_seconds));
  }
}

// Into metrics.jsonl and TensorBoard, whose tags are Megatron's.
void RunLog::record(const Session& session, const TrainProgress& progress, const StepLine& line, const LayerNorms& layers, double flops_per_second) {
  nlohmann::ordered_json entry = {{"event", "train"}, {"step", line.step}, {"samples", progress.consumed_samples}, {"tokens", line.tokens},
                                  {"loss", line.loss}, {"grad_norm", line.gradient_norm}, {"lr", line.lr}, {"step_ms", line.step_ms},
                                  {"tok_s", line.tokens_per_second}, {"mfu", line.mfu}, {"mem_bytes", line.memory}};
  for (const auto& [layer, norm] : layers) entry["layer_grad_norms"][layer] = norm;
  event(entry);
  tensorboard::Scalars scalars = {{"lm loss", line.loss}, {"learning-rate", line.lr}, {"grad-norm", line.gradient_norm},
                                  {"batch-size", static_cast<double>(config_.training.global_batch_size)}, {"world-size", static_cast<double>(ranks_)},
                                  {"iteration-time", line.step_ms / 1000}, {"throughput", flops_per_second / ranks_ / 1e12},
                                  {"mem-allocated-bytes", static_cast<double>(session.ctx->memory()->stats().current)},
                                  {"mem-max-allocated-bytes", static_cast<double>(line.memory)}};
  for (const auto& [layer, norm] : layers) scalars.emplace_back("grad-norm/" + layer, norm);
  write_events(line.step, scalars);
  write_events(progress.consumed_samples, {{"lm loss vs samples", line.loss}, {"learning-rate vs samples", line.lr},
                                           {"grad-norm vs samples", line.gradient_norm}});
}

// A full disk ends the event file, not the training.
void RunLog::write_events(std::int64_t step, const tensorboard::Scalars& scalars) {
  if (!events_) return;
  try {
    events_->write(step, scalars);
  } catch (const Error& error) {
    events_.reset();
    log_warning("the event file of TensorBoard ends here: " + error.text().values + "; the training goes on");
  }
}

void RunLog::loss_spike(std::int64_t step, double loss, const LossWindow::Spike& spike) {
  if (!speaks_) return;
  log_warning("loss spike at step " + std::to_string(step) + ": " + fixed(loss, 4) + " is " + fixed(spike.z, 1) +
              " standard deviations above the recent mean " + fixed(spike.mean, 4));
  event({{"event", "loss_spike"}, {"step", step}, {"loss", loss}, {"z", spike.z}, {"mean", spike.mean}, {"deviation", spike.deviation}});
}

void RunLog::evaluation(const TrainProgress& progress, const std::vector<EvaluationResult>& results) {
  if (!speaks_) return;
  for (const EvaluationResult& result : results) {
    log_info("evaluation at step " + std::to_string(progress.step) + ": " + to_text(result));
    event({{"event", "eval"}, {"step", progress.step}, {"name", result.name}, {"val_loss", result.loss()}, {"ppl", result.perplexity()},
           {"accuracy", result.accuracy()},
           {"bits_per_character", result.characters > 0 ? nlohmann::ordered_json(result.bits_per_character()) : nlohmann::ordered_json()},
           {"predictions", result.predictions}});
    // Several data sets: a tag each.
    const std::string tag = "lm loss validation" + (results.size() > 1 ? " (" + result.name + ")" : std::string());
    write_events(progress.step, {{tag, result.loss()}, {tag + " ppl", result.perplexity()}});
    write_events(progress.consumed_samples, {{tag + " vs samples", result.loss()}, {tag + " ppl vs samples", result.perplexity()}});
  }
}

void RunLog::saved(std::int64_t step, const SaveReport& report) {
  if (!speaks_) return;
  std::string line = "saved step " + std::to_string(step) + ": " + human_bytes(report.bytes) + " written in " + fixed(report.write_seconds, 2) +
                     " s, verified in " + fixed(report.verify_seconds, 2) + " s";
  for (std::int64_t removed : report.removed) line += ", removed step " + std::to_string(removed);
  log_info(line);
  event({{"event", "checkpoint"}, {"step", step}, {"path", report.path}, {"bytes", report.bytes}});
}

void RunLog::end(std::int64_t step, const std::string& reason) {
  if (!speaks_) return;
  clear_progress_line();
  event({{"event", "end"}, {"step", step}, {"reason", reason}});
}

}  // namespace deltron
