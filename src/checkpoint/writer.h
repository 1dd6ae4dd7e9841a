// Writes one checkpoint, alone or together with other ranks, so that a crash at any moment leaves a complete one: order in
// docs/checkpoint_format.md. Knows nothing of models; tensors and blocks of them come as host views under logical names.
#pragma once

#include <string>
#include <vector>

#include "src/checkpoint/retention.h"
#include "src/checkpoint/save_group.h"
#include "src/checkpoint/save_parts.h"

namespace deltron {

struct CheckpointContent {
  std::int64_t step = 0;
  std::vector<TensorGroup> groups;                  // of this rank
  nlohmann::json state = nlohmann::json::object();  // everything else that can change an update; rank 0's is written
};

struct SaveOptions {
  RetentionPolicy retention = {};
  std::uint64_t shard_bytes = std::uint64_t{4} << 30;
  WriteObserver* observer = nullptr;
  SaveGroup* ranks = nullptr;  // null: this process alone. The folder must be one that all of them see.
};

struct SaveReport {
  std::string path;
  std::int64_t step = 0;
  std::uint64_t bytes = 0;
  double write_seconds = 0;
  double verify_seconds = 0;
  std::vector<std::int64_t> removed;  // steps pruned
};

// Bytes that a save needs before any older checkpoint is removed.
std::uint64_t bytes_needed(const CheckpointContent& content);
// Throws CheckpointNoSpace before anything is written.
void check_free_space(const std::string& run, const CheckpointContent& content);
// Writes, verifies by reading back, moves the pointer, prunes. A step that exists already is replaced, and removed only when the
// new one is verified. After an exception every checkpoint that was complete before still is. With several ranks all call it; a fault on one
// of them ends the save on all, with that fault.
SaveReport save_checkpoint(const std::string& run, const CheckpointContent& content, const SaveOptions& options = {});

}  // namespace deltron
