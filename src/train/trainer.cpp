// See trainer.h.
#include "src/train/trainer.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <sstream>

#include "src/base/human.h"
#include "src/base/log.h"
#include "src/base/signals.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/resume.h"
#include "src/config/schema.h"
#include "src/optim/schedule.h"
#include "src/train/activation_offload.h"
#include "src/train/attention_report.h"
#include "src/train/capacity.h"
#include "src/train/loss_window.h"
#include "src/train/memory_advice.h"
#include "src/train/metrics.h"
#include "src/train/profile.h"
#include "src/train/run_folder.h"
#include "src/train/run_log.h"
#include "src/train/starting_point.h"
#include "src/train/step_agreement.h"

namespace deltron {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// This rank's micro-batches of the global batch that begins with `first_sample`: every dp-th.
std::vector<HostBatch> own_batches(const BatchLoader& loader, const RunConfig& config, std::int64_t first_sample, const ParallelState& place = {}) {
  std::vector<HostBatch> batches;
  const std::int64_t micro = config.training.micro_batch_size;
  for (std::int64_t i = place.dp_rank(); i < config.training.global_batch_size / micro; i += place.dp()) {
    batches.push_back(loader.batch(first_sample + i * micro));
  }
  return batches;
}

// One run of the loop, with everything that lives as long as it.
class Loop {
 public:
  Loop(RunConfig config, const TrainOptions& options)
      : config_(std::move(config)), options_(options), run_(config_.checkpoint.save), guard_(options.inject_nan), profile_(config_.logging, run_), channel_(options.ranks.control),
        log_(config_, run_, options.ranks.leads(), options.ranks.size()) {}

  TrainOutcome run() {
    start_up();
    try {
      steps();
    } catch (const StopRequested& stop) {
      outcome_.stopped = true;
      outcome_.reason = stop.what();
      settle(progress_.step + 1);
      if (profile_.recording()) end_profile();
    }
    if (!run_.empty() && saved_step_ != progress_.step) save();
    log_.end(progress_.step, outcome_.stopped ? outcome_.reason : "done");
    outcome_.progress = progress_;
    outcome_.memory = session_.ctx->memory()->stats();
    outcome_.host_memory = session_.ctx->host_memory()->stats();
    return outcome_;
  }

 private:
  void start_up() {
    check_request();
    const bool leads = options_.ranks.leads();
    const bool continues = channel_.from_first(!run_.empty() && leads && is_run_folder(run_) ? "continues" : "") == "continues";
    if (continues) fix_iterations_from(read_run_config(run_));
    if (options_.minutes > 0 && !continues) measure_iterations();
    if (!run_.empty() && leads) lock_.emplace(run_);
    std::optional<CheckpointSummary> resumed = agreed_checkpoint(continues);
    poll_stop("start-up");
    if (leads) require_room(config_, options_.ranks);
    Phase model_phase("model");
    session_ = make_session(config_, true, config_.training.device, options_.ranks);
    model_phase.done(thousands(session_.model->parameters().whole_count()) + " parameters, " + std::to_string(session_.ctx->pool().threads()) +
                     " threads, " + instruction_set());
    const std::string attention = attention_report(*session_.ctx, config_);
    if (!attention.empty()) log_info("softmax attention: " + attention);
    if (session_.ctx->pool().threads() > available_cores()) {
      log_warning("training.threads " + std::to_string(session_.ctx->pool().threads()) + " exceeds the " + std::to_string(available_cores()) +
                  " processors that this process may use: the bits of so many threads, but slower than with fewer");
    }
    if (options_.ranks.size() > 1) report_ranks();
    if (config_.optimizer.use_distributed_optimizer && !session_.weight_gather) {
      log_warning("optimizer.use_distributed_optimizer shares nothing: there is one data rank");
    }
    poll_stop("start-up");
    session_.data_content = data_content(config_);
    if (resumed) load(*resumed);
    poll_stop("start-up");
    Phase data_phase("data");
    const std::int64_t samples = config_.training.train_iters * config_.training.global_batch_size;
    if (!leads) channel_.from_first("");  // rank 0 builds the index once, the others find it
    loader_.emplace(make_sample_source(data_options(config_), Split::Train, samples), config_.training.micro_batch_size);
    if (leads) channel_.from_first("data is open");
    data_phase.done(loader_->source().describe());
    poll_stop("start-up");
    note_source(loader_->source().num_samples());
    check_what_is_left();
    report_differences();
    Phase ceiling_phase("ceiling");
    const double ceiling = leads ? measure_matmul_ceiling(*session_.ctx) : 0;
    log_.set_ceiling(ceiling);
    channel_.from_first("measured");  // alone: ranks may share the processor
    ceiling_phase.done(human_count(ceiling) + " FLOP/s matrix products, the base of MFU");
    if (!run_.empty() && leads) {
      const std::vector<std::string> changes = open_run_folder(run_, config_, progress_.step);
      for (const std::string& change : changes) log_info("changed since the run began: " + change);
      outcome_.config_file = join_path(run_, changes.empty() ? kResolvedConfigFile : changed_config_file(progress_.step));
      record_command(run_, options_.command, session_.ctx->pool().threads());
      set_log_file(join_path(run_, "log.txt"));
      const std::string metrics = join_path(run_, kMetricsFile);
      // A stop during an evaluation leaves the step saved and its evaluation unmade.
      owes_evaluation_ = loaded_from_.empty() && progress_.step > 0 && evaluates_at(progress_.step) && !metrics_have(metrics, "eval", progress_.step);
      log_.open(progress_.step);
      log_.event({{"event", "start"}, {"step", progress_.step}, {"consumed_samples", progress_.consumed_samples},
                       {"train_iters", config_.training.train_iters}, {"parameters", session_.model->parameters().whole_count()},
                       {"ranks", options_.ranks.size()},
                       {"threads", session_.ctx->pool().threads()}, {"instruction_set", instruction_set()},
                       {"attention", attention},
                       {"seed", config_.training.seed}, {"loaded", loaded_from_}});
    }
    owes_evaluation_ = channel_.from_first(owes_evaluation_ ? "evaluates" : "") == "evaluates";
  }

