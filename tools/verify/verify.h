// Which golden data a path names, and the run over them.
#pragma once

#include <functional>
#include <string>

#include "tools/verify/report.h"
#include "src/base/dtype.h"

namespace deltron::tools {

struct VerifyOptions {
  std::string path;
  DType dtype = DType::F32;  // of the operands of op files; the other kinds have limits for fp32 alone
  DeviceKind device = DeviceKind::Cpu;
};

// `path`: a golden file; a folder with config.json (one model); or a folder: its golden files and the models below it. `on_file`
// sees each report as it is made. What was named itself and cannot be used is an Error; inside a folder it is a failed file.
VerifyReport verify(const VerifyOptions& options, const std::function<void(const FileReport&)>& on_file);

// 0 if all passed. Skipped files count only where the path names nothing else.
ExitCode exit_code_of_report(const VerifyReport& report);

}  // namespace deltron::tools
