// Writes one checkpoint so that a crash at any moment leaves a complete one: order in docs/checkpoint_format.md.
// Knows nothing of models; tensors come as host views under logical names.
#pragma once

#include <string>
#include <vector>

#include "src/checkpoint/host_array.h"
#include "src/checkpoint/retention.h"

namespace deltron {

// Tensors that share files: "model" gives model.safetensors, or model-00001-of-00002.safetensors ... where it is larger than a
// shard.
struct TensorGroup {
  std::string name;
  std::vector<HostView> tensors;
};

struct CheckpointContent {
  std::int64_t step = 0;
  std::vector<TensorGroup> groups;
  nlohmann::json state = nlohmann::json::object();  // everything else that can change an update
};

struct SaveOptions {
  RetentionPolicy retention = {};
  std::uint64_t shard_bytes = std::uint64_t{4} << 30;
  WriteObserver* observer = nullptr;
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
// new one is verified. After an exception every checkpoint that was complete before still is.
SaveReport save_checkpoint(const std::string& run, const CheckpointContent& content, const SaveOptions& options = {});

}  // namespace deltron
