// A file that holds a fuzzer's input, for readers that take paths: in memory, one name a process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <unistd.h>

namespace deltron::fuzz {

inline std::string input_path(const std::string& suffix) { return "/dev/shm/deltron_fuzz_" + std::to_string(getpid()) + suffix; }

inline void write_input(const std::string& path, const std::uint8_t* data, std::size_t size) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(data, 1, size, file) != size || std::fclose(file) != 0) std::abort();
}

}  // namespace deltron::fuzz
