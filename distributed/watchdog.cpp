// See watchdog.h.
#include "distributed/watchdog.h"

#include <unistd.h>

#include "src/base/error.h"
#include "src/base/exit_code.h"
#include "src/base/log.h"

namespace deltron {

Watchdog::Watchdog(std::shared_ptr<TcpStore> store, WatchdogOptions options) : store_(std::move(store)), options_(std::move(options)) {
  if (!options_.end_process) {
    options_.end_process = [](const std::string& reason) {
      log_error("E700 " + reason + "; this rank did not end by itself");
      _exit(static_cast<int>(ExitCode::Communication));
    };
  }
  thread_ = std::thread([this] { loop(); });
}

Watchdog::~Watchdog() { leave(); }

void Watchdog::note(const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  note_ = what;
}

void Watchdog::begin(const Collective& call, const std::string& label, int ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++calls_;
  call_ = std::string(collective_name(call.kind)) + " '" + call.what + "' of group " + label;
  call_ranks_ = ranks;
  since_ = Clock::now();
}

void Watchdog::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  call_.clear();
}

std::string Watchdog::reason() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reason_;
}

void Watchdog::leave(const std::string& fault) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stop_) return;
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (!fault.empty()) store_->announce_fault("rank " + std::to_string(store_->rank()) + " ended: " + fault);
}

// Equal on ranks that are in the same call.
std::string Watchdog::last_word() const { return call_.empty() ? note_ : note_ + ", " + call_; }

void Watchdog::loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, std::chrono::duration<double>(options_.beat_seconds), [this] { return stop_; });
    if (stop_) return;
    if (!reason_.empty()) {
      if (std::chrono::duration<double>(Clock::now() - ended_).count() > options_.grace_seconds) {
        lock.unlock();
        options_.end_process(reason_);
        return;
      }
      continue;
    }
    lock.unlock();
    look();
    lock.lock();
  }
}

void Watchdog::look() {
  std::string word;
  double waited = 0;
  bool in_call = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    word = last_word();
    in_call = !call_.empty();
    if (in_call) waited = std::chrono::duration<double>(Clock::now() - since_).count();
  }
  try {
    const bool late = in_call && waited > options_.deadline_seconds;
    const JobNews news = store_->beat(word, late);
    if (!news.fault.empty()) return end_job(news.fault);
    if (!news.gone.empty()) {
      const JobNews::Gone& first = news.gone.front();
      std::string text = "rank " + std::to_string(first.rank) + " is gone; the last it said: " + (first.last_word.empty() ? "nothing" : first.last_word);
      if (news.gone.size() > 1) text += "; and " + std::to_string(news.gone.size() - 1) + " more";
      return end_job(text);
    }
    if (late) return end_job(late_text(news, waited));
    if (options_.check) options_.check();
  } catch (const Error& error) {
    end_job(error.text().what + (error.text().values.empty() ? "" : " (" + error.text().values + ")"));
  }
}

std::string Watchdog::late_text(const JobNews& news, double seconds) const {
  std::string word, call;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    word = last_word();
    call = call_;
  }
  std::string arrived, missing;
  int listed = 0;
  constexpr int kMost = 8;
  for (std::size_t rank = 0; rank < news.last_words.size(); ++rank) {
    const std::string& said = news.last_words[rank];
    if (said == word) {
      arrived += (arrived.empty() ? "" : ", ") + std::to_string(rank);
    } else if (++listed <= kMost) {
      missing += (missing.empty() ? "" : "; ") + std::string("rank ") + std::to_string(rank) + " (" + (said.empty() ? "has said nothing" : said) + ")";
    }
  }
  if (listed > kMost) missing += "; and " + std::to_string(listed - kMost) + " more";
  return call + " has waited for " + std::to_string(static_cast<long>(seconds)) + " s; there: ranks " + arrived + "; elsewhere: " +
         (missing.empty() ? "none" : missing);
}

void Watchdog::end_job(const std::string& reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!reason_.empty()) return;
    reason_ = reason;
    ended_ = Clock::now();
  }
  if (options_.abort) options_.abort(reason);
}

}  // namespace deltron
