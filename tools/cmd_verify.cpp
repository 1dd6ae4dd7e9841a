// `deltron verify`: golden files against our own operations, layers, optimizer and models.
#include "src/base/error.h"
#include "tools/command.h"

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
  ExitCode run(CommandIo&) override { throw Error(ErrorCode::ConfigNotAvailable, ErrorText{"verify of " + path_ + " is not available in this version"}); }

 private:
  std::string path_;
  std::string dtype_ = "fp32";
  std::string device_ = "cpu";
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_verify_command() { return std::make_unique<VerifyCommand>(); }

}  // namespace deltron::tools