  // Which rank runs where, and its place in the grid.
  void report_ranks() {
    const ParallelState& place = parallel_state(*session_.ctx);
    const std::string mine = rank_place_text(session_);
    const std::vector<std::string> all = channel_.exchange(mine);
    log_info(std::to_string(options_.ranks.size()) + " ranks (" + options_.ranks.launcher + "), " + place.world->backend() + ": tp " +
             std::to_string(place.tp()) + (place.sequence_parallel ? " with sequence parallelism" : "") + " x cp " + std::to_string(place.cp()) + " x dp " +
             std::to_string(place.dp()));
    constexpr std::size_t kMost = 16;
    for (std::size_t rank = 0; rank < std::min(all.size(), kMost); ++rank) log_info("  rank " + std::to_string(rank) + ": " + all[rank]);
    if (all.size() > kMost) log_info("  and " + std::to_string(all.size() - kMost) + " more");
  }

  // What can be refused before anything is read or built.
  void check_request() const {
    if (options_.weights_only && options_.load.empty()) {
      throw Error(ErrorCode::UsageError, ErrorText{"--weights-only has no weights to take", "deltron train", "", "it says what to take of --load DIR",
                                                   "name the run or step folder with --load, and a new folder with checkpoint.save"});
    }
    ResumeRequest request;
    if (!options_.load.empty() && resume_request(config_.checkpoint.resume, request) && request.kind == ResumeRequest::Kind::Step) {
      throw Error(ErrorCode::UsageError, ErrorText{"--load and --resume STEP exclude each other", "deltron train", "resume " + config_.checkpoint.resume,
                                                   "--load begins a run, --resume STEP goes on with its own step", "load a step folder: --load RUN/checkpoints/step_NNNNNNNN"});
    }
    if (!run_.empty()) require_writable(run_);
  }

