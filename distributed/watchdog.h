// Ends a job that cannot go on: a rank is gone, a rank has announced a fault, or a call has waited for longer than the deadline. One thread a
// process; it speaks to rank 0's store with every beat. What it cannot end in good order (a rank that computes, or hangs in a library) it ends
// with exit code 7 after a grace.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "distributed/communicator.h"
#include "distributed/tcp_store.h"

namespace deltron {

struct WatchdogOptions {
  double deadline_seconds = 600;  // of one call
  double grace_seconds = 5;       // between abort and the end of the process
  double beat_seconds = 0.5;
  std::function<void(const std::string& reason)> abort;             // ends the groups, so that the rank's own thread throws; once
  std::function<void()> check;                                      // throws what a back end has found out; every beat
  std::function<void(const std::string& reason)> end_process = {};  // tests; default: prints the reason and _exit(7)
};

class Watchdog : public CollectiveObserver {
 public:
  Watchdog(std::shared_ptr<TcpStore> store, WatchdogOptions options);
  ~Watchdog() override;

  // What this rank does outside of calls: "step 12".
  void note(const std::string& what);
  void begin(const Collective& call, const std::string& label, int ranks) override;
  void end() override;
  // Why the job ends; "": it goes on.
  std::string reason() const;
  // This rank ends by a fault of its own: the others are told. No process is ended after it.
  void leave(const std::string& fault = "");

 private:
  using Clock = std::chrono::steady_clock;
  void loop();
  std::string last_word() const;
  void look();                            // one beat
  void end_job(const std::string& reason);
  std::string late_text(const JobNews& news, double seconds) const;

  std::shared_ptr<TcpStore> store_;
  WatchdogOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string note_ = "start-up", call_, reason_;
  std::int64_t calls_ = 0;
  int call_ranks_ = 0;
  Clock::time_point since_{}, ended_{};
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace deltron
