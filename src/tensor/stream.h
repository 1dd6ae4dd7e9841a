// Streams and events. On the CPU a stream is a worker thread that runs its work in order; the compute stream runs inline.
// Events order work between streams. Work that fails (throws) fails the next synchronize().
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace deltron {

// A point in a stream's work. Copies refer to the same point.
class Event {
 public:
  Event();
  bool complete() const;
  void wait() const;  // blocks the calling thread
  void signal() const;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool complete = false;
  };
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  explicit Stream(std::string name);
  ~Stream();  // finishes what was enqueued
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(std::function<void()> work);
  Event record();                 // complete when everything enqueued so far has run
  void wait(const Event& event);  // later work waits for the event
  void synchronize();             // rethrows the first failure

 private:
  void loop();
  std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread worker_;
};

}  // namespace deltron