  // A start that has nothing to do must not look like one that did what was asked for.
  void check_what_is_left() const {
    const std::int64_t total = config_.training.train_iters, injected = options_.inject_nan.step;
    if (progress_.step > total) {
      throw Error(ErrorCode::ConfigInconsistent,
                  ErrorText{"training.train_iters lies before the step that the run has reached", "training.train_iters",
                            std::to_string(total) + ", resumed at step " + std::to_string(progress_.step), "a run never goes back",
                            "raise it, leave it as it was, or go on from an earlier step: --resume STEP"});
    }
    if (injected > 0 && (injected <= progress_.step || injected > total)) {
      throw Error(ErrorCode::UsageError, ErrorText{"this start does not run the step", "--inject-nan", "step " + std::to_string(injected),
                                                   "steps " + std::to_string(progress_.step + 1) + " to " + std::to_string(total), "name one of them"});
    }
    check_profiled_steps();
    if (progress_.step < total || loaded_from_ != "") return;
    std::vector<std::string> changed;
    for (const Field& field : config_fields()) {
      for (const std::string& difference : outcome_.differences) {
        if (difference.rfind(field.name() + ": ", 0) == 0) changed.push_back(difference);
      }
    }
    if (changed.empty()) return;
    std::string values;
    for (const std::string& change : changed) values += (values.empty() ? "" : "; ") + change;
    throw Error(ErrorCode::ConfigNoEffect, ErrorText{"changed keys have no effect: nothing is left to train", run_, values,
                                                     "step " + std::to_string(total) + " of " + std::to_string(total) + " is done",
                                                     "raise training.train_iters, resume an earlier step, or begin a new run with --load"});
  }

  // Asked for on this command line: an error. In the configuration of a run that was stopped and goes on later: worth a word.
  void check_profiled_steps() const {
    const LoggingConfig& logging = config_.logging;
    const std::string window = std::to_string(logging.profile_step_start) + ":" + std::to_string(logging.profile_step_end);
    if (logging.profile && logging.profile_step_end > config_.training.train_iters) {  // fitted by --minutes
      throw Error(ErrorCode::ConfigInconsistent, ErrorText{"the recorded steps lie beyond the run", "logging.profile_step_end",
                                                           window + " of " + std::to_string(config_.training.train_iters) + " steps", "",
                                                           "record earlier steps, or train for longer"});
    }
    if (!profile_.missed(progress_.step)) return;
    if (!options_.profile) {
      log_warning("logging.profile records nothing: this start goes on from step " + std::to_string(progress_.step) + ", behind steps " + window);
      return;
    }
    throw Error(ErrorCode::UsageError, ErrorText{"this start does not run the steps", "--profile", "steps=" + window,
                                                 "it goes on from step " + std::to_string(progress_.step),
                                                 "begin at step " + std::to_string(progress_.step) + " or later"});
  }

  void end_profile() {
    const std::vector<std::string> lines = profile_.end(*session_.ctx, progress_.step, outcome_.profile_file);
    for (const std::string& line : lines) log_info(line);
  }

  // A run keeps the number of steps that it began with, unless the user asks for another one.
  void fix_iterations_from(const RunConfig& before) {
    if (options_.minutes <= 0) return;
    // The whole fitted schedule, so that the same command goes on exactly.
    config_.training.train_iters = before.training.train_iters;
    config_.optimizer.lr_decay_iters = before.optimizer.lr_decay_iters;
    config_.optimizer.lr_warmup_iters = before.optimizer.lr_warmup_iters;
    config_.optimizer.lr_wsd_decay_iters = before.optimizer.lr_wsd_decay_iters;
    log_info("continuing " + run_ + ": training.train_iters " + std::to_string(config_.training.train_iters) + " was fixed when the run began");
  }

  void measure_iterations() {
    Phase phase("speed");
    const double step = measure_step_seconds(config_);
    const double budget = options_.minutes * 60;
    config_.training.train_iters = std::max<std::int64_t>(1, static_cast<std::int64_t>(budget / step));
    fit_schedule();
    phase.done(fixed(1000 * step, 1) + " ms a step: training.train_iters " + std::to_string(config_.training.train_iters) + " for " +
               shortest(options_.minutes) + " minutes");
  }

  // A run that turns out shorter than its schedule keeps a legal one: the warm-up is cut first, then WSD's decay.
  void fit_schedule() {
    OptimizerConfig& optimizer = config_.optimizer;
    const std::int64_t room = std::min(config_.training.train_iters, decay_iters(config_));
    if (optimizer.lr_decay_style != LrDecayStyle::Wsd) {
      optimizer.lr_warmup_iters = std::min(optimizer.lr_warmup_iters, room);
      return;
    }
    optimizer.lr_warmup_iters = std::min(optimizer.lr_warmup_iters, room - 1);
    optimizer.lr_wsd_decay_iters = std::min(optimizer.lr_wsd_decay_iters, decay_iters(config_) - optimizer.lr_warmup_iters);
  }

