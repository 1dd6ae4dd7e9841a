// `deltron train`: a YAML configuration to a trained run.
#include <csignal>

#include "src/base/human.h"
#include "src/base/log.h"
#include "src/config/loader.h"
#include "src/config/validate.h"
#include "src/train/plan.h"
#include "src/train/run_folder.h"
#include "src/train/trainer.h"
#include "tools/command.h"
#include "tools/train_ranks.h"

namespace deltron::tools {
namespace {

class TrainCommand : public Command {
 public:
  std::string name() const override { return "train"; }
  std::string summary() const override { return "train a model from a YAML configuration"; }
  std::string examples() const override {
    return "  deltron train -c configs/kjv_tiny.yaml\n"
           "  deltron train -c configs/kjv_tiny.yaml --minutes 5 checkpoint.save=runs/first\n"
           "  deltron train -c configs/kjv_tiny.yaml optimizer.lr=2e-3 --dry-run\n"
           "  deltron train -c runs/first/config.yaml --resume auto\n"
           "  deltron train -c configs/kjv_tiny.yaml --profile steps=10:12 training.train_iters=12 checkpoint.save=runs/profiled\n"
           "  deltron launch --nproc-per-node 2 train -c configs/kjv_tiny.yaml parallel.tensor_model_parallel_size=2 checkpoint.save=runs/two\n"
           "  deltron train -c configs/kjv_tiny.yaml --load runs/first --weights-only checkpoint.save=runs/second\n";
  }
  void declare(OptionSet& options) override {
    options.value("-c,--config", config_, "FILE", "configuration (docs/config_reference.md)");
    options.require("--config");
    options.value("--minutes", minutes_, "N", "measure the speed first and fix training.train_iters to about N minutes");
    options.flag("--dry-run", dry_run_, "check everything, print the plan, open the data, train nothing");
    options.value("--resume", resume_, "auto|STEP|never", "checkpoint to go on from (checkpoint.resume)");
    options.value("--profile", profile_, "steps=A:B", "record the steps after A up to B: a trace, ranges for nsys and ncu (logging.profile)");
    options.value("--load", load_, "DIR", "begin from a checkpoint of another run: its folder (the newest complete step) or a step folder");
    options.flag("--weights-only", weights_only_, "of --load take the weights alone: step, optimizer and data start anew");
    options.hidden_value("--inject-fault", inject_fault_);  // train_ranks.h
    options.hidden_value("--inject-nan", inject_nan_);  // step=N,param=NAME[,micro_batch=M]
    options.rest("section.key=value", overrides_, false, "overrides of single keys");
  }
  ExitCode run(CommandIo& io) override {
    if (!resume_.empty()) overrides_.push_back("checkpoint.resume=" + resume_);
    if (!profile_.empty()) profile_overrides();
    const bool timed = minutes_ != kNotGiven;
    if (timed && !(minutes_ > 0 && minutes_ <= kMostMinutes)) usage_error(name(), "--minutes must be above 0 and at most 1,000,000");
    if (timed && (!load_.empty() && !weights_only_)) {
      usage_error(name(), "--minutes fits a schedule that begins at step 0, and --load goes on from a later one", "leave one of them out, or add --weights-only");
    }
    for (const std::string& override_text : overrides_) {
      if (timed && override_text.rfind("training.train_iters=", 0) == 0) {
        usage_error(name(), "--minutes fixes training.train_iters, and the command line sets it", "leave one of them out");
      }
    }
    const LoadedConfig loaded = load_config(config_, overrides_);
    require_data(loaded);
    const RunConfig& config = loaded.config;
    TrainRanks job(read_rank_environment(process_environment()));
    validate_or_throw(config, loaded.sources, job.place().world_size);
    if (timed && job.several()) {
      usage_error(name(), "--minutes measures one rank alone, and this is one of " + std::to_string(job.place().world_size), "set training.train_iters");
    }
    if (config.training.device == DeviceKind::Meta && !dry_run_) {
      throw Error(ErrorCode::ConfigNotAvailable, ErrorText{"training.device: meta counts memory and computes nothing", "deltron train", "",
                                                           "a run needs a device that computes", "use 'deltron plan', or training.device=cpu"});
    }
    if (dry_run_ && (timed || weights_only_ || !load_.empty() || !resume_.empty() || !profile_.empty() || !inject_nan_.empty())) {
      usage_error(name(), "--dry-run trains nothing: --minutes, --resume, --load, --weights-only and --profile have no effect with it");
    }
    if (dry_run_) {
      if (!config.checkpoint.save.empty()) require_writable(config.checkpoint.save);
      if (job.place().rank != 0) return ExitCode::Done;
      io.out << to_text(make_plan(config, job.place().world_size));
      const std::int64_t samples = config.training.train_iters * config.training.global_batch_size;
      io.out << "data        " << make_sample_source(data_options(config), Split::Train, samples)->describe() << "\n";
      return ExitCode::Done;
    }
    std::signal(SIGPIPE, SIG_IGN);  // who reads the log may go away; the training goes on
    TrainOptions options;
    options.command = io.arguments;
    options.minutes = timed ? minutes_ : 0;
    options.inject_nan = parse_nan_injection(inject_nan_);
    options.load = load_;
    options.weights_only = weights_only_;
    options.profile = !profile_.empty();
    job.inject_fault(inject_fault_);
    job.meet(config);
    options.ranks = job.ranks();
    TrainOutcome outcome;
    job.run([&] { outcome = train(config, options); });
    if (outcome.stopped && job.place().rank != 0) return ExitCode::StoppedAndSaved;
    if (outcome.stopped) {
      log_warning("stopped by " + outcome.reason + " at step " + std::to_string(outcome.progress.step) +
                  (config.checkpoint.save.empty()
                       ? "; nothing is saved, as checkpoint.save is empty"
                       : "; saved, go on with: deltron train -c " + outcome.config_file));
      return ExitCode::StoppedAndSaved;
    }
    if (job.place().rank != 0) return ExitCode::Done;
    if (outcome.losses.empty()) {
      io.out << "nothing left to train: step " << outcome.progress.step << " of " << config.training.train_iters;
    } else {
      io.out << "trained " << outcome.progress.step << " steps, loss " << fixed(outcome.final_loss, 4);
    }
    if (!config.checkpoint.save.empty()) io.out << ", run folder " << config.checkpoint.save;
    io.out << "\n";
    if (!outcome.profile_file.empty()) io.out << "profile " << outcome.profile_file << "\n";
    return ExitCode::Done;
  }
  bool resumable() const override { return !dry_run_; }

