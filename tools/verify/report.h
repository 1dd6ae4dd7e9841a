// What a check of one golden file found, and how findings are shown: a table for people, JSON for programs.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "src/base/exit_code.h"

namespace deltron::tools {

// One expected tensor (or number) against ours.
struct Comparison {
  std::string name;
  double error = 0;  // by `measure`
  double limit = 0;
  std::string measure;  // "rms ratio"; "largest" where everything expected is zero; "relative" for single numbers
  bool passed = false;  // error <= limit and nothing NaN or infinite
};

enum class Verdict { Passed, Failed, Skipped };

struct FileReport {
  std::string path;
  std::string kind;    // "op", "layer", "optimizer", "model"
  std::string dtype;   // of the operands
  std::string kernel;  // that ran
  std::vector<Comparison> comparisons;
  std::string skipped_because;  // set: nothing ran
  std::string error;            // set: the file could not be used
  ExitCode error_code = ExitCode::Done;
  Verdict verdict() const;
};

struct VerifyReport {
  std::string device;
  std::vector<FileReport> files;
  int count(Verdict verdict) const;
};

void print_file(std::ostream& out, const FileReport& file, bool colour);
void print_summary(std::ostream& out, const VerifyReport& report);  // "N passed, M failed, K skipped"
void print_json(std::ostream& out, const VerifyReport& report);

}  // namespace deltron::tools
