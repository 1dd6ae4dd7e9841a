// See report.h.
#include "tools/verify/report.h"

#include <algorithm>
#include <cstdio>
#include <ostream>

#include <nlohmann/json.hpp>

namespace deltron::tools {
namespace {

std::string scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2e", value);
  return text;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string tinted(const std::string& text, bool good, bool colour) {
  return colour ? (good ? "\033[32m" : "\033[31m") + text + "\033[0m" : text;
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::Passed:
      return "passed";
    case Verdict::Failed:
      return "failed";
    case Verdict::Skipped:
      return "skipped";
  }
  return "?";
}

}  // namespace

Verdict FileReport::verdict() const {
  if (!skipped_because.empty()) return Verdict::Skipped;
  if (!error.empty() || comparisons.empty()) return Verdict::Failed;
  const bool good = std::all_of(comparisons.begin(), comparisons.end(), [](const Comparison& one) { return one.passed; });
  return good ? Verdict::Passed : Verdict::Failed;
}

int VerifyReport::count(Verdict verdict) const {
  return static_cast<int>(
      std::count_if(files.begin(), files.end(), [&](const FileReport& file) { return file.verdict() == verdict; }));
}

void print_file(std::ostream& out, const FileReport& file, bool colour) {
  const Verdict verdict = file.verdict();
  out << file.path << ": ";
  if (verdict == Verdict::Skipped) {
    out << "skipped: " << file.skipped_because << "\n";
    return;
  }
  out << tinted(verdict_name(verdict), verdict == Verdict::Passed, colour);
  if (!file.error.empty()) {
    out << ": " << file.error << "\n";
    return;
  }
  out << "  (" << file.kind << ", " << file.dtype << ", kernel " << file.kernel << ")\n";
  std::size_t width = 6;
  for (const Comparison& one : file.comparisons) width = std::max(width, one.name.size());
  out << "  " << padded("tensor", width) << "  error     limit     measure    verdict\n";
  for (const Comparison& one : file.comparisons) {
    out << "  " << padded(one.name, width) << "  " << padded(scientific(one.error), 8) << "  " << padded(scientific(one.limit), 8)
        << "  " << padded(one.measure, 9) << "  " << tinted(one.passed ? "ok" : "FAILED", one.passed, colour) << "\n";
  }
}

void print_summary(std::ostream& out, const VerifyReport& report) {
  out << report.count(Verdict::Passed) << " passed, " << report.count(Verdict::Failed) << " failed, "
      << report.count(Verdict::Skipped) << " skipped\n";
}

void print_json(std::ostream& out, const VerifyReport& report) {
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const FileReport& file : report.files) {
    nlohmann::ordered_json entry = {{"path", file.path}, {"verdict", verdict_name(file.verdict())}};
    if (!file.skipped_because.empty()) entry["reason"] = file.skipped_because;
    if (!file.error.empty()) entry["reason"] = file.error;
    if (!file.comparisons.empty()) {
      entry["kind"] = file.kind;
      entry["dtype"] = file.dtype;
      entry["kernel"] = file.kernel;
      for (const Comparison& one : file.comparisons) {  // a NaN becomes null
        entry["tensors"].push_back(
            {{"name", one.name}, {"error", one.error}, {"limit", one.limit}, {"measure", one.measure}, {"passed", one.passed}});
      }
    }
    files.push_back(std::move(entry));
  }
  const nlohmann::ordered_json root = {{"device", report.device},
                                       {"passed", report.count(Verdict::Passed)},
                                       {"failed", report.count(Verdict::Failed)},
                                       {"skipped", report.count(Verdict::Skipped)},
                                       {"files", std::move(files)}};
  out << root.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

}  // namespace deltron::tools
