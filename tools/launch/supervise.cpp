// See supervise.h. One thread, one poll(): signals, the ranks' pipes, our own streams and the deadlines.
#include "tools/launch/supervise.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include <poll.h>
#include <unistd.h>

#include "src/base/log.h"
#include "tools/launch/line_output.h"
#include "tools/launch/rank_process.h"
#include "tools/launch/verdict.h"

namespace deltron::tools {
namespace {

// From the last rank's end to the end of its streams, should a process that left its group keep them open.
constexpr double kDrainSeconds = 1;

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", seconds);
  return text;
}

struct Rank {
  Rank(int number, const std::string& prefix, const RankProgram& program, OutputQueue& queue)
      : rank(number), process(program), output(STDOUT_FILENO, prefix, last, queue), errors(STDERR_FILENO, prefix, last, queue) {}
  int rank;
  RankProcess process;
  LastLines last;
  LineCutter output, errors;
};

class Supervisor {
 public:
  Supervisor(const LaunchPlan& plan, const LaunchProgram& program, const LaunchWaits& waits, SignalQueue& signals, bool quiet)
      : plan_(plan), waits_(waits), signals_(signals), quiet_(quiet) {
    for (int local = 0; local < plan.ranks_per_node; ++local) {
      const int rank = plan.rank(local);
      const RankProgram each{program.path, program.arguments, environment_with(rank_environment(plan, local)), program.unblocks_stop_signals};
      const std::string prefix = plan.world_size() == 1 ? "" : "[" + std::to_string(rank) + "] ";
      ranks_.push_back(std::make_unique<Rank>(rank, prefix, each, queue_));
    }
  }

  ExitCode run() {
    while (!finished()) {
      wait();
      for (int number : signals_.take()) number == SIGCHLD ? look_for_ends() : pass_on(number);
      check_deadlines();
    }
    return report();
  }

