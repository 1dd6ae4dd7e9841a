// The safetensors header: parsed from memory with every rule of the format checked, and composed in the reference order.
// Owns the table of file dtypes. Knows nothing of files or checkpoints.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/checkpoint/host_array.h"

namespace deltron {

// One row for every dtype of the format, in the order the reference writer sorts by.
struct FileDtype {
  const char* name;
  int bits;
  std::optional<DType> dtype;  // ours, where we compute with it
  int rank;                    // place in the order
};
const std::vector<FileDtype>& file_dtypes();
const FileDtype& file_dtype_of(DType dtype);

struct SafetensorsEntry {
  std::string name;
  const FileDtype* dtype = nullptr;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // relative to the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> entries;  // by offset; they tile the data
  std::uint64_t data_offset = 0;          // of the file
};

inline constexpr std::uint64_t kSafetensorsHeaderLimit = 100'000'000;

// `data` is the whole file; `path` only names it in errors.
SafetensorsHeader parse_safetensors_header(const std::uint8_t* data, std::size_t bytes, const std::string& path);

// Indices of `tensors` in file order: dtype descending, then name.
std::vector<std::size_t> safetensors_order(const std::vector<HostView>& tensors);
// Length word, JSON and padding for `tensors` already in file order; metadata gets format=pt where it has no format.
std::string compose_safetensors_header(const std::vector<HostView>& tensors, std::map<std::string, std::string> metadata);

}  // namespace deltron
