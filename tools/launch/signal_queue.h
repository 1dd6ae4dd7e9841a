// The signals that the launcher passes on, and SIGCHLD, read from a descriptor instead of interrupting it. While one lives they are
// blocked in the calling thread and in threads that it starts; make it before any.
#pragma once

#include <csignal>
#include <vector>

namespace deltron::tools {

class SignalQueue {
 public:
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  int descriptor() const { return descriptor_; }  // readable when take() has something
  std::vector<int> take();                        // their numbers, never waits

 private:
  int descriptor_ = -1;
  sigset_t before_;
  struct sigaction pipe_before_, child_before_;
};

}  // namespace deltron::tools
