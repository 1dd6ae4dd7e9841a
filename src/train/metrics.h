// metrics.jsonl: one object a line, append-only, flushed a line. JSON has no NaN: such values are null, with "nonfinite": true.
// A full disk costs lines, never the training: what could not be written whole is cut off again, with one warning.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "src/base/file.h"

namespace deltron {

class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path);  // appends; half a line that a crash left at the end is cut off
  void write(nlohmann::ordered_json line);        // adds "time" (unix seconds)

 private:
  void open();
  std::string path_;
  std::int64_t good_bytes_ = 0;  // whole lines
  std::unique_ptr<FileWriter> writer_;
  bool warned_ = false;
};

// Is there a line with this "event" and "step"? False where the file cannot be read.
bool metrics_have(const std::string& path, const std::string& event, std::int64_t step);

}  // namespace deltron
