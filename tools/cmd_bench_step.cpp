// `deltron bench step`: whole training steps on planned (fully filled) batches: time, tokens per second, FLOPs, share of the
// ceiling.
#include <ostream>

#include <nlohmann/json.hpp>

#include "src/base/cpu_info.h"
#include "src/base/human.h"
#include "src/config/loader.h"
#include "src/model/flops.h"
#include "src/train/attention_report.h"
#include "src/train/plan.h"
#include "src/train/reporter.h"
#include "tools/bench/steps.h"
#include "tools/command.h"

namespace deltron::tools {
namespace {

class BenchStepCommand : public Command {
 public:
  std::string name() const override { return "bench step"; }
  std::string summary() const override { return "time whole training steps of a configuration"; }
  std::string examples() const override { return "  deltron bench step -c configs/kjv_tiny.yaml --steps 30\n"; }
  void declare(OptionSet& options) override {
    options.value("-c,--config", config_, "FILE", "configuration");
    options.require("--config");
    options.value("--steps", steps_, "N", "timed steps [20]");
    options.value("--warm-up", warm_up_, "N", "steps before them [3]");
    options.flag("--regions", regions_, "one more step, recorded: where its time goes by phase and region");
    options.flag("--json", json_, "JSON instead of text");
    options.rest("section.key=value", overrides_, false, "overrides of single keys");
  }
  ExitCode run(CommandIo& io) override {
    if (steps_ < 1 || warm_up_ < 0) usage_error(name(), "--steps is at least 1 and --warm-up at least 0");
    const RunConfig config = load_run_config(config_, overrides_);
    StepBench bench(config);
    const double ceiling = measure_matmul_ceiling(bench.ctx());
    const StepRun steps = bench.run(warm_up_, steps_, regions_);
    const double median = steps.seconds.median;
    const auto tokens = static_cast<double>(bench.tokens_per_step());
    const Plan plan = make_plan(config);
    const double flops = plan.flops_per_token * tokens;
    nlohmann::ordered_json result;
    result["step_ms"] = 1000 * median;
    result["step_ms_fastest"] = 1000 * steps.seconds.fastest;
    result["step_ms_slowest"] = 1000 * steps.seconds.slowest;
    result["step_ms_p10"] = 1000 * steps.seconds.p10;
    result["step_ms_p90"] = 1000 * steps.seconds.p90;
    result["tokens_per_second"] = tokens / median;
    result["tokens_per_step"] = tokens;
    result["flops_per_step"] = flops;
    result["ceiling_flops"] = ceiling;
    result["mfu"] = flops / median / ceiling;
    const std::string attention = attention_report(bench.ctx(), config);
    if (!attention.empty()) result["attention"] = attention;
    result["peak_bytes"] = steps.peak_bytes;
    result["planned_peak_bytes"] = plan.memory.peak;
    result["threads"] = bench.ctx().pool().threads();
    result["instruction_set"] = instruction_set();
    result["processor"] = cpu_model_name();
    for (const RangeTotal& total : steps.self_times) {
      result["regions"].push_back({{"phase", total.phase}, {"name", total.name}, {"count", total.count}, {"ms", 1e3 * total.seconds}, {"copy", total.copy}});
    }
    if (json_) {
      io.out << result.dump(2) << "\n";
      return ExitCode::Done;
    }
    io.out << "step     " << fixed(1000 * median, 1) << " ms (median of " << steps.seconds.samples << "; "
           << fixed(1000 * steps.seconds.fastest, 1) << " to " << fixed(1000 * steps.seconds.slowest, 1) << ")\n"
           << "speed    " << thousands(static_cast<std::int64_t>(tokens / median)) << " tokens per second\n"
           << "work     " << human_count(flops) << " FLOPs a step, " << human_count(flops / median) << " FLOP/s, "
           << fixed(100 * flops / median / ceiling, 1) << " % of the measured ceiling " << human_count(ceiling) << " FLOP/s\n"
           << "memory   " << human_bytes(static_cast<std::uint64_t>(steps.peak_bytes))
           << " at its peak, planned " << human_bytes(static_cast<std::uint64_t>(plan.memory.peak)) << "\n"
           << (attention.empty() ? "" : "attention " + attention + "\n") << "machine  " << cpu_model_name() << ", " << bench.ctx().pool().threads() << " threads, "
           << instruction_set() << "\n";
    for (const RangeTotal& total : steps.self_times) {
      if (total.seconds >= 1e-3 * median) io.out << "region   " << total.phase << ", " << total.name << ": " << fixed(1e3 * total.seconds, 2) << " ms\n";
    }
    return ExitCode::Done;
  }

 private:
  std::string config_;
  std::int64_t steps_ = 20, warm_up_ = 3;
  bool json_ = false, regions_ = false;
  std::vector<std::string> overrides_;
};

}  // namespace

std::unique_ptr<Command> make_bench_step_command() { return std::make_unique<BenchStepCommand>(); }

}  // namespace deltron::tools
