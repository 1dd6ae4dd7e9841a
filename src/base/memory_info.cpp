// See memory_info.h.
#include "src/base/memory_info.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace deltron {
namespace {

// A file that holds one number; 0 where it holds something else ("max") or does not exist.
std::int64_t number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? value : 0;
}

}  // namespace

MachineMemory machine_memory() {
  MachineMemory memory;
  std::ifstream info("/proc/meminfo");
  std::string name, unit;
  for (std::int64_t value = 0; info >> name >> value; std::getline(info, unit)) {
    if (name == "MemTotal:") memory.total = 1024 * value;
    if (name == "MemAvailable:") memory.available = 1024 * value;
  }
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const std::int64_t limit = number_in(path);
    if (limit <= 0) continue;
    memory.total = std::min(memory.total, limit);
    memory.available = std::min(memory.available, limit);
  }
  return memory;
}

}  // namespace deltron
