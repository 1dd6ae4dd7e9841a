// See starting_point.h.
#include "src/train/starting_point.h"

#include <filesystem>
#include <system_error>

#include "src/base/file.h"
#include "src/checkpoint/verify.h"

namespace deltron {

CheckpointSummary find_starting_point(const std::string& path) {
  CheckpointSummary found;
  if (file_exists(join_path(path, kManifestFile))) {
    found.path = path;
    found.step = read_manifest(path).step;
  } else {
    const std::vector<CheckpointSummary> checkpoints = list_checkpoints(path);
    const std::optional<CheckpointSummary> newest = newest_complete(checkpoints);
    if (!newest) {
      throw Error(ErrorCode::CheckpointNotFound,
                  ErrorText{"no complete checkpoint", path, checkpoints.empty() ? "" : newest_complete_text(checkpoints),
                            "--load names a run folder or one of its step folders", "'deltron checkpoint list' shows what is there"});
    }
    found = *newest;
  }
  const VerifyReport report = verify_checkpoint(found.path, false);
  if (!report.good()) {
    throw Error(ErrorCode::CheckpointCorrupted,
                ErrorText{"step " + std::to_string(found.step) + " is corrupted", found.path, report.faults.front().file + ": " + report.faults.front().what,
                          "a run begins from a sound checkpoint", "name another step folder"});
  }
  return found;
}

bool belongs_to(const std::string& checkpoint, const std::string& run) {
  std::error_code code;
  const std::filesystem::path folder = std::filesystem::canonical(checkpoint, code);
  return !code && std::filesystem::equivalent(folder.parent_path().parent_path(), run, code);
}

}  // namespace deltron
