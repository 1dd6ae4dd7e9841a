// See signal_queue.h.
#include "tools/launch/signal_queue.h"

#include <cerrno>
#include <cstring>

#include <sys/signalfd.h>
#include <unistd.h>

#include "src/base/error.h"

namespace deltron::tools {

SignalQueue::SignalQueue() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGCHLD}) {
    struct sigaction now{};
    if (number == SIGHUP && sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) continue;  // nohup: blocked ones would be kept
    sigaddset(&set, number);
  }
  struct sigaction plain{}, ignored{};
  plain.sa_handler = SIG_DFL;
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGCHLD, &plain, &child_before_);   // ignored, it would take the children's ends away
  sigaction(SIGPIPE, &ignored, &pipe_before_);  // a reader that went away is a failed write
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  descriptor_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (descriptor_ < 0) throw Error(ErrorCode::ResourceUnavailable, ErrorText{"signals cannot be read", "signalfd", std::strerror(errno)});
}

SignalQueue::~SignalQueue() {
  close(descriptor_);
  sigaction(SIGCHLD, &child_before_, nullptr);
  sigaction(SIGPIPE, &pipe_before_, nullptr);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::vector<int> SignalQueue::take() {
  std::vector<int> numbers;
  signalfd_siginfo info;
  while (read(descriptor_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) numbers.push_back(static_cast<int>(info.ssi_signo));
  return numbers;
}

}  // namespace deltron::tools
