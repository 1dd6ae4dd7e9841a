// See thread_pool.h. Workers spin briefly, then block on a condition variable: several ranks may share the cores.
#include "src/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>

#include "src/base/check.h"

namespace deltron {
namespace {

std::vector<int> read_core_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

// The process's cores as they were before any pool pinned a thread: a second pool, or a plan beside a run, sees the same ones.
const std::vector<int>& allowed_cores() {
  static const std::vector<int> cores = read_core_mask();
  return cores;
}

// Nested run() calls from inside a part run inline; the flag belongs to the thread, not to the process.
bool& inside_part() {
  static thread_local bool inside = false;  // allow-listed: per-thread marker of the pool
  return inside;
}

}  // namespace

int available_cores() {
  int cores = static_cast<int>(allowed_cores().size());
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (quota_file >> quota >> period && quota != "max" && period > 0) {
    const int limit = static_cast<int>(std::stod(quota) / period + 0.5);
    cores = std::max(1, std::min(cores, limit));
  }
  return cores;
}

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::condition_variable finished;
  std::atomic<std::uint64_t> generation{0};
  std::atomic<std::int64_t> next{0};
  std::atomic<int> active{0};
  std::int64_t parts = 0;
  const PartFunction* function = nullptr;
  bool stop = false;
  std::exception_ptr failure;
  std::int64_t failed_part = 0;
  // The creating thread's own mask, put back when the pool ends: a later pool would otherwise find one allowed core.
  bool pinned_caller = false;
  pthread_t caller{};
  cpu_set_t caller_mask{};

  void work() {
    inside_part() = true;
    for (;;) {
      const std::int64_t part = next.fetch_add(1, std::memory_order_relaxed);
      if (part >= parts) break;
      try {
        (*function)(part);
      } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        if (!failure || part < failed_part) {
          failure = std::current_exception();
          failed_part = part;
        }
      }
    }
    inside_part() = false;
  }

  void worker_loop() {
    std::uint64_t seen = 0;
    for (;;) {
      // A short spin keeps the gap between two kernels below the cost of a futex wake-up.
      for (int spin = 0; spin < 4000 && generation.load(std::memory_order_acquire) == seen; ++spin) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
      {
        std::unique_lock<std::mutex> lock(mutex);
        wake.wait(lock, [&] { return stop || generation.load(std::memory_order_acquire) != seen; });
        if (stop) return;
        seen = generation.load(std::memory_order_acquire);
      }
      work();
      if (active.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        std::lock_guard<std::mutex> lock(mutex);
        finished.notify_one();
      }
    }
  }
};

ThreadPool::ThreadPool(int threads, bool pin) : state_(std::make_unique<State>()) {
  DELTRON_CHECK_GE(threads, 1, "a pool needs at least the calling thread");
  const std::vector<int>& cores = allowed_cores();
  for (int index = 1; index < threads; ++index) {
    try {
      state_->workers.emplace_back([state = state_.get()] { state->worker_loop(); });
    } catch (const std::system_error& failure) {
      throw Error(ErrorCode::ResourceUnavailable,
                  ErrorText{"thread cannot be started", "thread pool", failure.what(), "", "lower training.threads"});
    }
    if (pin) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cores[static_cast<std::size_t>(index) % cores.size()], &set);
      pthread_setaffinity_np(state_->workers.back().native_handle(), sizeof(set), &set);
    }
  }
  if (pin && threads > 1 && pthread_getaffinity_np(pthread_self(), sizeof(cpu_set_t), &state_->caller_mask) == 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cores[0], &set);
    state_->caller = pthread_self();
    state_->pinned_caller = pthread_setaffinity_np(state_->caller, sizeof(set), &set) == 0;
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
  if (state_->pinned_caller && pthread_equal(state_->caller, pthread_self())) {
    pthread_setaffinity_np(state_->caller, sizeof(cpu_set_t), &state_->caller_mask);
  }
}

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(std::int64_t parts, PartFunction function) {
  if (parts <= 0) return;
  if (state_->workers.empty() || parts == 1 || inside_part()) {
    for (std::int64_t part = 0; part < parts; ++part) function(part);
    return;
  }
  State& state = *state_;
  {
    std::lock_guard<std::mutex> lock(state.mutex);
    state.function = &function;
    state.parts = parts;
    state.failure = nullptr;
    state.next.store(0, std::memory_order_relaxed);
    state.active.store(static_cast<int>(state.workers.size()), std::memory_order_relaxed);
    state.generation.fetch_add(1, std::memory_order_release);
  }
  state.wake.notify_all();
  state.work();
  for (int spin = 0; spin < 20000 && state.active.load(std::memory_order_acquire) != 0; ++spin) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  std::unique_lock<std::mutex> lock(state.mutex);
  state.finished.wait(lock, [&] { return state.active.load(std::memory_order_acquire) == 0; });
  if (state.failure) std::rethrow_exception(state.failure);
}

PartRange part_range(std::int64_t total, std::int64_t parts, std::int64_t part, std::int64_t grain) {
  const std::int64_t grains = (total + grain - 1) / grain;
  const std::int64_t begin = grains * part / parts * grain;
  const std::int64_t end = grains * (part + 1) / parts * grain;
  return PartRange{std::min(begin, total), std::min(end, total)};
}

}  // namespace deltron
