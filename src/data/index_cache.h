// The sample index on disk: built once by one process, mapped by all. Owns the cache file's layout (docs/data_format.md).
// A damaged file is rebuilt and said so; a builder holds a lock file; files appear by renaming.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/base/file.h"
#include "src/data/indexed_dataset.h"
#include "src/data/split.h"

namespace deltron {

struct GptIndexRequest {
  DocumentRange range;  // documents of the split
  std::int64_t seq_length = 0;
  std::int64_t samples_wanted = -1;  // < 0: one epoch
  std::uint32_t seed = 0;
  std::string cache_folder;  // empty: build in memory
};

// A sample index, mapped from the cache or held in memory.
class CachedGptIndex {
 public:
  static CachedGptIndex open(const IndexedDataset& dataset, const GptIndexRequest& request);

  std::int64_t num_samples() const { return samples_; }
  std::int32_t document(std::int64_t position) const { return documents_[position]; }
  std::int64_t start_position(std::int64_t i) const { return starts_[2 * i]; }
  std::int64_t start_offset(std::int64_t i) const { return starts_[2 * i + 1]; }
  std::int64_t shuffled(std::int64_t sample) const { return shuffle_[sample]; }
  std::int64_t num_positions() const { return positions_; }

  const std::string& path() const { return path_; }  // empty: memory only
  const std::string& key() const { return key_; }
  bool was_cached() const { return was_cached_; }
  double seconds() const { return seconds_; }

 private:
  CachedGptIndex() = default;
  void point_into(const std::uint8_t* data);

  std::shared_ptr<const void> file_;  // keeps the map or the memory alive
  const std::int32_t* documents_ = nullptr;
  const std::int64_t* starts_ = nullptr;
  const std::int64_t* shuffle_ = nullptr;
  std::int64_t positions_ = 0;
  std::int64_t samples_ = 0;
  std::string path_;
  std::string key_;
  bool was_cached_ = false;
  double seconds_ = 0;
};

}  // namespace deltron
