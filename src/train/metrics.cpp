// See metrics.h.
#include "src/train/metrics.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "src/base/log.h"

namespace deltron {

namespace {

void cut(const std::string& path, std::int64_t bytes) {
  std::error_code ignored;  // a file that cannot be cut stays as it is: only a line of text is at stake
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(bytes), ignored);
}

// Bytes up to the last line's end.
std::int64_t whole_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return 0;
  for (std::int64_t at = static_cast<std::int64_t>(file.tellg()); at > 0; --at) {
    file.seekg(at - 1);
    if (file.get() == '\n') return at;
  }
  return 0;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path) : path_(path), good_bytes_(whole_lines(path)) {
  cut(path_, good_bytes_);
  open();
}

void MetricsFile::open() { writer_ = std::make_unique<FileWriter>(path_, true); }

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
  const std::string text = line.dump() + "\n";
  try {
    if (!writer_) open();
    writer_->write(text);
    writer_->flush();
    good_bytes_ += static_cast<std::int64_t>(text.size());
  } catch (const Error& error) {
    writer_.reset();
    cut(path_, good_bytes_);
    if (!warned_) log_warning("lines of " + path_ + " are lost: " + error.text().values + "; the training goes on");
    warned_ = true;
  }
}

bool metrics_have(const std::string& path, const std::string& event, std::int64_t step) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json entry = nlohmann::json::parse(line, nullptr, false);
    if (entry.is_object() && entry.value("event", "") == event && entry.value("step", std::int64_t{-1}) == step) return true;
  }
  return false;
}

}  // namespace deltron
