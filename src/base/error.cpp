// The error table and message layout; see error.h.
#include "src/base/error.h"

#include <algorithm>

namespace deltron {

const std::vector<ErrorEntry>& error_table() {
  static const std::vector<ErrorEntry> table = [] {
    std::vector<ErrorEntry> entries = {
#define DELTRON_ERROR(name, number, exit, title, explanation, example, fix) \
  ErrorEntry{ErrorCode::name, #name, ExitCode::exit, title, explanation, example, fix},
#include "src/base/errors_checkpoint.def"
#include "src/base/errors_config.def"
#include "src/base/errors_data.def"
#include "src/base/errors_runtime.def"
#undef DELTRON_ERROR
    };
    std::sort(entries.begin(), entries.end(),
              [](const ErrorEntry& a, const ErrorEntry& b) { return a.code < b.code; });
    return entries;
  }();
  return table;
}

const ErrorEntry& error_entry(ErrorCode code) {
  for (const ErrorEntry& entry : error_table()) {
    if (entry.code == code) return entry;
  }
  return error_entry(ErrorCode::InternalFault);
}

std::string error_reference_markdown() {
  std::string page =
      "<!-- Made from src/base/errors_*.def; tests/base/base_test.cpp compares. -->\n"
      "# Errors\n\n"
      "Every message begins with a code that keeps its meaning: what is wrong, where, the values met, the rule, and a fix. The exit code of\n"
      "`deltron` follows from the code: 0 done, 2 usage or configuration, 3 data, 4 checkpoint, 5 out of memory, 6 non-finite,\n"
      "7 communication, 8 internal, 75 stopped and saved: the same 'deltron train' goes on from there. Commands that save nothing to go on\n"
      "from (evaluate, generate, data, verify, bench, plan) end a stop request with 128 + the signal: 130 for Ctrl-C, 143 for SIGTERM.\n";
  for (const ErrorEntry& entry : error_table()) {
    const std::string code = "E" + std::to_string(static_cast<int>(entry.code));
    page += "\n## " + code + ": " + entry.title + "\n\n" + entry.explanation + "\n\n```\n" + entry.example + "\n```\n\n" + entry.fix +
            " Exit code " + std::to_string(static_cast<int>(entry.exit_code)) + ".\n";
  }
  return page;
}

std::string format_error(ErrorCode code, const ErrorText& text) {
  std::string message = "E" + std::to_string(static_cast<int>(code)) + " ";
  if (!text.where.empty()) message += text.where + ": ";
  message += text.what;
  if (!text.values.empty()) message += " (" + text.values + ")";
  if (!text.rule.empty()) message += "; rule: " + text.rule;
  if (!text.fix.empty()) message += "; fix: " + text.fix;
  return message;
}

Error::Error(ErrorCode code, ErrorText text)
    : code_(code), text_(std::move(text)), message_(format_error(code, text_)) {}

Error Error::together(ErrorCode code, const std::vector<std::string>& formatted) {
  Error error(code, ErrorText{});
  error.message_.clear();
  for (const std::string& line : formatted) {
    if (!error.message_.empty()) error.message_ += "\n";
    error.message_ += line;
  }
  return error;
}

ExitCode Error::exit_code() const { return error_entry(code_).exit_code; }

}  // namespace deltron
