// Runs one command line in this process: exit code, stdout and stderr.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "tools/command_line.h"

namespace deltron::testing {

struct CliResult {
  int code = 0;
  std::string out;
  std::string err;
};

inline CliResult run_cli(const tools::CommandTable& table, const std::vector<std::string>& arguments) {
  std::ostringstream out;
  ::testing::internal::CaptureStderr();
  CliResult result;
  result.code = tools::run_command_line(table, arguments, out);
  result.err = ::testing::internal::GetCapturedStderr();
  result.out = out.str();
  return result;
}

inline CliResult run_cli(const std::vector<std::string>& arguments) { return run_cli(tools::all_commands(), arguments); }

}  // namespace deltron::testing
