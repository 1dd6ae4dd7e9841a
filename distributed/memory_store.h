// A rendezvous store in memory, for ranks that are threads of one process (tests).
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "distributed/rendezvous_store.h"

namespace deltron {

class MemoryStore : public RendezvousStore {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, double timeout_seconds) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace deltron
