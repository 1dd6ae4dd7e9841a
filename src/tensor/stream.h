// Streams and events. On the CPU a stream is a worker thread that runs its work in order; the compute stream runs inline. On cuda
// both are the device's own. Events order work between streams. Work that fails (throws) fails the next synchronize().
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "src/base/dtype.h"

namespace deltron {

// A point in a stream's work. Copies refer to the same point.
class Event {
 public:
  Event();
  // The point that a stream of the device has reached.
  static Event on_device(void* stream);
  bool complete() const;
  void wait() const;    // blocks the calling thread
  void signal() const;  // CPU
  void* native() const;  // cuda: the device's event; else null

 private:
  struct State {
    ~State();
    void* native = nullptr;
    std::mutex mutex;
    std::condition_variable changed;
    bool complete = false;
  };
  std::shared_ptr<State> state_;
};

// A point in a stream's work with its time. Marks of one device differ by seconds once the work before them has run; on the CPU they
// are points of the host's clock.
class TimeMark {
 public:
  using Clock = std::chrono::steady_clock;
  static TimeMark now();                    // of the calling thread
  static TimeMark on_device(void* stream);  // the point that a stream of the device has reached
  double seconds_after(const TimeMark& earlier) const;

 private:
  friend class Stream;
  struct State {
    ~State();
    void* native = nullptr;
    Clock::time_point time;
  };
  TimeMark() : state_(std::make_shared<State>()) {}
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  explicit Stream(std::string name, DeviceKind device = DeviceKind::Cpu);
  ~Stream();  // finishes what was enqueued
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(std::function<void()> work);                             // CPU
  void copy(void* to, const void* from, std::int64_t bytes);            // cuda: between device and pinned host memory
  void set_bytes(void* data, int value, std::int64_t bytes);
  void delay(double seconds);                                           // later work starts that much later
  TimeMark mark();                // when everything enqueued so far has run
  Event record();                 // complete when everything enqueued so far has run
  void wait(const Event& event);  // later work waits for the event
  void synchronize();             // rethrows the first failure

 private:
  void loop();
  std::string name_;
  void* native_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread worker_;
};

}  // namespace deltron
