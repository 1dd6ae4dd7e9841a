// Re-reads a checkpoint and compares every byte with the hashes of its manifest. Knows nothing of models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltron {

struct VerifyFault {
  std::string file;
  std::string tensor;  // empty where the fault lies outside every tensor
  std::string what;
};

struct VerifyReport {
  std::string path;
  std::int64_t step = 0;
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
  std::vector<VerifyFault> faults;
  bool good() const { return faults.empty(); }
};

// `path` is a step folder. Never throws for what it finds: all faults are in the report. `from_device` drops the page cache first.
VerifyReport verify_checkpoint(const std::string& path, bool from_device = true);
// The same for some of its files: the part of one rank.
VerifyReport verify_files(const std::string& path, const std::vector<std::string>& files, bool from_device = true);

}  // namespace deltron
