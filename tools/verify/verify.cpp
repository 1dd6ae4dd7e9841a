// See verify.h.
#include "tools/verify/verify.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/file.h"
#include "src/base/signals.h"
#include "src/checkpoint/json_strict.h"
#include "src/tensor/context.h"
#include "tools/verify/checks.h"
#include "tools/verify/golden.h"

namespace deltron::tools {
namespace {

bool begins_with(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }
bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool is_model_folder(const std::string& path) { return directory_exists(path) && file_exists(join_path(path, "config.json")); }

// Golden files of `folder` itself, then model folders at any depth below it.
void collect(const std::string& folder, bool top, std::vector<std::string>& paths) {
  const std::vector<std::string> names = list_directory(folder);
  for (const std::string& name : names) {
    if (top && ends_with(name, ".safetensors")) paths.push_back(join_path(folder, name));
  }
  for (const std::string& name : names) {
    const std::string path = join_path(folder, name);
    if (!directory_exists(path)) continue;
    if (is_model_folder(path))
      paths.push_back(path);
    else
      collect(path, false, paths);
  }
}

std::string model_type(const std::string& folder) {
  const std::string path = join_path(folder, "config.json");
  const nlohmann::json config = parse_json_strict(read_file(path), path, ErrorCode::HfConfigInvalid);
  const auto found = config.find("model_type");  // end() where config is no object
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

constexpr const char* kNotAvailable = " is not available in this version";

// Why nothing of this kind can run, or "".
std::string reason_to_skip(const std::string& path, DType dtype) {
  const std::string name = base_name(path);
  if (is_model_folder(path)) {
    if (model_type(path) == "qwen3_next") return std::string("the weight layout of qwen3_next") + kNotAvailable;
    if (!file_exists(join_path(path, "expected.safetensors"))) return "the folder has no expected.safetensors";
  } else if (begins_with(name, "op_gdn_") || begins_with(name, "op_gdn2_")) {
    return "";
  } else if (!begins_with(name, "layer_gdn_") && !begins_with(name, "layer_gdn2_") && name != "optim_adamw.safetensors") {
    return "no kind of golden file has this name (op_gdn_*, op_gdn2_*, layer_gdn_*, layer_gdn2_*, optim_adamw)";
  }
  return dtype == DType::F32 ? "" : std::string("limits exist for fp32 alone, not for ") + dtype_name(dtype);
}

void check(Context& ctx, const std::string& path, DType dtype, FileReport& report) {
  const std::string name = base_name(path);
  if (is_model_folder(path))
    check_model(ctx, path, report);
  else if (begins_with(name, "op_"))
    check_op(ctx, path, dtype, report);
  else if (begins_with(name, "layer_"))
    check_layer(ctx, path, report);
  else
    check_optimizer(ctx, path, report);
}

FileReport run_one(Context& ctx, const std::string& path, DType dtype) {
  FileReport report;
  report.path = path;
  report.skipped_because = reason_to_skip(path, dtype);
  if (report.skipped_because.empty()) check(ctx, path, dtype, report);
  return report;
}

void refuse_unsupported(const VerifyOptions& options) {
  if (options.device == DeviceKind::Cuda) return;
  if (options.dtype == DType::F16) {
    throw Error(ErrorCode::ConfigNotAvailable, ErrorText{"fp16 operands are not supported on the cpu", "--dtype", "",
                                                         "fp32 or bf16 on the cpu", "use --dtype fp32 or bf16"});
  }
}

}  // namespace

VerifyReport verify(const VerifyOptions& options, const std::function<void(const FileReport&)>& on_file) {
  refuse_unsupported(options);
  std::string path = options.path;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!file_exists(path) && !directory_exists(path)) {
    throw Error(ErrorCode::FileNotReadable, ErrorText{"does not exist", path, "", "", "name a golden file or a folder of them"});
  }
  const bool is_folder = directory_exists(path) && !is_model_folder(path);
  std::vector<std::string> paths;
  if (is_folder)
    collect(path, true, paths);
  else
    paths.push_back(path);
  if (paths.empty()) golden_error(path, "the folder holds no golden file", "", "*.safetensors, or model folders with config.json");

  ContextOptions context;
  context.device = options.device;
  Context ctx(context);
  VerifyReport report;
  report.device = device_name(options.device);
  for (const std::string& one : paths) {
    poll_stop("verify");
    FileReport file;
    try {
      file = run_one(ctx, one, options.dtype);
    } catch (const Error& error) {
      if (!is_folder) throw;
      file.path = one;
      file.error = error.what();
      file.error_code = error.exit_code();
    }
    on_file(file);
    report.files.push_back(std::move(file));
  }
  return report;
}

ExitCode exit_code_of_report(const VerifyReport& report) {
  for (const FileReport& file : report.files) {
    if (file.error_code != ExitCode::Done) return file.error_code;
  }
  if (report.count(Verdict::Failed) > 0) return ExitCode::Internal;
  return report.count(Verdict::Passed) > 0 ? ExitCode::Done : ExitCode::Usage;
}

}  // namespace deltron::tools
