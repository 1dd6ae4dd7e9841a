// The launcher's loop: starts the ranks of this node, carries their output, passes signals on, ends all when one fails, and reports.
#pragma once

#include <string>
#include <vector>

#include "src/base/exit_code.h"
#include "tools/launch/plan.h"
#include "tools/launch/signal_queue.h"

namespace deltron::tools {

struct LaunchProgram {
  std::string path;
  std::vector<std::string> arguments;  // with the program's own name in front
  bool unblocks_stop_signals = false;  // see RankProgram
};

// Seconds after the first failure in which the other ranks may end by themselves, and from SIGTERM to SIGKILL for those that did not.
struct LaunchWaits {
  double own_end = 5;
  double after_terminate = 10;
};

// Returns when every rank has ended and its output is written. Throws ErrorCode::ResourceUnavailable where a rank cannot be started; those
// that were are killed. `quiet`: no word of signals passed on.
ExitCode supervise(const LaunchPlan& plan, const LaunchProgram& program, const LaunchWaits& waits, SignalQueue& signals, bool quiet);

}  // namespace deltron::tools
