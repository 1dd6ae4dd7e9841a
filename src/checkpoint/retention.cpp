// See retention.h.
#include "src/checkpoint/retention.h"

#include <algorithm>

namespace deltron {

std::vector<std::int64_t> steps_to_remove(const std::vector<CheckpointSummary>& checkpoints, const RetentionPolicy& policy) {
  std::vector<std::int64_t> steps;
  if (policy.keep_last <= 0) return steps;
  std::vector<const CheckpointSummary*> usable;
  for (const CheckpointSummary& checkpoint : checkpoints) {
    if (checkpoint.usable()) usable.push_back(&checkpoint);
  }
  std::sort(usable.begin(), usable.end(),
            [](const CheckpointSummary* a, const CheckpointSummary* b) { return a->save_number > b->save_number; });
  for (std::size_t i = static_cast<std::size_t>(policy.keep_last); i < usable.size(); ++i) {
    if (policy.keep_every > 0 && usable[i]->step % policy.keep_every == 0) continue;
    steps.push_back(usable[i]->step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<std::int64_t> prune(Disk& disk, const std::string& run, const RetentionPolicy& policy) {
  const std::vector<std::int64_t> steps = steps_to_remove(list_checkpoints(run), policy);
  for (const std::int64_t step : steps) {
    const std::string deleted = join_path(checkpoints_folder(run), kDeletedPrefix + step_name(step));
    disk.rename(checkpoint_path(run, step), deleted);
    disk.sync_folder(checkpoints_folder(run));
    disk.remove(deleted);
  }
  return steps;
}

}  // namespace deltron
