// Where ranks leave short notes for each other before they are connected (addresses, NCCL's id) and when a group ends. Keys are set once, or
// again with a newer value; values are any bytes. Used from several threads at a time.
#pragma once

#include <string>

namespace deltron {

class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Blocks until the key is set; throws Error(CommunicationFailed) once `timeout_seconds` have passed.
  virtual std::string get(const std::string& key, double timeout_seconds) = 0;
};

}  // namespace deltron
