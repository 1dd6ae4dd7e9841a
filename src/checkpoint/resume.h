// Chooses the checkpoint that a run resumes from. Rules in docs/checkpoint_format.md. Knows nothing of models or the loop.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/checkpoint/catalog.h"

namespace deltron {

struct ResumeChoice {
  std::optional<CheckpointSummary> checkpoint;  // none: start anew
  std::vector<std::string> notes;               // what was passed over and why; for the log
};

// `request`: "auto", "never" or a step.
// auto: the complete, unmarked one written last; it is verified, and one that fails is marked and the next one taken. None at all:
//   start anew. Only broken ones: an error.
// Both first call clean_stale, so only the process that owns the run may resume; readers use
// newest_complete(list_checkpoints(run)). step: must exist, be complete and verify; the error names the newest complete one.
ResumeChoice resolve_resume(const std::string& run, const std::string& request);

}  // namespace deltron
