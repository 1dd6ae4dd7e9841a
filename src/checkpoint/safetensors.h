// safetensors files and folders of them: memory-mapped reading, writing in the reference order.
// Knows nothing of models, checkpoints or devices.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/file.h"
#include "src/checkpoint/disk.h"
#include "src/checkpoint/host_array.h"
#include "src/checkpoint/safetensors_header.h"

namespace deltron {

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  const std::string& path() const { return file_.path(); }
  std::size_t bytes() const { return file_.size(); }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }  // in file order
  std::vector<std::string> names() const;                                           // sorted
  bool contains(const std::string& name) const { return places_.count(name) != 0; }
  // Unknown names are errors that list the nearest known ones; so are dtypes we do not compute with.
  HostView view(const std::string& name) const;
  HostArray read(const std::string& name) const { return copy_of(view(name)); }
  std::vector<double> as_doubles(const std::string& name) const { return to_doubles(view(name)); }
  // Raw bytes of any entry, whatever its dtype.
  const std::uint8_t* data(const SafetensorsEntry& entry) const { return file_.data() + header_.data_offset + entry.begin; }
  const std::uint8_t* file_data() const { return file_.data(); }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, std::size_t> places_;
};

// One .safetensors file, or a folder with model.safetensors or model.safetensors.index.json and its shards.
class SafetensorsFolder {
 public:
  explicit SafetensorsFolder(const std::string& path);
  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;  // sorted
  bool contains(const std::string& name) const { return places_.count(name) != 0; }
  const SafetensorsFile& file_of(const std::string& name) const;
  HostView view(const std::string& name) const { return file_of(name).view(name); }
  HostArray read(const std::string& name) const { return copy_of(view(name)); }
  std::vector<double> as_doubles(const std::string& name) const { return to_doubles(view(name)); }

 private:
  void add_file(const std::string& path);
  void read_index(const std::string& index);
  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> places_;
};

struct WrittenTensors {
  std::uint64_t bytes = 0;                   // of the file
  std::uint64_t hash = 0;                    // of the file
  std::vector<std::uint64_t> tensor_hashes;  // in the order given
};

// Writes and fsyncs the file under its final name (for use inside a folder that is itself temporary).
WrittenTensors write_safetensors_in_place(Disk& disk, const std::string& path, const std::vector<HostView>& tensors,
                                          const std::map<std::string, std::string>& metadata);
// Temporary file beside it, fsync, rename, fsync of the folder.
void write_safetensors(const std::string& path, const std::vector<HostView>& tensors,
                       const std::map<std::string, std::string>& metadata = {}, WriteObserver* observer = nullptr);

// "a, b" or "none": for the messages of name errors.
std::string nearest_names(const std::string& name, const std::vector<std::string>& known);

}  // namespace deltron
