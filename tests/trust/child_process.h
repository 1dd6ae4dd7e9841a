// A child `deltron` process: started with its output in a file, signalled, waited for.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/file.h"

namespace deltron::testing {

class Child {
 public:
  // Stop signals are blocked in the child until it has its handlers, so that no moment is too early.
  Child(const std::vector<std::string>& arguments, const std::string& output) : output_(output) {
    std::vector<std::string> words = {DELTRON_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> raw;
    for (std::string& word : words) raw.push_back(word.data());
    raw.push_back(nullptr);
    sigset_t stops, before;
    sigemptyset(&stops);
    for (int number : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&stops, number);
    sigprocmask(SIG_BLOCK, &stops, &before);
    pid_ = fork();
    if (pid_ == 0) {
      const int file = open(output_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(file, STDOUT_FILENO);
      dup2(file, STDERR_FILENO);
      execv(raw[0], raw.data());
      _exit(127);
    }
    sigprocmask(SIG_SETMASK, &before, nullptr);
  }
  ~Child() {
    if (!done_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) const { kill(pid_, number); }
  std::string output() const { return file_exists(output_) ? read_file(output_) : ""; }
  // Waits until the output holds `text`; false if the process ended or a minute passed first.
  bool wait_for(const std::string& text) {
    for (int i = 0; i < 12000; ++i) {
      if (output().find(text) != std::string::npos) return true;
      if (poll_end()) return output().find(text) != std::string::npos;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  // Exit code, or 1000 + the signal that killed it.
  int wait() {
    while (!done_) {
      int status = 0;
      if (waitpid(pid_, &status, 0) < 0 && errno == EINTR) continue;
      finish(status);
    }
    return code_;
  }

 private:
  bool poll_end() {
    int status = 0;
    if (!done_ && waitpid(pid_, &status, WNOHANG) == pid_) finish(status);
    return done_;
  }
  void finish(int status) {
    done_ = true;
    code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  std::string output_;
  pid_t pid_ = -1;
  bool done_ = false;
  int code_ = -1;
};

}  // namespace deltron::testing
