// What the ends of all ranks mean together: which of them failed first by its own fault, and the launcher's exit code.
#pragma once

#include <string>
#include <vector>

#include "tools/launch/rank_process.h"

namespace deltron::tools {

struct RankEnd {
  int rank = 0;
  ProcessEnd end;
  double seconds = 0;          // after the start
  bool by_launcher = false;    // the launcher had already told it to end because of another rank, or killed it
};

// Ended otherwise than with 0 or 75, and not by one of the signals that the launcher was asked to pass on (nor with 128 + its number).
bool is_failure(const ProcessEnd& end, const std::vector<int>& forwarded);

struct Verdict {
  int exit_code = 0;
  int culprit = -1;  // index into the ends; -1: nobody failed
};

// `ends` in the order in which they happened. Communication failures (exit code 7) follow another rank's end, so that any other failure
// comes before them.
Verdict judge(const std::vector<RankEnd>& ends, const std::vector<int>& forwarded);

std::string signal_text(int number);         // "SIGSEGV"
std::string describe(const ProcessEnd& end);  // "exit code 5 (out of memory)", "SIGSEGV"

}  // namespace deltron::tools
