// See metrics.h.
#include "src/train/metrics.h"

#include <chrono>
#include <cmath>

namespace deltron {

MetricsFile::MetricsFile(const std::string& path) : writer_(std::make_unique<FileWriter>(path, true)) {}

void MetricsFile::write(nlohmann::ordered_json line) {
  bool nonfinite = false;
  for (auto& [key, value] : line.items()) {
    if (value.is_number_float() && !std::isfinite(value.get<double>())) {
      value = nullptr;
      nonfinite = true;
    }
  }
  if (nonfinite) line["nonfinite"] = true;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  line["time"] = std::chrono::duration<double>(now).count();
  writer_->write(line.dump() + "\n");
  writer_->flush();
}

}  // namespace deltron
