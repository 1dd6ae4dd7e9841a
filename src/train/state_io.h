// What a checkpoint holds of a run, and the way back: logical weights, optimizer state, and every number that can change an update.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/checkpoint/reader.h"
#include "src/checkpoint/writer.h"
#include "src/train/session.h"

namespace deltron {

// Progress in samples: a sample is one sequence of the data source.
struct TrainProgress {
  std::int64_t step = 0;              // updates done
  std::int64_t consumed_samples = 0;
  std::vector<double> recent_losses = {};  // oldest first; what the loss-spike warning compares with
  // What the data source holds in all: its order is drawn for so many, so a cursor means the same samples only while this stays.
  // 0: not known.
  std::int64_t source_samples = 0;
};

SaveReport save_run(Session& session, const TrainProgress& progress, const std::string& run, WriteObserver* observer = nullptr);

struct LoadedRun {
  TrainProgress progress;
  // Why a continued run cannot repeat the bits of an uninterrupted one (threads, instruction set, ...); empty: it can.
  std::vector<std::string> differences;
};
// Loads weights and, unless `weights_only`, optimizer state and progress. Throws where names or shapes do not fit the model.
LoadedRun load_run(Session& session, const CheckpointReader& reader, bool weights_only);

// Keys of model and training that the bits of an update depend on, with their values, as they are stored and compared.
nlohmann::json update_fingerprint(const Session& session);

}  // namespace deltron
