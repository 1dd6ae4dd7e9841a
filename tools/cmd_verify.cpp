// `deltron verify`: golden files against our own operations, layers, optimizer and models.
#include "tools/command.h"
#include "tools/verify/verify.h"

namespace deltron::tools {
namespace {

class VerifyCommand : public Command {
 public:
  std::string name() const override { return "verify"; }
  std::string summary() const override { return "compare golden files with our operations, layers, optimizer and models"; }
  std::string examples() const override {
    return "  deltron verify tests/golden\n"
           "  deltron verify tests/golden/op_gdn_basic.safetensors --dtype bf16\n"
           "  deltron verify tests/golden/hf_qwen3_5_tiny --json\n";
  }
  void declare(OptionSet& options) override {
    options.positional("file_or_folder", path_, true, "a golden file, a model folder with config.json, or a folder of both");
    options.choice("--dtype", dtype_, {"fp32", "bf16", "fp16"}, "type of the operands of op_* files [fp32]");
    options.choice("--device", device_, {"cpu", "cuda"}, "device to run on [cpu]");
    options.flag("--json", json_, "one JSON object instead of tables");
  }
  ExitCode run(CommandIo& io) override {
    VerifyOptions options;
    options.path = path_;
    options.dtype = dtype_ == "bf16" ? DType::BF16 : dtype_ == "fp16" ? DType::F16 : DType::F32;
    options.device = device_ == "cuda" ? DeviceKind::Cuda : DeviceKind::Cpu;
    const VerifyReport report = verify(options, [&](const FileReport& file) {
      if (!json_) print_file(io.out, file, io.colour);
    });
    if (json_)
      print_json(io.out, report);
    else
      print_summary(io.out, report);
    return exit_code_of_report(report);
  }

 private:
  std::string path_;
  std::string dtype_ = "fp32";
  std::string device_ = "cpu";
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_verify_command() { return std::make_unique<VerifyCommand>(); }

}  // namespace deltron::tools
