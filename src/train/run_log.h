// What a run tells while it trains: log lines and the progress bar, metrics.jsonl, TensorBoard's event file. Of several ranks only the first
// tells anything; the others hold an object that is silent. Must not know the loop.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/train/evaluate.h"
#include "src/train/loss_window.h"
#include "src/train/metrics.h"
#include "src/train/reporter.h"
#include "src/train/state_io.h"
#include "src/train/tensorboard.h"

namespace deltron {

class RunLog {
 public:
  // `run`: the run folder, "" for none. `ranks`: of the job.
  RunLog(const RunConfig& config, std::string run, bool speaks, int ranks)
      : config_(config), run_(std::move(run)), speaks_(speaks), ranks_(ranks) {}

  // Opens the files in the run folder; `step`: where the run goes on.
  void open(std::int64_t step);
  void set_ceiling(double flops_per_second) { ceiling_ = flops_per_second; }  // of one rank's device: the base of MFU

  void event(nlohmann::ordered_json line);  // into metrics.jsonl
  // A step that was read; `progress` counts it. `always`: although no log interval ends with it. Every rank calls it, also a silent one.
  void step(const Session& session, const TrainProgress& progress, const StepResult& result, double lr, double seconds, bool always);
  void loss_spike(std::int64_t step, double loss, const LossWindow::Spike& spike);
  void evaluation(const TrainProgress& progress, const std::vector<EvaluationResult>& results);
  void saved(std::int64_t step, const SaveReport& report);
  void end(std::int64_t step, const std::string& reason);

 private:
  using LayerNorms = std::vector<std::pair<std::string, double>>;
  void record(const Session& session, const TrainProgress& progress, const StepLine& line, const LayerNorms& layers, double flops_per_second);
  void write_events(std::int64_t step, const tensorboard::Scalars& scalars);

  const RunConfig& config_;
  std::string run_;
  bool speaks_;
  int ranks_;
  std::optional<MetricsFile> metrics_;
  std::optional<tensorboard::EventFile> events_;
  std::deque<double> recent_;  // seconds of the last steps
  double ceiling_ = 0;
};

}  // namespace deltron
