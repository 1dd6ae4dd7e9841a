// See offload_pool.h.
#include "src/autograd/offload_pool.h"

#include <algorithm>

#include "src/autograd/offload_transfer.h"
#include "src/base/check.h"

namespace deltron {

OffloadPool::~OffloadPool() {
  const auto free = [&](HostBuffer* buffer) {
    memory_->release(buffer->data, buffer->bytes, MemoryTag::Activations, {-1, "offload pool"});
    delete buffer;
  };
  for (auto& [key, buffers] : free_) {
    for (HostBuffer* buffer : buffers) free(buffer);
  }
  for (HostBuffer* buffer : used_) free(buffer);
}

HostBuffer* OffloadPool::acquire(std::int64_t bytes, DType dtype) {
  std::deque<HostBuffer*>& free = free_[{bytes, dtype}];
  if (free.empty()) {
    auto made = std::make_unique<HostBuffer>();
    made->data = memory_->allocate(bytes, MemoryTag::Activations, {-1, "offload pool"});
    made->bytes = bytes;
    made->dtype = dtype;
    if (poison_) poison_bytes(made->data, bytes);
    stats_.buffers++;
    stats_.bytes += bytes;
    free.push_back(made.release());
  }
  HostBuffer* buffer = free.front();
  free.pop_front();
  used_.insert(buffer);
  stats_.in_use++;
  stats_.bytes_in_use += bytes;
  stats_.peak_bytes_in_use = std::max(stats_.peak_bytes_in_use, stats_.bytes_in_use);
  return buffer;
}

void OffloadPool::release(HostBuffer* buffer) {
  DELTRON_CHECK_EQ(used_.erase(buffer), 1u, "a buffer came back that the offload pool had not handed out");
  if (poison_) poison_bytes(buffer->data, buffer->bytes);
  stats_.in_use--;
  stats_.bytes_in_use -= buffer->bytes;
  free_[{buffer->bytes, buffer->dtype}].push_back(buffer);
}

}  // namespace deltron
