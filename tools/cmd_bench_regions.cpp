// `deltron bench regions`: whole steps with each recompute region and with offload, beside what bytes and operations predict.
#include <cstdlib>
#include <ostream>

#include "src/config/loader.h"
#include "tools/bench/regions.h"
#include "tools/command.h"

namespace deltron::tools {
namespace {

class BenchRegionsCommand : public Command {
 public:
  std::string name() const override { return "bench regions"; }
  std::string summary() const override { return "what every recompute region and gdn_qkv offload cost and save, in whole steps"; }
  std::string examples() const override {
    return "  deltron bench regions -c configs/kjv_tiny.yaml\n"
           "  deltron bench regions -c configs/h200_gdn_500m.yaml --fraction 0.4 --fraction 0.6 --json\n";
  }
  void declare(OptionSet& options) override {
    options.value("-c,--config", config_, "FILE", "configuration; its own recompute and offload keys are left out");
    options.require("--config");
    options.value("--steps", options_.steps, "N", "timed steps a row [6]");
    options.value("--warm-up", options_.warm_up, "N", "steps before them; offload learns in the first [2]");
    options.values("--fraction", fractions_, "F", "offloaded part of gdn_qkv, several [0.25, 0.5, 0.75, 1]");
    options.value("--min-offloaded-tensor-size", options_.min_offloaded_tensor_size, "N", "elements of the smallest storage that offload moves [1048576]");
    options.flag("--json", json_, "JSON instead of a table");
    options.rest("section.key=value", overrides_, false, "overrides of single keys");
  }
  ExitCode run(CommandIo& io) override {
    if (options_.steps < 1 || options_.warm_up < 1) usage_error(name(), "--steps and --warm-up are at least 1");
    if (options_.min_offloaded_tensor_size < 1) usage_error(name(), "--min-offloaded-tensor-size is at least 1");
    if (!fractions_.empty()) options_.fractions.clear();
    for (const std::string& text : fractions_) {
      char* end = nullptr;
      const double fraction = std::strtod(text.c_str(), &end);
      if (text.empty() || *end != '\0' || !(fraction > 0 && fraction <= 1)) usage_error(name(), "--fraction '" + text + "' is no number above 0 and at most 1");
      options_.fractions.push_back(fraction);
    }
    const RunConfig config = load_run_config(config_, overrides_);
    if (config.training.device == DeviceKind::Meta) usage_error(name(), "training.device meta computes nothing", "add training.device=cpu");
    const RegionTable table = measure_regions(config, options_);
    if (json_) {
      io.out << to_json(table).dump(2) << "\n";
    } else {
      write_table(io.out, table);
    }
    return ExitCode::Done;
  }

 private:
  std::string config_;
  RegionOptions options_;
  std::vector<std::string> fractions_, overrides_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_bench_regions_command() { return std::make_unique<BenchRegionsCommand>(); }

}  // namespace deltron::tools
