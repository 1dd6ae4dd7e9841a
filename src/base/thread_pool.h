// One pool of pinned workers; loops are cut into fixed parts, so that results never depend on timing.
// The calling thread works too: a pool of N threads has N-1 workers.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace deltron {

// A non-owning callable reference: no allocation per loop.
class PartFunction {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, PartFunction>>>
  PartFunction(const F& function)  // NOLINT(google-explicit-constructor)
      : object_(&function), call_([](const void* object, std::int64_t part) { (*static_cast<const F*>(object))(part); }) {}
  void operator()(std::int64_t part) const { call_(object_, part); }

 private:
  const void* object_;
  void (*call_)(const void*, std::int64_t);
};

class ThreadPool {
 public:
  // `threads` >= 1; `pin` binds worker i to the i-th core this process may use (off when several ranks share the cores).
  explicit ThreadPool(int threads, bool pin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Calls function(part) for part in [0, parts), dynamically scheduled: parts must be independent and each part's result
  // must not depend on which thread runs it. Exceptions in parts are rethrown here (the first one by part number).
  // Nested calls from inside a part run inline.
  void run(std::int64_t parts, PartFunction function);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Cores this process may use (affinity mask and cgroup quota respected).
int available_cores();

// [begin, end) of part `part` when `total` items are cut into `parts` runs of near-equal length, each a multiple of `grain`.
struct PartRange {
  std::int64_t begin;
  std::int64_t end;
};
PartRange part_range(std::int64_t total, std::int64_t parts, std::int64_t part, std::int64_t grain = 1);

// function(begin, end) over [0, total) in runs of exactly `grain` items (the last may be shorter). The cut depends on
// `grain` alone, never on the number of threads: use it where partial sums are combined.
template <class F>
void parallel_for(ThreadPool& pool, std::int64_t total, std::int64_t grain, const F& function) {
  if (total <= 0) return;
  if (grain < 1) grain = 1;
  const std::int64_t parts = (total + grain - 1) / grain;
  if (parts == 1 || pool.threads() == 1) {
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t begin = part * grain;
      function(begin, begin + grain < total ? begin + grain : total);
    }
    return;
  }
  pool.run(parts, [&](std::int64_t part) {
    const std::int64_t begin = part * grain;
    function(begin, begin + grain < total ? begin + grain : total);
  });
}

}  // namespace deltron