  // Rank 0 looks, the others are told.
  std::optional<CheckpointSummary> agreed_checkpoint(bool continues) {
    if (options_.ranks.size() == 1) return find_checkpoint(continues);
    std::optional<CheckpointSummary> found;
    if (options_.ranks.leads()) found = find_checkpoint(continues);
    const std::string path = channel_.from_first(found ? found->path : "");
    loaded_from_ = channel_.from_first(loaded_from_);
    if (path.empty() || found) return found;
    CheckpointSummary summary;
    summary.path = path;
    summary.step = read_manifest(path).step;
    return summary;
  }

  std::optional<CheckpointSummary> find_checkpoint(bool continues) {
    if (run_.empty()) return starting_point();
    if (directory_exists(checkpoints_folder(run_))) {
      for (const std::string& line : clean_stale(run_)) log_info(line);
    }
    if (config_.checkpoint.resume == "never" && continues && !list_checkpoints(run_).empty()) {
      throw Error(ErrorCode::RunFolderTaken, ErrorText{"holds a run already", run_, newest_complete_text(list_checkpoints(run_)),
                                                       "resume 'never' starts in a folder without checkpoints",
                                                       "choose another checkpoint.save, or --resume auto"});
    }
    const ResumeChoice choice = resolve_resume(run_, config_.checkpoint.resume);
    for (const std::string& note : choice.notes) log_warning(note);
    if (!choice.checkpoint) return starting_point();
    if (!options_.load.empty()) log_info("the run goes on from its own step " + std::to_string(choice.checkpoint->step) + ": --load was for its beginning");
    return choice.checkpoint;
  }

  std::optional<CheckpointSummary> starting_point() {
    if (options_.load.empty()) return std::nullopt;
    const CheckpointSummary found = find_starting_point(options_.load);
    if (!run_.empty() && belongs_to(found.path, run_)) {
      throw Error(ErrorCode::UsageError, ErrorText{"a run is not loaded into itself", "--load", options_.load, "--load begins a run from another one",
                                                   "choose another checkpoint.save, or --resume STEP"});
    }
    loaded_from_ = found.path;
    return found;
  }

  void load(const CheckpointSummary& checkpoint) {
    Phase phase("resume");
    const CheckpointReader reader(checkpoint.path, false);  // verified when it was chosen
    const bool weights_only = options_.weights_only && !loaded_from_.empty();
    const LoadedRun loaded = load_or_mark(reader, weights_only);
    progress_ = loaded.progress;
    losses_.restore(progress_.recent_losses);
    saved_step_ = loaded_from_.empty() ? progress_.step : -1;
    const std::string of = loaded_from_.empty() ? "" : " of " + loaded_from_;
    phase.done(weights_only ? "weights of step " + std::to_string(checkpoint.step) + of
                            : "step " + std::to_string(progress_.step) + ", data cursor " + thousands(progress_.consumed_samples) +
                                  " samples, hashes verified" + of);
    outcome_.differences = loaded.differences;
  }

  // The order of the samples is drawn for the whole run at once: another number of steps can mean another order.
  void note_source(std::int64_t samples) {
    if (progress_.step > 0 && progress_.source_samples != 0 && progress_.source_samples != samples) {
      outcome_.differences.push_back("order of the data: drawn for " + thousands(progress_.source_samples) + " samples then, " +
                                     thousands(samples) + " now; samples can come twice or not at all around this step");
    }
    progress_.source_samples = samples;
  }

  void report_differences() {
    if (outcome_.differences.empty()) return;
    log_warning("this run cannot repeat the bits of an uninterrupted one:");
    for (const std::string& difference : outcome_.differences) log_warning("  " + difference);
  }

  // A checkpoint that verifies but cannot be read is not tried for ever: it is marked. One that belongs to another model is sound.
  LoadedRun load_or_mark(const CheckpointReader& reader, bool weights_only) {
    try {
      return load_run(session_, reader, weights_only);
    } catch (const Error& error) {
      const bool other_model = error.code() == ErrorCode::CheckpointTensorNames || error.code() == ErrorCode::TensorShapeMismatch;
      if (error.exit_code() == ExitCode::Checkpoint && !other_model && loaded_from_.empty() && options_.ranks.leads()) {
        mark_failed(run_, reader.step(), error.text().what);
        log_warning("step " + std::to_string(reader.step()) + " is marked: --resume auto passes it over from now on");
      }
      throw;
    }
  }

