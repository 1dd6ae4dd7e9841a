// How much memory this machine has for a process: physical memory, or the control group's limit where that is lower.
#pragma once

#include <cstdint>

namespace deltron {

struct MachineMemory {
  std::int64_t total = 0;      // bytes; 0: not known
  std::int64_t available = 0;  // without pushing others out
};
MachineMemory machine_memory();

}  // namespace deltron