 private:
  using Clock = std::chrono::steady_clock;

  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  int running() const {
    return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->process.running(); }));
  }
  bool streams_open() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->process.output() >= 0 || rank->process.errors() >= 0; });
  }
  bool finished() const { return running() == 0 && (abandoned_ || (!streams_open() && queue_.empty())); }

  // While ranks run, our own messages go the way of theirs, so that they never land inside a line.
  void note(const std::string& text) { queue_.add(STDERR_FILENO, "launch: " + text + "\n"); }

  // Until something happens or a deadline is there; moves bytes both ways.
  void wait() {
    std::vector<pollfd> polled = {{signals_.descriptor(), POLLIN, 0}};
    if (!queue_.empty()) polled.push_back({queue_.next_descriptor(), POLLOUT, 0});
    const std::size_t first_pipe = polled.size();
    std::vector<std::pair<Rank*, bool>> sources;  // true: its standard error
    for (const auto& rank : ranks_) {
      for (bool errors : {false, true}) {
        const int end = errors ? rank->process.errors() : rank->process.output();
        if (end < 0 || queue_.full()) continue;
        polled.push_back({end, POLLIN, 0});
        sources.emplace_back(rank.get(), errors);
      }
    }
    const double seconds = deadline() - now();
    const int timeout = std::isinf(seconds) ? -1 : static_cast<int>(std::clamp(std::ceil(seconds * 1000), 0.0, 60000.0));
    if (poll(polled.data(), polled.size(), timeout) <= 0) return;
    if (first_pipe == 2 && polled[1].revents != 0 && !queue_.write_some()) reader_gone();
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (polled[first_pipe + i].revents != 0) read_from(*sources[i].first, sources[i].second);
    }
  }

  void read_from(Rank& rank, bool errors) {
    char bytes[65536];
    const ssize_t got = read(errors ? rank.process.errors() : rank.process.output(), bytes, sizeof(bytes));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    LineCutter& cutter = errors ? rank.errors : rank.output;
    last_bytes_ = now();
    if (got > 0) {
      cutter.add(std::string_view(bytes, static_cast<std::size_t>(got)));
      return;
    }
    cutter.finish();
    errors ? rank.process.close_errors() : rank.process.close_output();
  }

  void look_for_ends() {
    for (const auto& rank : ranks_) {
      if (!rank->process.poll_end()) continue;
      const bool by_launcher = terminated_ || killed_;
      ends_.push_back({rank->rank, rank->process.end(), now(), by_launcher});
      last_bytes_ = now();
      if (by_launcher || failed_at_ < INFINITY || !is_failure(rank->process.end(), forwarded_)) continue;
      failed_at_ = now();
      if (running() > 0) {
        note("rank " + std::to_string(rank->rank) + " ended: " + describe(rank->process.end()) + "; the others have " +
             seconds_text(waits_.own_end) + " to end by themselves");
      }
    }
  }

  void pass_on(int number) {
    const bool urgent = number == SIGTERM || number == SIGINT;
    if (running() == 0) {
      abandoned_ |= urgent;  // nobody reads our output, and somebody wants us gone
      return;
    }
    forwarded_.push_back(number);
    if (urgent && stop_asked_) return kill_all("a second " + signal_text(number));
    stop_asked_ |= urgent;
    send(number);
    if (quiet_) return;
    note(signal_text(number) + " passed on to " + std::to_string(running()) + (running() == 1 ? " rank" : " ranks") +
         (urgent ? "; a second one kills" : ""));
  }

  // A run whose output nobody sees is stopped, as a program of one process would be.
  void reader_gone() {
    note("nobody reads the output any more: SIGTERM to all ranks");
    if (stop_asked_) return;
    stop_asked_ = true;
    forwarded_.push_back(SIGTERM);
    send(SIGTERM);
  }

  void send(int number) {
    for (const auto& rank : ranks_) rank->process.signal(number);
  }

  void kill_all(const std::string& reason) {
    note(reason + ": SIGKILL to " + still_running());
    killed_ = true;
    for (const auto& rank : ranks_) rank->process.kill_group();
  }

  std::string still_running() const {
    std::string text;
    for (const auto& rank : ranks_) {
      if (rank->process.running()) text += (text.empty() ? "" : ", ") + std::to_string(rank->rank);
    }
    return "rank " + text;
  }

  double deadline() const {
    if (running() == 0) return streams_open() ? last_bytes_ + kDrainSeconds : INFINITY;
    if (killed_) return INFINITY;
    return failed_at_ + waits_.own_end + (terminated_ ? waits_.after_terminate : 0);
  }

  void check_deadlines() {
    if (now() < deadline()) return;
    if (running() == 0) {
      if (!queue_.empty()) {
        last_bytes_ = now();  // the streams may be held up by our own
        return;
      }
      for (const auto& rank : ranks_) {
        rank->output.finish();
        rank->errors.finish();
        rank->process.close_output();
        rank->process.close_errors();
      }
    } else if (!terminated_) {
      note("SIGTERM to " + still_running());
      terminated_ = true;
      send(SIGTERM);
    } else {
      kill_all("no end within " + seconds_text(waits_.after_terminate));
    }
  }

  // Nothing is queued any more: plain log lines are safe.
  ExitCode report() const {
    const Verdict verdict = judge(ends_, forwarded_);
    if (verdict.culprit >= 0) {
      const RankEnd& end = ends_[static_cast<std::size_t>(verdict.culprit)];
      std::string text = "rank " + std::to_string(end.rank) + " of " + std::to_string(plan_.world_size()) + " failed first, after " +
                         seconds_text(end.seconds) + ": " + describe(end.end);
      if (plan_.nodes > 1 && end.end.signal == 0 && end.end.exit_code == static_cast<int>(ExitCode::Communication)) {
        text += "; look at the other nodes' output too";
      }
      const auto& lines = ranks_[static_cast<std::size_t>(end.rank - plan_.rank(0))]->last.lines();
      if (plan_.world_size() > 1) {  // a single rank's lines stand just above
        text += lines.empty() ? "; it printed nothing" : "; its last " + std::to_string(lines.size()) + (lines.size() == 1 ? " line:" : " lines:");
        for (const std::string& line : lines) text += "\n  | " + line;
      }
      log_error(text);
    }
    const std::string ranks = plan_.ranks_per_node == 1 ? "1 rank" : std::to_string(plan_.ranks_per_node) + " ranks";
    log_info("launch: " + ranks + (plan_.nodes > 1 ? " of node " + std::to_string(plan_.node_rank) : "") + ", " + seconds_text(now()) +
             ", exit code " + std::to_string(verdict.exit_code));
    return static_cast<ExitCode>(verdict.exit_code);
  }

  const LaunchPlan& plan_;
  const LaunchWaits waits_;
  SignalQueue& signals_;
  const bool quiet_;
  const Clock::time_point start_ = Clock::now();
  OutputQueue queue_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<RankEnd> ends_;  // in their order
  std::vector<int> forwarded_;
  double failed_at_ = INFINITY;  // seconds after the start
  double last_bytes_ = 0;
  bool stop_asked_ = false;  // SIGTERM or SIGINT was passed on
  bool terminated_ = false;  // the others were told to end after a failure
  bool killed_ = false;
  bool abandoned_ = false;
};

}  // namespace

ExitCode supervise(const LaunchPlan& plan, const LaunchProgram& program, const LaunchWaits& waits, SignalQueue& signals, bool quiet) {
  return Supervisor(plan, program, waits, signals, quiet).run();
}

}  // namespace deltron::tools