  // The host runs one step ahead: a step's numbers are read when the next one has been launched, or where the run pauses (evaluation,
  // save, end). progress_ counts what was read and found finite.
  void steps() {
    const std::int64_t total = config_.training.train_iters;
    if (owes_evaluation_) run_evaluation();
    auto start = Clock::now();
    while (progress_.step + (ahead_ ? 1 : 0) < total) {
      const std::int64_t step = progress_.step + (ahead_ ? 2 : 1);
      if (options_.ranks.size() == 1) poll_stop("training");
      if (!next_) prepare(step);
      const AgreedStep agreed = next_->agreement ? agreement_.finish() : AgreedStep{next_->counts, ""};
      if (!agreed.stop.empty()) throw StopRequested(agreed.stop);
      const std::vector<HostBatch> batches = std::move(next_->batches);
      next_.reset();
      session_.doing = "step " + std::to_string(step);
      const double lr = learning_rate(config_.optimizer, decay_iters(config_), step - 1);
      if (profile_.begins_with(step)) {
        settle(step - 1);
        profile_.begin(*session_.ctx);
      }
      LaunchedStep launched = [&] {
        const ProfileRange range(*session_.ctx, RangeKind::Step, ("step " + std::to_string(step)).c_str());
        return launch_step(session_, batches, lr, guard_.begin_step(session_, step, batches, agreed.counts), agreed.counts);
      }();
      const bool last = step == total;
      if (options_.ranks.size() > 1 && !last) prepare(step + 1);  // what it needs to know travels while this step runs
      if (outcome_.losses.empty() && !ahead_) after_first_step();
      settle(step);
      ahead_.emplace(Ahead{std::move(launched), lr, 0});
      ahead_->seconds = seconds_since(start);
      const bool evaluates = evaluates_at(step);
      const bool saves = !run_.empty() && is_due(step, config_.checkpoint.save_interval) && !last;
      if (last || evaluates || saves || profile_.ends_with(step) || is_due(step, config_.training.exit_interval)) settle(step);
      if (profile_.ends_with(step)) end_profile();
      if (evaluates) run_evaluation();
      if (saves) save();
      if (!last) exit_if_due(step);
      start = Clock::now();
    }
  }

  // The next step's batches, and with several ranks the question what all of them know of it.
  void prepare(std::int64_t step) {
    const ParallelState& place = parallel_state(*session_.ctx);
    const std::int64_t cursor = progress_.consumed_samples + (step - progress_.step - 1) * config_.training.global_batch_size;
    next_.emplace(Next{own_batches(*loader_, config_, cursor, place), options_.ranks.size() > 1});
    next_->counts = counts_of(config_, next_->batches);
    if (!next_->agreement) return;
    agreement_.begin(next_->counts, place.tp() * place.cp(), time_is_up());
    for (HostBatch& batch : next_->batches) pad_for_ranks(*session_.ctx, batch);
  }

  bool evaluates_at(std::int64_t step) const {
    return is_due(step, config_.training.eval_interval) || (step == config_.training.train_iters && config_.training.eval_interval > 0);
  }

  static bool is_due(std::int64_t step, std::int64_t interval) { return interval > 0 && step % interval == 0; }

  // Reads the step that is ahead, if there is one. `launched`: the newest step that the device was given.
  void settle(std::int64_t launched) {
    if (!ahead_) return;
    const StepResult result = ahead_->step.read();
    if (result.nonfinite) refuse(result, launched);
    progress_.step++;
    progress_.consumed_samples += config_.training.global_batch_size;
    outcome_.losses.push_back(result.loss);
    outcome_.final_loss = result.loss;
    watch_loss(result.loss);
    log_.step(session_, progress_, result, ahead_->lr, ahead_->seconds, outcome_.losses.size() == 1);
    ahead_.reset();
  }

  void exit_if_due(std::int64_t step) const {
    if (is_due(step, config_.training.exit_interval)) throw StopRequested("training.exit_interval");
    if (options_.ranks.size() == 1 && time_is_up()) throw StopRequested("training.exit_duration_in_mins");  // clocks of ranks differ: agreed
  }

  bool time_is_up() const {
    return config_.training.exit_duration_in_mins > 0 && seconds_since(began_) >= 60.0 * config_.training.exit_duration_in_mins;
  }

