// One rank: a child process in a process group of its own, whose output comes through two pipes and that the kernel kills when the
// launcher's main thread is gone.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

namespace deltron::tools {

struct RankProgram {
  std::string path;
  std::vector<std::string> arguments;    // with the program's own name in front
  std::vector<std::string> environment;  // NAME=value
  // The program unblocks the stop signals itself once it can handle them (this binary does): none that comes earlier ends it.
  bool unblocks_stop_signals = false;
};

// How a process ended: one of the two.
struct ProcessEnd {
  int exit_code = 0;
  int signal = 0;
};

class RankProcess {
 public:
  // Starts it; throws ErrorCode::ResourceUnavailable with the system's reason. Standard input is empty.
  explicit RankProcess(const RankProgram& program);
  // Kills what is still running.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // Non-blocking read ends; -1 once closed.
  int output() const { return output_; }
  int errors() const { return errors_; }
  void close_output();
  void close_errors();

  bool running() const { return running_; }
  const ProcessEnd& end() const { return end_; }  // once it no longer runs
  // Looks whether it has ended; what it left running in its group is killed then. True when this call saw the end.
  bool poll_end();
  // To the process alone: it decides what becomes of its own children.
  void signal(int number);
  // To the whole group.
  void kill_group();

 private:
  pid_t pid_ = -1;
  int output_ = -1, errors_ = -1;
  bool running_ = false;
  ProcessEnd end_;
};

}  // namespace deltron::tools
