// See memory_store.h.
#include "distributed/memory_store.h"

#include <chrono>

#include "src/base/error.h"

namespace deltron {

void MemoryStore::set(const std::string& key, const std::string& value) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[key] = value;
  }
  changed_.notify_all();
}

std::string MemoryStore::get(const std::string& key, double timeout_seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), [&] { return values_.count(key) > 0; })) {
    throw Error(ErrorCode::CommunicationFailed, ErrorText{"nobody has set a key", "rendezvous store", key, "", ""});
  }
  return values_[key];
}

}  // namespace deltron
