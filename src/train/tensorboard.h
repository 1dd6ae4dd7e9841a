// TensorBoard event files without protobuf: TFRecord framing (length, masked CRC32C, payload, masked CRC32C) around the few Event
// messages that scalars need. Knows nothing of training.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/file.h"

namespace deltron::tensorboard {

std::uint32_t crc32c(std::string_view bytes);         // Castagnoli, reflected
std::uint32_t masked_crc32c(std::string_view bytes);  // rotated and shifted, as TFRecord stores it
std::string record(std::string_view payload);         // framed

using Scalars = std::vector<std::pair<std::string, double>>;  // tag, value (stored as float)

// Encoded Event messages.
std::string version_event(double wall_time);
std::string scalars_event(double wall_time, std::int64_t step, const Scalars& scalars);
// Tells TensorBoard that what earlier files hold from `step` on is superseded.
std::string restart_event(double wall_time, std::int64_t step);

// A new event file in `folder` (made if absent; never an existing file), flushed a record.
class EventFile {
 public:
  // `step`: updates done so far; above 0 a restart is recorded for step + 1.
  EventFile(const std::string& folder, std::int64_t step);
  void write(std::int64_t step, const Scalars& scalars);
  const std::string& path() const { return path_; }

 private:
  void append(const std::string& event);
  std::string path_;
  std::unique_ptr<FileWriter> writer_;
};

}  // namespace deltron::tensorboard
