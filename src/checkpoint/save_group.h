// The ranks that write one checkpoint together: what src/checkpoint needs of them, an exchange of short texts. Whoever has a connection
// between ranks implements it. Knows nothing of files.
#pragma once

#include <string>
#include <vector>

namespace deltron {

class SaveGroup {
 public:
  virtual ~SaveGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Every rank's text, by rank; comes back when all ranks have called it. Throws where a rank is gone.
  virtual std::vector<std::string> exchange(const std::string& mine) = 0;
};

}  // namespace deltron