  void watch_loss(double loss) {
    const std::optional<LossWindow::Spike> spike = losses_.add(loss, config_.logging.loss_spike_z_score);
    progress_.recent_losses = losses_.losses();
    if (spike) log_.loss_spike(progress_.step, loss, *spike);
  }

  void after_first_step() {
    check_wiring();
    require_offload_effect(session_);
    std::istringstream report(offload_report(session_));
    for (std::string line; std::getline(report, line);) log_info(line);
  }

  void check_wiring() {
    const std::vector<std::string> names = untouched_parameters(*session_.model);
    DELTRON_CHECK(names.empty(), "parameter '", names.empty() ? "" : names.front(), "' received no gradient in the first step");
  }

  // The device has left weights and moments as they were before the step that is ahead; the host's counts follow.
  [[noreturn]] void refuse(const StepResult& result, std::int64_t launched) {
    session_.optimizer->set_updates(ahead_->step.updates_before());
    const Error error = guard_.explain(session_, progress_.step + 1, result, run_);
    log_.event({{"event", "nonfinite"}, {"step", progress_.step + 1}, {"launched", launched}, {"loss", result.loss}, {"grad_norm", result.gradient_norm},
                {"message", error.what()}});
    throw error;
  }

  void run_evaluation() {
    session_.doing = "step " + std::to_string(progress_.step);
    session_.says("evaluation");
    EvaluateOptions options;
    options.max_batches = config_.training.eval_iters * (config_.training.global_batch_size / config_.training.micro_batch_size);
    outcome_.evaluation = evaluate(session_, options);
    log_.evaluation(progress_, outcome_.evaluation);
  }

  void save() {
    session_.doing = "step " + std::to_string(progress_.step);
    session_.says("save");
    log_info("saving step " + std::to_string(progress_.step) + " ...");
    const SaveReport report = save_run(session_, progress_, run_);
    saved_step_ = progress_.step;
    log_.saved(progress_.step, report);
  }

  RunConfig config_;
  const TrainOptions& options_;
  std::string run_;
  Session session_;
  std::optional<RunLock> lock_;
  std::optional<BatchLoader> loader_;
  NumberGuard guard_;
  StepProfile profile_;
  HostChannel channel_;
  RunLog log_;
  StepAgreement agreement_{channel_};
  struct Next {
    std::vector<HostBatch> batches;
    bool agreement;      // was asked for
    BatchCounts counts = {};  // of these
  };
  std::optional<Next> next_;  // step, prepared
  struct Ahead {
    LaunchedStep step;
    double lr = 0, seconds = 0;
  };
  std::optional<Ahead> ahead_;  // launched, not read
  LossWindow losses_;
  const Clock::time_point began_ = Clock::now();
  TrainProgress progress_;
  TrainOutcome outcome_;
  std::int64_t saved_step_ = -1;
  bool owes_evaluation_ = false;  // of the step that a stopped run was resumed at
  std::string loaded_from_;  // step folder of another run; "": none
};

}  // namespace

TrainOutcome train(RunConfig config, const TrainOptions& options) {
  const RunConfig asked = config;
  Loop loop(std::move(config), options);
  try {
    return loop.run();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::OutOfMemory) throw;
    const std::int64_t limit = memory_limit_bytes(asked);
    throw with_memory_advice(error, asked, limit > 0 ? limit : machine_memory().total);
  }
}

double measure_step_seconds(const RunConfig& config) {
  Session session = make_session(config, true, config.training.device);
  const std::int64_t batch = config.training.global_batch_size;
  const BatchLoader loader(make_sample_source(data_options(config), Split::Train, 64 * batch), config.training.micro_batch_size);
  for (int i = 0; i < 3; ++i) train_step(session, own_batches(loader, config, 0), 0.0);
  std::vector<double> seconds;
  const auto begin = Clock::now();
  for (std::int64_t i = 0; i < 60 && (i < 5 || seconds_since(begin) < 6.0); ++i) {
    poll_stop("measuring the speed");
    const auto start = Clock::now();
    train_step(session, own_batches(loader, config, i * batch), 0.0);
    seconds.push_back(seconds_since(start));
  }
  double total = 0;
  for (double value : seconds) total += value;
  return total / static_cast<double>(seconds.size());
}

}  // namespace deltron
