// See safetensors.h.
#include "src/checkpoint/safetensors.h"

#include <algorithm>

#include <unistd.h>

#include "src/base/hash.h"
#include "src/base/suggest.h"
#include "src/checkpoint/json_strict.h"

namespace deltron {
namespace {

[[noreturn]] void fail_index(const std::string& path, const std::string& what, const std::string& values = {}) {
  throw Error(ErrorCode::TensorIndexInvalid, ErrorText{what, path, values, "", "copy or download the folder again, whole"});
}

[[noreturn]] void fail_name(const std::string& path, const std::string& name, const std::vector<std::string>& known) {
  throw Error(ErrorCode::TensorNotFound,
              ErrorText{"no tensor '" + name + "'", path, "", "", "nearest names: " + nearest_names(name, known)});
}

}  // namespace

std::string nearest_names(const std::string& name, const std::vector<std::string>& known) {
  std::string text;
  for (const std::string& word : nearest_words(name, known)) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(parse_safetensors_header(file_.data(), file_.size(), path)) {
  for (std::size_t i = 0; i < header_.entries.size(); ++i) places_.emplace(header_.entries[i].name, i);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : header_.entries) names.push_back(entry.name);
  std::sort(names.begin(), names.end());
  return names;
}

HostView SafetensorsFile::view(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) fail_name(path(), name, names());
  const SafetensorsEntry& entry = header_.entries[found->second];
  if (!entry.dtype->dtype.has_value()) {
    throw Error(ErrorCode::TensorDtypeUnsupported,
                ErrorText{"tensor '" + name + "' cannot be read", path(), std::string("dtype ") + entry.dtype->name, "",
                          "convert the tensor to F32 or BF16 first"});
  }
  return HostView{name, *entry.dtype->dtype, entry.shape, data(entry), static_cast<std::size_t>(entry.end - entry.begin)};
}

SafetensorsFolder::SafetensorsFolder(const std::string& path) : path_(path) {
  const std::string single = join_path(path, "model.safetensors");
  const std::string index = join_path(path, "model.safetensors.index.json");
  if (!directory_exists(path)) {
    add_file(path);
  } else if (file_exists(index)) {
    read_index(index);
  } else if (file_exists(single)) {
    add_file(single);
  } else {
    throw Error(ErrorCode::TensorFolderInvalid, ErrorText{"no model.safetensors and no model.safetensors.index.json", path, "", "",
                                                          "point to the folder that holds the weights"});
  }
}

void SafetensorsFolder::add_file(const std::string& path) {
  files_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const SafetensorsEntry& entry : files_.back()->entries()) places_.emplace(entry.name, files_.back().get());
}

void SafetensorsFolder::read_index(const std::string& index) {
  const nlohmann::json root = parse_json_strict(read_file(index), index, ErrorCode::TensorIndexInvalid);
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object()) fail_index(index, "'weight_map' is missing or not an object");
  std::map<std::string, const SafetensorsFile*> by_name;
  for (const auto& item : map->items()) {
    if (!item.value().is_string()) fail_index(index, "file of tensor '" + item.key() + "' is not a string");
    const std::string name = item.value().get<std::string>();
    if (name.empty() || name != base_name(name)) fail_index(index, "file name leaves the folder", name);
    const SafetensorsFile*& file = by_name[name];
    if (file == nullptr) {
      const std::string path = join_path(path_, name);
      if (!file_exists(path)) fail_index(index, "file is missing", name);
      files_.push_back(std::make_unique<SafetensorsFile>(path));
      file = files_.back().get();
    }
    if (!file->contains(item.key())) fail_index(index, "tensor '" + item.key() + "' is not in its file", name);
    places_.emplace(item.key(), file);
  }
  for (const auto& file : files_) {
    for (const SafetensorsEntry& entry : file->entries()) {
      const auto found = places_.find(entry.name);
      if (found == places_.end() || found->second != file.get()) {
        fail_index(index, "tensor '" + entry.name + "' is not in the index under its file", file->path());
      }
    }
  }
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : places_) names.push_back(name);
  return names;
}

const SafetensorsFile& SafetensorsFolder::file_of(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) fail_name(path_, name, names());
  return *found->second;
}

WrittenTensors write_safetensors_in_place(Disk& disk, const std::string& path, const std::vector<HostView>& tensors,
                                          const std::map<std::string, std::string>& metadata) {
  const std::vector<std::size_t> order = safetensors_order(tensors);
  std::vector<HostView> sorted;
  for (const std::size_t i : order) sorted.push_back(tensors[i]);
  const std::string header = compose_safetensors_header(sorted, metadata);

  WrittenTensors written;
  written.tensor_hashes.resize(tensors.size());
  StreamingHash whole;
  DiskFile file(disk, path);
  file.write(header.data(), header.size());
  whole.update(header.data(), header.size());
  written.bytes = header.size();
  for (const std::size_t i : order) {
    file.write(tensors[i].data, tensors[i].bytes);
    whole.update(tensors[i].data, tensors[i].bytes);
    written.tensor_hashes[i] = hash64(tensors[i].data, tensors[i].bytes);
    written.bytes += tensors[i].bytes;
  }
  file.finish();
  written.hash = whole.digest();
  return written;
}

void write_safetensors(const std::string& path, const std::vector<HostView>& tensors,
                       const std::map<std::string, std::string>& metadata, WriteObserver* observer) {
  Disk disk(observer);
  const std::string temporary = join_path(parent_folder(path), ".tmp-" + base_name(path));
  try {
    write_safetensors_in_place(disk, temporary, tensors, metadata);
    disk.rename(temporary, path);
    disk.sync_folder(parent_folder(path));
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

}  // namespace deltron
