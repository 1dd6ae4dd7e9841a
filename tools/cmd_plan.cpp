// `deltron plan`: parameters, memory by tag and FLOPs of a configuration, without running it.
#include "src/config/loader.h"
#include "src/config/validate.h"
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
           "  deltron plan -c configs/h200_gdn_500m.yaml --world-size 8 optimizer.use_distributed_optimizer=true training.global_batch_size=64\n"
           "  deltron plan -c configs/kjv_tiny.yaml --json training.micro_batch_size=32 training.global_batch_size=32\n";
  }
  void declare(OptionSet& options) override {
    options.value("-c,--config", config_, "FILE", "configuration");
    options.require("--config");
    options.value("--world-size", world_size_, "N", "ranks of the job: the plan is of one of them [those that hold one copy of the model]");
    options.value("--scaling", scaling_, "N", "predicted step times from --world-size to N ranks (section plan of the configuration)");
    options.flag("--json", json_, "JSON instead of text");
    options.rest("section.key=value", overrides_, false, "overrides of single keys");
  }
  ExitCode run(CommandIo& io) override {
    const LoadedConfig loaded = load_config(config_, overrides_);
    if (world_size_ != kNotGiven && (world_size_ < 1 || world_size_ > kMostRanks)) usage_error(name(), "--world-size must be 1 to 1,000,000");
    const std::int64_t model_ranks = loaded.config.parallel.tensor_model_parallel_size * loaded.config.parallel.context_parallel_size;
    const auto ranks = static_cast<int>(world_size_ != kNotGiven ? world_size_ : model_ranks);
    validate_or_throw(loaded.config, loaded.sources, ranks);
    const Plan plan = make_plan(loaded.config, ranks);
    io.out << (json_ ? to_json(plan) + "\n" : to_text(plan));
    if (scaling_ == kNotGiven) return ExitCode::Done;
    if (json_) usage_error(name(), "--scaling prints a table", "leave --json out");
    if (scaling_ < ranks || scaling_ > kMostRanks) usage_error(name(), "--scaling must be at least --world-size and at most 1,000,000");
    if (plan.step.total() <= 0) usage_error(name(), "--scaling needs plan.achieved_tflops", "set section plan from 'deltron bench step' and the links' speeds");
    io.out << to_text(planned_scaling(loaded.config, ranks, static_cast<int>(scaling_)));
    return ExitCode::Done;
  }

 private:
  static constexpr std::int64_t kNotGiven = -1, kMostRanks = 1000000;
  std::int64_t world_size_ = kNotGiven, scaling_ = kNotGiven;
  std::string config_;
  bool json_ = false;
  std::vector<std::string> overrides_;
};

}  // namespace

std::unique_ptr<Command> make_plan_command() { return std::make_unique<PlanCommand>(); }

}  // namespace deltron::tools
