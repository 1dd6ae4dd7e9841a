// `deltron checkpoint list | inspect | verify | reshard`.
#include <ostream>

#include "src/base/file.h"
#include "src/base/human.h"
#include "src/checkpoint/report.h"
#include "src/checkpoint/reshard.h"
#include "src/train/run_folder.h"
#include "tools/command.h"

namespace deltron::tools {
namespace {

// A step folder as given, or the newest complete one of a run folder.
std::string step_folder(const std::string& path) {
  if (file_exists(join_path(path, kManifestFile)) || !directory_exists(checkpoints_folder(path))) return path;
  const auto newest = newest_complete(list_checkpoints(path));
  if (!newest) {
    throw Error(ErrorCode::CheckpointInvalid, ErrorText{"no complete checkpoint", path, "", "a run has at least one",
                                                        "'deltron checkpoint list' shows what is there"});
  }
  return newest->path;
}

class ListCommand : public Command {
 public:
  std::string name() const override { return "checkpoint list"; }
  std::string summary() const override { return "the checkpoints of a run: step, complete or why not, size, age"; }
  std::string examples() const override { return "  deltron checkpoint list runs/first\n"; }
  void declare(OptionSet& options) override {
    options.positional("run", run_, true, "run folder");
    options.flag("--json", json_, "JSON instead of text");
  }
  ExitCode run(CommandIo& io) override {
    if (!directory_exists(run_)) {
      throw Error(ErrorCode::FileNotReadable,
                  ErrorText{"no such folder", run_, "", "a run folder is what checkpoint.save named", "check the path"});
    }
    const auto checkpoints = list_checkpoints(run_);
    io.out << (json_ ? to_json(checkpoints).dump(2) + "\n" : to_text(checkpoints));
    return ExitCode::Done;
  }

 private:
  std::string run_;
  bool json_ = false;
};

class InspectCommand : public Command {
 public:
  std::string name() const override { return "checkpoint inspect"; }
  std::string summary() const override { return "tensors and state of a checkpoint"; }
  std::string examples() const override {
    return "  deltron checkpoint inspect runs/first\n  deltron checkpoint inspect runs/first --json\n";
  }
  void declare(OptionSet& options) override {
    options.positional("path", path_, true, "step folder, or run folder for its newest complete step");
    options.flag("--json", json_, "JSON instead of text");
  }
  ExitCode run(CommandIo& io) override {
    const InspectReport report = inspect_checkpoint(step_folder(path_));
    io.out << (json_ ? to_json(report).dump(2) + "\n" : to_text(report));
    return ExitCode::Done;
  }

 private:
  std::string path_;
  bool json_ = false;
};

class VerifyCheckpointCommand : public Command {
 public:
  std::string name() const override { return "checkpoint verify"; }
  std::string summary() const override { return "re-read a checkpoint and compare every byte with its hashes"; }
  std::string examples() const override { return "  deltron checkpoint verify runs/first\n"; }
  void declare(OptionSet& options) override {
    options.positional("path", path_, true, "step folder, or run folder for its newest complete step");
    options.flag("--json", json_, "JSON instead of text");
  }
  ExitCode run(CommandIo& io) override {
    const VerifyReport report = verify_checkpoint(step_folder(path_));
    io.out << (json_ ? to_json(report).dump(2) + "\n" : to_text(report));
    return report.good() ? ExitCode::Done : ExitCode::Checkpoint;
  }

 private:
  std::string path_;
  bool json_ = false;
};

class ReshardCommand : public Command {
 public:
  std::string name() const override { return "checkpoint reshard"; }
  std::string summary() const override { return "write a checkpoint anew in another number of pieces (training loads any of them)"; }
  std::string examples() const override {
    return "  deltron checkpoint reshard runs/first --output runs/first_whole\n"
           "  deltron checkpoint reshard runs/first/checkpoints/step_00000100 --pieces 8 --output runs/first_in_8\n";
  }
  void declare(OptionSet& options) override {
    options.positional("path", path_, true, "step folder, or run folder for its newest complete step");
    options.value("--output", output_, "DIR", "run folder to write to; it must not hold this step");
    options.require("--output");
    options.value("--pieces", pieces_, "N", "row blocks that each tensor is cut into; 1: whole tensors [1]");
    options.flag("--json", json_, "JSON instead of text");
  }
  ExitCode run(CommandIo& io) override {
    if (pieces_ < 1 || pieces_ > kMostPieces) usage_error(name(), "--pieces is 1 to " + std::to_string(kMostPieces));
    const std::string source = step_folder(path_);
    const SaveReport report = reshard_checkpoint(source, output_, static_cast<int>(pieces_));
    // The run's configuration goes along, so that the new folder can be evaluated and continued like the old one.
    const std::string run = parent_folder(parent_folder(source));
    const std::string config = join_path(run, kResolvedConfigFile), copy = join_path(output_, kResolvedConfigFile);
    if (file_exists(config) && !file_exists(copy)) write_file_atomically(copy, read_file(config));
    if (json_) {
      io.out << nlohmann::json({{"source", source}, {"path", report.path}, {"step", report.step}, {"pieces", pieces_}, {"bytes", report.bytes}}).dump(2) << "\n";
    } else {
      io.out << source << " -> " << report.path << ": " << pieces_ << (pieces_ == 1 ? " piece" : " pieces") << " a tensor, " << human_bytes(report.bytes)
             << ", read back and verified\n";
    }
    return ExitCode::Done;
  }

 private:
  static constexpr std::int64_t kMostPieces = 16384;
  std::string path_, output_;
  std::int64_t pieces_ = 1;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_checkpoint_reshard_command() { return std::make_unique<ReshardCommand>(); }
std::unique_ptr<Command> make_checkpoint_list_command() { return std::make_unique<ListCommand>(); }
std::unique_ptr<Command> make_checkpoint_inspect_command() { return std::make_unique<InspectCommand>(); }
std::unique_ptr<Command> make_checkpoint_verify_command() { return std::make_unique<VerifyCheckpointCommand>(); }

}  // namespace deltron::tools
