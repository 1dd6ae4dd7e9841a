// `--load`: the checkpoint of another run that a new run begins from. Only reads there.
#pragma once

#include <string>

#include "src/checkpoint/catalog.h"

namespace deltron {

// `path`: a step folder, or a run folder for its newest complete step. Verified against its hashes. Throws CheckpointNotFound or
// CheckpointCorrupted.
CheckpointSummary find_starting_point(const std::string& path);

// Does the step folder `checkpoint` belong to the run in `run`?
bool belongs_to(const std::string& checkpoint, const std::string& run);

}  // namespace deltron
