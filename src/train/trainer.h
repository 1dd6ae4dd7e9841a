// The training loop: data, steps, evaluation, checkpoints, reports, stop requests. What a step is stands in step.h, what is saved in
// state_io.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/train/evaluate.h"
#include "src/train/number_guard.h"
#include "src/train/session.h"
#include "src/train/state_io.h"

namespace deltron {

struct TrainOptions {
  std::vector<std::string> command;   // recorded in the run folder
  double minutes = 0;                 // > 0: measure the speed first and fix training.train_iters from it
  NanInjection inject_nan = {};       // tests
  bool profile = false;               // --profile: a start that does not run the steps of logging.profile_step_* is refused
  // Another run, or one of its step folders, that a run without checkpoints of its own begins from; "": none. Once it has some, they are
  // what it goes on from, so that the same command line starts and restarts it.
  std::string load = {};
  JobRanks ranks = {};                // of a job of several ranks; they make the same call with the same configuration
  bool weights_only = false;          // of `load` the weights alone: step, data and optimizer start anew
};

struct TrainOutcome {
  TrainProgress progress;
  double final_loss = 0;
  bool stopped = false;               // by a signal or a limit; saved if there is a run folder
  std::string reason;
  std::string config_file;            // of this start, in the run folder; "" without one
  std::vector<double> losses;         // of every step of this call
  std::vector<std::string> differences;  // why a resumed run cannot repeat the bits of an uninterrupted one
  std::vector<EvaluationResult> evaluation;  // the last one
  MemoryStats memory;
  MemoryStats host_memory;            // of offloaded activations
  std::string profile_file;           // the trace of logging.profile; "" where no step was recorded
};

// Trains by `config`. Throws Error for faults; a stop request ends with stopped = true after saving, or, before there is anything to
// save (start-up), with StopRequested.
TrainOutcome train(RunConfig config, const TrainOptions& options);

// Seconds a step takes here, from a few seconds of real steps on a copy that is thrown away.
double measure_step_seconds(const RunConfig& config);

}  // namespace deltron
