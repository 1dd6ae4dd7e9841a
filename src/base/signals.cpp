// See signals.h. The handler only sets a flag (allow-listed global): everything else happens at poll points.
#include "src/base/signals.h"

#include <atomic>
#include <csignal>
#include <string>

#include <unistd.h>

#include "src/base/error.h"

namespace deltron {
namespace {

// Signals may arrive on any thread, so the flag is an atomic; a lock-free one may be written by a handler.
std::atomic<int> stop_flag = 0;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void on_stop_signal(int number) {
  if (stop_flag.load() != 0 && number != SIGUSR1) _exit(128 + number);
  stop_flag.store(number);
}

}  // namespace

void install_stop_signals() {
  struct sigaction action{};
  action.sa_handler = on_stop_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  struct sigaction before{};
  if (sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // ignored under nohup
  // Launchers may start a program with these blocked; what arrived meanwhile is delivered now.
  sigset_t ours;
  sigemptyset(&ours);
  for (int number : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) sigaddset(&ours, number);
  sigprocmask(SIG_UNBLOCK, &ours, nullptr);
}

int stop_signal() { return stop_flag.load(); }
void clear_stop_signal() { stop_flag.store(0); }

const char* signal_name(int number) {
  switch (number) {
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    case SIGINT: return "SIGINT";
    case SIGHUP: return "SIGHUP";
    default: return "signal";
  }
}

void poll_stop(const char* during) {
  if (const int number = stop_flag.load(); number != 0) throw StopRequested(std::string(signal_name(number)) + " during " + during);
}

}  // namespace deltron
