// Errors as users see them: what, where, values, rule, fix and a stable code.
// Owns the table of all codes (errors_*.def), from which docs/errors.md is made. Knows nothing of tensors or devices.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "src/base/exit_code.h"

namespace deltron {

enum class ErrorCode : int {
#define DELTRON_ERROR(name, number, exit_code, title, explanation, example, fix) name = number,
#include "src/base/errors_checkpoint.def"
#include "src/base/errors_config.def"
#include "src/base/errors_data.def"
#include "src/base/errors_runtime.def"
#undef DELTRON_ERROR
};

struct ErrorEntry {
  ErrorCode code;
  const char* name;
  ExitCode exit_code;
  const char* title;
  const char* explanation;
  const char* example;
  const char* fix;
};

// Every known error, ascending by code.
const std::vector<ErrorEntry>& error_table();
const ErrorEntry& error_entry(ErrorCode code);
// docs/errors.md
std::string error_reference_markdown();

// The parts of a message; empty parts are left out. `where` is file:line:column, a tensor, a step ...
struct ErrorText {
  std::string what = {};
  std::string where = {};
  std::string values = {};
  std::string rule = {};
  std::string fix = {};
};

// "E104 configs/a.yaml:12:3: unknown key 'x' (values); rule; fix"
std::string format_error(ErrorCode code, const ErrorText& text);

class Error : public std::exception {
 public:
  Error(ErrorCode code, ErrorText text);
  // Several faults found together, each already formatted; `code` decides the exit code.
  static Error together(ErrorCode code, const std::vector<std::string>& formatted);
  ErrorCode code() const { return code_; }
  ExitCode exit_code() const;
  const ErrorText& text() const { return text_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorCode code_;
  ErrorText text_;
  std::string message_;
};

// Stopped by request. Exit code 75 where the command can go on (state saved, or nothing to save yet), else 128 + the signal.
class StopRequested : public std::exception {
 public:
  explicit StopRequested(std::string reason) : reason_(std::move(reason)) {}
  const char* what() const noexcept override { return reason_.c_str(); }

 private:
  std::string reason_;
};

}  // namespace deltron
