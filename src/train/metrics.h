// metrics.jsonl: one object a line, append-only, flushed a line. JSON has no NaN: such values are null, with "nonfinite": true.
#pragma once

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "src/base/file.h"

namespace deltron {

class MetricsFile {
 public:
  explicit MetricsFile(const std::string& path);  // appends
  void write(nlohmann::ordered_json line);        // adds "time" (unix seconds)

 private:
  std::unique_ptr<FileWriter> writer_;
};

}  // namespace deltron
