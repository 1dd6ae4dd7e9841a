// The host side of activation offload: buffers that are reused from micro-batch to micro-batch, keyed by size and dtype. Grows on
// demand, never shrinks; at the end of an iteration none is in use. Knows neither streams nor groups.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "src/tensor/memory.h"

namespace deltron {

struct HostBuffer {
  void* data = nullptr;  // null on meta
  std::int64_t bytes = 0;
  DType dtype = DType::F32;
};

class OffloadPool {
 public:
  struct Stats {
    std::int64_t buffers = 0;       // that exist
    std::int64_t bytes = 0;
    std::int64_t in_use = 0;        // buffers handed out
    std::int64_t bytes_in_use = 0;
    std::int64_t peak_bytes_in_use = 0;
  };

  // `memory` is counted. With `poison` every buffer is filled with NaNs when it is made and when it comes back.
  OffloadPool(std::shared_ptr<Allocator> memory, bool poison) : memory_(std::move(memory)), poison_(poison) {}
  ~OffloadPool();
  OffloadPool(const OffloadPool&) = delete;
  OffloadPool& operator=(const OffloadPool&) = delete;

  // First in, first out among the free buffers of this size and dtype.
  HostBuffer* acquire(std::int64_t bytes, DType dtype);
  // Nothing may read or write the buffer any more. A buffer that is not in use, or not of this pool, is an internal error.
  void release(HostBuffer* buffer);
  const Stats& stats() const { return stats_; }

 private:
  void free_all();
  std::shared_ptr<Allocator> memory_;
  bool poison_;
  Stats stats_;
  std::map<std::pair<std::int64_t, DType>, std::deque<HostBuffer*>> free_;
  std::set<HostBuffer*> used_;
};

}  // namespace deltron
