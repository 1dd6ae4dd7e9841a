// `deltron plan`: parameters, memory by tag and FLOPs of a configuration, without running it.
#include "src/config/loader.h"
#include "src/train/plan.h"
#include "tools/command.h"

namespace deltron::tools {
namespace {

class PlanCommand : public Command {
 public:
  std::string name() const override { return "plan"; }
  std::string summary() const override { return "parameters, memory by tag and FLOPs of a configuration, before it runs"; }
  std::string examples() const override {
    return "  deltron plan -c configs/kjv_tiny.yaml\n"
           "  deltron plan -c configs/kjv_tiny.yaml --json training.micro_batch_size=32 training.global_batch_size=32\n";
  }
  void declare(OptionSet& options) override {
    options.value("-c,--config", config_, "FILE", "configuration");
    options.require("--config");
    options.flag("--json", json_, "JSON instead of text");
    options.rest("section.key=value", overrides_, false, "overrides of single keys");
  }
  ExitCode run(CommandIo& io) override {
    const Plan plan = make_plan(load_run_config(config_, overrides_));
    io.out << (json_ ? to_json(plan) + "\n" : to_text(plan));
    return ExitCode::Done;
  }

 private:
  std::string config_;
  bool json_ = false;
  std::vector<std::string> overrides_;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace deltron::tools