 private:
  // steps=A:B as the keys that it stands for, so that all else is checked with them.
  void profile_overrides() {
    const std::string start = "steps=";
    const std::size_t colon = profile_.find(':');
    const auto digits = [](const std::string& text) {
      return !text.empty() && text.size() <= 10 && text.find_first_not_of("0123456789") == std::string::npos;
    };
    const bool known = profile_.rfind(start, 0) == 0 && colon != std::string::npos;
    const std::string first = known ? profile_.substr(start.size(), colon - start.size()) : "", last = known ? profile_.substr(colon + 1) : "";
    if (!digits(first) || !digits(last)) usage_error(name(), "--profile takes steps=A:B, two step numbers, not '" + profile_ + "'", "write --profile steps=10:12");
    for (const std::string& override_text : overrides_) {
      if (override_text.rfind("logging.profile", 0) == 0) {
        usage_error(name(), "--profile and " + override_text + " name the same keys", "leave one of them out");
      }
    }
    overrides_.insert(overrides_.end(), {"logging.profile=true", "logging.profile_step_start=" + first, "logging.profile_step_end=" + last});
  }

  std::string config_, resume_, load_, profile_, inject_nan_, inject_fault_;
  static constexpr double kNotGiven = -1e300, kMostMinutes = 1e6;
  double minutes_ = kNotGiven;
  bool dry_run_ = false, weights_only_ = false;
  std::vector<std::string> overrides_;
};

}  // namespace

std::unique_ptr<Command> make_train_command() { return std::make_unique<TrainCommand>(); }

}  // namespace deltron::tools
