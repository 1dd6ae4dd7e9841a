// See rank_process.h. Between fork and exec only async-signal-safe calls are made: the launcher may have threads of a GPU driver.
#include "tools/launch/rank_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/error.h"

namespace deltron::tools {
namespace {

[[noreturn]] void cannot_start(const std::string& path, int reason) {
  throw Error(ErrorCode::ResourceUnavailable,
              ErrorText{"a rank cannot be started", path, std::strerror(reason), "", "see 'ulimit -u' and 'ulimit -n', or start fewer ranks"});
}

// Both ends of a pipe, closed with the object unless taken.
struct Pipe {
  int ends[2] = {-1, -1};
  explicit Pipe(const std::string& path) {
    if (pipe2(ends, O_CLOEXEC) != 0) cannot_start(path, errno);
  }
  ~Pipe() {
    for (int end : ends) {
      if (end >= 0) close(end);
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int take(int which) {
    const int end = ends[which];
    ends[which] = -1;
    return end;
  }
  void shut(int which) { close(take(which)); }
};

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> all;
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

// The child's side. Returns only where something failed, with errno.
void become(const char* path, char* const* arguments, char* const* environment, int output, int errors, pid_t launcher, bool unblock) {
  setpgid(0, 0);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (getppid() != launcher) _exit(128 + SIGKILL);  // gone before the kernel knew of the wish
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0 || dup2(errors, STDERR_FILENO) < 0) return;
  if (nothing > STDERR_FILENO) close(nothing);
  std::signal(SIGPIPE, SIG_DFL);  // ignored by the launcher, and that would be inherited
  if (unblock) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
  }
  execve(path, arguments, environment);
}

}  // namespace

RankProcess::RankProcess(const RankProgram& program) {
  Pipe output(program.path), errors(program.path), failure(program.path);
  const std::vector<char*> arguments = pointers(program.arguments), environment = pointers(program.environment);
  const pid_t launcher = getpid();
  pid_ = fork();
  if (pid_ < 0) cannot_start(program.path, errno);
  if (pid_ == 0) {
    become(program.path.c_str(), arguments.data(), environment.data(), output.ends[1], errors.ends[1], launcher, !program.unblocks_stop_signals);
    const int reason = errno;
    _exit(write(failure.ends[1], &reason, sizeof(reason)) == sizeof(reason) ? 126 : 127);
  }
  setpgid(pid_, pid_);  // also here: a signal to the group may be sent before the child has run
  failure.shut(1);
  int reason = 0;
  ssize_t got = 0;
  do got = read(failure.ends[0], &reason, sizeof(reason));
  while (got < 0 && errno == EINTR);
  if (got > 0) {
    waitpid(pid_, nullptr, 0);
    cannot_start(program.path, reason);
  }
  running_ = true;
  output_ = output.take(0);
  errors_ = errors.take(0);
  for (int end : {output_, errors_}) fcntl(end, F_SETFL, fcntl(end, F_GETFL) | O_NONBLOCK);
}

RankProcess::~RankProcess() {
  if (running_) {
    kill_group();
    waitpid(pid_, nullptr, 0);
  }
  close_output();
  close_errors();
}

void RankProcess::close_output() {
  if (output_ >= 0) close(output_);
  output_ = -1;
}

void RankProcess::close_errors() {
  if (errors_ >= 0) close(errors_);
  errors_ = -1;
}

bool RankProcess::poll_end() {
  if (!running_) return false;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return false;
  kill(-pid_, SIGKILL);  // while the number still belongs to this child
  int status = 0;
  waitpid(pid_, &status, 0);
  running_ = false;
  if (WIFSIGNALED(status)) end_.signal = WTERMSIG(status);
  else end_.exit_code = WEXITSTATUS(status);
  return true;
}

void RankProcess::signal(int number) {
  if (running_) kill(pid_, number);
}

void RankProcess::kill_group() {
  if (running_) kill(-pid_, SIGKILL);
}

}  // namespace deltron::tools
