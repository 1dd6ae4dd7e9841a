// `deltron bench step`: whole training steps on planned (fully filled) batches: time, tokens per second, FLOPs, share of the
// ceiling.
#include <algorithm>
#include <chrono>
#include <ostream>

#include <nlohmann/json.hpp>

#include "src/base/cpu_info.h"
#include "src/base/human.h"
#include "src/config/loader.h"
#include "src/model/flops.h"
#include "src/train/capacity.h"
#include "src/train/plan.h"
#include "src/train/reporter.h"
#include "src/train/step.h"
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
    options.flag("--json", json_, "JSON instead of text");
    options.rest("section.key=value", overrides_, false, "overrides of single keys");
  }
  ExitCode run(CommandIo& io) override {
    if (steps_ < 1 || warm_up_ < 0) usage_error(name(), "--steps is at least 1 and --warm-up at least 0");
    const RunConfig config = load_run_config(config_, overrides_);
    require_room(config);
    Session session = make_session(config, true, config.training.device);
    const double ceiling = measure_matmul_ceiling(*session.ctx);
    HostBatch batch = planned_batch(config);
    RngStream random({1, 0, kRngSiteData}, 0);
    for (std::int32_t& id : batch.tokens)
      id = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.model.vocab_size)));
    batch.labels = batch.tokens;
    const std::vector<HostBatch> batches(
        static_cast<std::size_t>(config.training.global_batch_size / config.training.micro_batch_size), batch);
    std::vector<double> seconds;
    for (std::int64_t step = 0; step < warm_up_ + steps_; ++step) {
      const auto start = std::chrono::steady_clock::now();
      train_step(session, batches, 1e-4);
      if (step >= warm_up_) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    const auto tokens = static_cast<double>(config.training.global_batch_size * config.training.seq_length);
    const Plan plan = make_plan(config);
    const double flops = plan.flops_per_token * tokens;
    nlohmann::ordered_json result;
    result["step_ms"] = 1000 * median;
    result["step_ms_fastest"] = 1000 * seconds.front();
    result["step_ms_slowest"] = 1000 * seconds.back();
    result["tokens_per_second"] = tokens / median;
    result["tokens_per_step"] = tokens;
    result["flops_per_step"] = flops;
    result["ceiling_flops"] = ceiling;
    result["mfu"] = flops / median / ceiling;
    result["peak_bytes"] = session.ctx->memory()->stats().peak;
    result["planned_peak_bytes"] = plan.memory.peak;
    result["threads"] = session.ctx->pool().threads();
    result["instruction_set"] = instruction_set();
    result["processor"] = cpu_model_name();
    if (json_) {
      io.out << result.dump(2) << "\n";
      return ExitCode::Done;
    }
    io.out << "step     " << fixed(1000 * median, 1) << " ms (median of " << seconds.size() << "; "
           << fixed(1000 * seconds.front(), 1) << " to " << fixed(1000 * seconds.back(), 1) << ")\n"
           << "speed    " << thousands(static_cast<std::int64_t>(tokens / median)) << " tokens per second\n"
           << "work     " << human_count(flops) << " FLOPs a step, " << human_count(flops / median) << " FLOP/s, "
           << fixed(100 * flops / median / ceiling, 1) << " % of the measured ceiling " << human_count(ceiling) << " FLOP/s\n"
           << "memory   " << human_bytes(static_cast<std::uint64_t>(session.ctx->memory()->stats().peak))
           << " at its peak, planned " << human_bytes(static_cast<std::uint64_t>(plan.memory.peak)) << "\n"
           << "machine  " << cpu_model_name() << ", " << session.ctx->pool().threads() << " threads, "
           << instruction_set() << "\n";
    return ExitCode::Done;
  }

 private:
  std::string config_;
  std::int64_t steps_ = 20, warm_up_ = 3;
  bool json_ = false;
  std::vector<std::string> overrides_;
};

}  // namespace

std::unique_ptr<Command> make_bench_step_command() { return std::make_unique<BenchStepCommand>(); }

}  // namespace deltron::tools
