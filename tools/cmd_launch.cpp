// `deltron launch`: one process of this binary for each rank of this node, with the variables by which ranks find each other.
#include <charconv>
#include <cstdlib>

#include <sys/stat.h>
#include <unistd.h>

#include "src/base/signals.h"
#include "tools/command.h"
#include "tools/launch/plan.h"
#include "tools/launch/signal_queue.h"
#include "tools/launch/supervise.h"

namespace deltron::tools {
namespace {

// The file of this process; its entry in /proc where that was replaced meanwhile.
std::string own_program() {
  const std::string entry = "/proc/self/exe";
  char path[4096];
  const ssize_t length = readlink(entry.c_str(), path, sizeof(path));
  struct stat named{}, own{};
  if (length <= 0 || length >= static_cast<ssize_t>(sizeof(path))) return entry;
  const std::string target(path, static_cast<std::size_t>(length));
  const bool same = stat(target.c_str(), &named) == 0 && stat(entry.c_str(), &own) == 0 && named.st_ino == own.st_ino && named.st_dev == own.st_dev;
  return same ? target : entry;
}

class LaunchCommand : public Command {
 public:
  std::string name() const override { return "launch"; }
  std::string summary() const override { return "runs a command as several ranks: a process each, on one node or several"; }
  std::string examples() const override {
    return "  deltron launch --nproc-per-node gpu train -c configs/kjv_tiny.yaml\n"
           "  deltron launch --nproc-per-node 2 -- train -c configs/kjv_tiny.yaml training.device=cpu\n"
           "  deltron launch --nproc-per-node 8 --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 train -c configs/kjv_tiny.yaml\n"
           "\n"
           "Other launchers do as well, for they set the same variables or their own:\n"
           "  torchrun --no-python --nproc-per-node 8 deltron train -c configs/kjv_tiny.yaml\n"
           "  mpirun -np 8 deltron train -c configs/kjv_tiny.yaml\n"
           "\n"
           "Each line of output is marked with its rank. SIGTERM, SIGINT, SIGUSR1 and SIGHUP are passed on. When a rank fails the others\n"
           "are ended, and the report names the one that failed first; its exit code is the launcher's (128 + n for signal n).\n"
           "75: stopped and saved, the same command line goes on.\n";
  }
  void declare(OptionSet& options) override {
    options.value("--nproc-per-node", launch_.ranks_per_node, "N or gpu", "ranks on this node; gpu: one for each visible GPU");
    options.value("--nnodes", launch_.nodes, "M", "nodes, each with a launcher of its own (1)");
    options.value("--node-rank", launch_.node_rank, "R", "which of them this is, from 0");
    options.value("--master-addr", launch_.master_address, "A", "address of node 0 (this machine's own, for one node)");
    options.value("--master-port", launch_.master_port, "P", "a free port there (chosen, for one node)");
    options.value("--job-id", launch_.job_id, "ID", "the same on all nodes, another for each job (derived from address and port)");
    options.hidden_value("--program", program_);
    options.hidden_value("--grace", grace_);
    options.tail("command", launch_.command, "a command of deltron with its options; '--' may stand before it");
    options.require("--nproc-per-node");
  }
  ExitCode run(CommandIo& io) override {
    const char* outer = std::getenv("DELTRON_LOCAL_RANK");
    if (outer != nullptr) usage_error("launch", "this process is itself a rank (DELTRON_LOCAL_RANK is " + std::string(outer) + ")", "launch once");
    if (launch_.command.empty() && program_.empty()) usage_error("launch", "COMMAND is missing", "for example: train -c FILE");
    if (program_.empty() && first_word() == "launch") usage_error("launch", "launch cannot be launched", "name the command that the ranks run");
    poll_stop("launch");
    SignalQueue signals;  // before anything that may start threads
    const LaunchPlan plan = make_launch_plan(launch_);
    LaunchProgram program{program_.empty() ? own_program() : program_, launch_.command, program_.empty()};
    program.arguments.insert(program.arguments.begin(), program_.empty() ? "deltron" : program_);
    return supervise(plan, program, waits(), signals, io.quiet);
  }

 private:
  // The launched command's name, behind options of `deltron` itself.
  std::string first_word() const {
    for (const std::string& word : launch_.command) {
      if (word.empty() || word[0] != '-') return word;
    }
    return "";
  }

  LaunchWaits waits() const {
    LaunchWaits waits;
    if (grace_.empty()) return waits;
    double seconds = 0;
    const auto [stop, fault] = std::from_chars(grace_.data(), grace_.data() + grace_.size(), seconds);
    if (fault != std::errc() || stop != grace_.data() + grace_.size() || !(seconds >= 0)) usage_error("launch", "--grace is '" + grace_ + "'");
    return {seconds, 2 * seconds};
  }

  LaunchOptions launch_;
  std::string program_, grace_;  // for tests: what the ranks run instead of this binary, and LaunchWaits::own_end in seconds
};

}  // namespace

std::unique_ptr<Command> make_launch_command() { return std::make_unique<LaunchCommand>(); }

}  // namespace deltron::tools
