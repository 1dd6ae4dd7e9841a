// Which checkpoints are removed after a save, and their removal. Only complete ones are counted or touched.
#pragma once

#include <vector>

#include "src/checkpoint/catalog.h"

namespace deltron {

struct RetentionPolicy {
  std::int64_t keep_last = 0;   // the n written last stay; 0: nothing is ever removed
  std::int64_t keep_every = 0;  // steps that this divides stay for good; 0: none
};

// Steps to remove, ascending. Incomplete and marked ones stay where they are: they are evidence, and they are no copies to count
// on.
std::vector<std::int64_t> steps_to_remove(const std::vector<CheckpointSummary>& checkpoints, const RetentionPolicy& policy);
// Removes them (renamed first, so that no half-removed folder looks like a checkpoint) and returns their steps.
std::vector<std::int64_t> prune(Disk& disk, const std::string& run, const RetentionPolicy& policy);

}  // namespace deltron
