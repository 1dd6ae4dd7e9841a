// The checkpoints of one run: names on disk, which are complete, which failed to load, what a crash left behind.
// Owns the folder layout RUN/checkpoints/step_NNNNNNNN (docs/checkpoint_format.md). Knows nothing of models.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/checkpoint/disk.h"
#include "src/checkpoint/manifest.h"

namespace deltron {

std::string checkpoints_folder(const std::string& run);
std::string step_name(std::int64_t step);  // "step_00000100"
std::optional<std::int64_t> step_of_name(const std::string& name);
std::string checkpoint_path(const std::string& run, std::int64_t step);

struct CheckpointSummary {
  std::int64_t step = 0;
  std::string path;
  bool complete = false;  // manifest intact, every file there with its size (content is checked by verify_checkpoint)
  bool failed = false;    // marked: failed to load or to verify
  bool latest = false;    // the pointer names it
  std::string reason;     // why not complete, or why marked
  std::uint64_t bytes = 0;
  std::int64_t save_number = 0;
  std::int64_t seconds_since = 0;
  bool usable() const { return complete && !failed; }
};

// Reads and checks RUN/checkpoints/step_X/manifest.json.
Manifest read_manifest(const std::string& path);
// Ascending by step. A run without checkpoints gives an empty list.
std::vector<CheckpointSummary> list_checkpoints(const std::string& run);
// The usable one that was written last (largest save number).
std::optional<CheckpointSummary> newest_complete(const std::vector<CheckpointSummary>& checkpoints);
std::string newest_complete_text(const std::vector<CheckpointSummary>& checkpoints);  // "newest complete: step 400"

// Step that the pointer file names, if it can be read.
std::optional<std::int64_t> latest_step(const std::string& run);
void move_latest(Disk& disk, const std::string& run, std::int64_t step);

// Remembers that this very checkpoint (by its manifest hash) is not to be chosen by itself again; one written later under the same
// step is not concerned.
void mark_failed(const std::string& run, std::int64_t step, const std::string& reason, WriteObserver* observer = nullptr);

// What a crash left behind: removes temporary folders, finishes or undoes a replacement. Returns what it did, a line each.
// For the start of a run and before a save; no other process may be writing.
std::vector<std::string> clean_stale(const std::string& run);
std::vector<std::string> clean_stale(Disk& disk, const std::string& run);

// Prefixes of names that clean_stale handles.
inline constexpr const char* kTemporaryPrefix = ".tmp-";
inline constexpr const char* kReplacedPrefix = ".old-";
inline constexpr const char* kDeletedPrefix = ".del-";
inline constexpr const char* kFailedPrefix = ".failed-";
inline constexpr const char* kLatestFile = "latest";

}  // namespace deltron
