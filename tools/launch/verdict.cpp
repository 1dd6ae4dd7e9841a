// See verdict.h.
#include "tools/launch/verdict.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "src/base/exit_code.h"

namespace deltron::tools {
namespace {

constexpr int kSaved = static_cast<int>(ExitCode::StoppedAndSaved), kCommunication = static_cast<int>(ExitCode::Communication);

int code_of(const ProcessEnd& end) { return end.signal != 0 ? 128 + end.signal : end.exit_code; }

bool was_asked(const ProcessEnd& end, const std::vector<int>& forwarded) {
  return std::any_of(forwarded.begin(), forwarded.end(), [&](int number) { return code_of(end) == 128 + number; });
}

const char* meaning(int exit_code) {
  switch (exit_code) {
    case static_cast<int>(ExitCode::Done): return "done";
    case static_cast<int>(ExitCode::Usage): return "command line or configuration";
    case static_cast<int>(ExitCode::Data): return "data";
    case static_cast<int>(ExitCode::Checkpoint): return "checkpoint";
    case static_cast<int>(ExitCode::OutOfMemory): return "out of memory";
    case static_cast<int>(ExitCode::NonFinite): return "a value that is not finite";
    case kCommunication: return "communication: another rank was lost";
    case static_cast<int>(ExitCode::Internal): return "an internal fault";
    case kSaved: return "stopped, can go on";
    default: return "";
  }
}

}  // namespace

bool is_failure(const ProcessEnd& end, const std::vector<int>& forwarded) {
  const int code = code_of(end);
  return code != 0 && code != kSaved && !was_asked(end, forwarded);
}

Verdict judge(const std::vector<RankEnd>& ends, const std::vector<int>& forwarded) {
  Verdict verdict;
  int stopped = 0;
  bool saved = false, killed = false;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const ProcessEnd& end = ends[i].end;
    if (was_asked(end, forwarded)) stopped = code_of(end);
    if (end.signal == 0 && end.exit_code == kSaved) saved = true;
    if (!is_failure(end, forwarded)) continue;
    if (ends[i].by_launcher) {
      killed = true;
      continue;
    }
    const bool follower = end.signal == 0 && end.exit_code == kCommunication;
    const bool known_follower = verdict.culprit >= 0 && ends[static_cast<std::size_t>(verdict.culprit)].end.exit_code == kCommunication;
    if (verdict.culprit < 0 || (known_follower && !follower)) verdict.culprit = static_cast<int>(i);
  }
  if (killed && stopped == 0 && !forwarded.empty()) stopped = 128 + forwarded.back();
  if (verdict.culprit >= 0) {
    verdict.exit_code = code_of(ends[static_cast<std::size_t>(verdict.culprit)].end);
    if (verdict.exit_code != kCommunication || stopped == 0) return verdict;
    verdict.culprit = -1;  // the ranks that were told to stop are what it missed
  }
  verdict.exit_code = stopped != 0 ? stopped : saved ? kSaved : 0;
  return verdict;
}

std::string signal_text(int number) {
  const char* name = sigabbrev_np(number);
  return name == nullptr ? "signal " + std::to_string(number) : std::string("SIG") + name;
}

std::string describe(const ProcessEnd& end) {
  if (end.signal == SIGKILL) return "SIGKILL (somebody's, or the kernel's when memory runs out)";
  if (end.signal != 0) return signal_text(end.signal);
  const std::string text = meaning(end.exit_code);
  return "exit code " + std::to_string(end.exit_code) + (text.empty() ? "" : " (" + text + ")");
}

}  // namespace deltron::tools
