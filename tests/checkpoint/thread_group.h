// Ranks of a save as threads of this process, which meet at every exchange.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "src/base/error.h"
#include "src/checkpoint/save_group.h"

namespace deltron {

class Meeting {
 public:
  explicit Meeting(int size) : texts_(static_cast<std::size_t>(size)), present_(0) {}
  // A rank that is gone: all who wait for it, and all who come later, get an error.
  void leave() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }
  std::vector<std::string> meet(int rank, const std::string& mine) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return gone_ || !reading_; });
    require_all();
    texts_[static_cast<std::size_t>(rank)] = mine;
    if (++present_ == static_cast<int>(texts_.size())) {
      reading_ = true;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return gone_ || reading_; });
    require_all();
    const std::vector<std::string> all = texts_;
    if (--present_ == 0) {
      reading_ = false;
      changed_.notify_all();
    }
    return all;
  }

 private:
  void require_all() const {
    if (gone_ && !reading_) throw Error(ErrorCode::ResourceUnavailable, ErrorText{"a rank is gone", "exchange"});
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_;
  int present_;
  bool reading_ = false, gone_ = false;
};

class ThreadRank : public SaveGroup {
 public:
  ThreadRank(Meeting& meeting, int rank, int size) : meeting_(meeting), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::vector<std::string> exchange(const std::string& mine) override { return meeting_.meet(rank_, mine); }

 private:
  Meeting& meeting_;
  int rank_, size_;
};

// Runs work(group) on `size` ranks; what each of them threw, by rank ("" if nothing).
inline std::vector<std::string> on_ranks(int size, const std::function<void(SaveGroup&)>& work) {
  Meeting meeting(size);
  std::vector<std::string> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadRank group(meeting, rank, size);
      try {
        work(group);
      } catch (const std::exception& error) {
        thrown[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

}  // namespace deltron
