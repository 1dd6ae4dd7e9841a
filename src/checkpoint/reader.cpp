// See reader.h.
#include "src/checkpoint/reader.h"

#include <set>

#include "src/base/hash.h"
#include "src/checkpoint/catalog.h"

namespace deltron {
namespace {

Manifest load_manifest(const std::string& path) {
  if (!file_exists(join_path(path, kManifestFile))) {
    throw Error(ErrorCode::CheckpointIncomplete, ErrorText{"is no complete checkpoint", path, "no manifest", "",
                                                           "'deltron checkpoint list RUN' names the complete ones"});
  }
  return read_manifest(path);
}

std::string differences(const char* kind, const std::set<std::string>& names, const std::set<std::string>& known,
                        const std::vector<std::string>& candidates, int most) {
  std::string text;
  int count = 0;
  for (const std::string& name : names) {
    if (known.count(name) != 0) continue;
    if (++count > most) continue;
    text += (text.empty() ? "" : "; ") + std::string(kind) + " '" + name + "' (nearest: " + nearest_names(name, candidates) + ")";
  }
  if (count > most) text += "; and " + std::to_string(count - most) + " more " + kind;
  return text;
}

}  // namespace

std::string compare_names(const std::vector<std::string>& wanted, const std::vector<std::string>& found, bool unknown_is_fault,
                          int most) {
  const std::set<std::string> wanted_set(wanted.begin(), wanted.end());
  const std::set<std::string> found_set(found.begin(), found.end());
  std::string text = differences("missing", wanted_set, found_set, found, most);
  if (unknown_is_fault) {
    const std::string unknown = differences("unknown", found_set, wanted_set, wanted, most);
    if (!unknown.empty()) text += (text.empty() ? "" : "; ") + unknown;
  }
  return text;
}

CheckpointReader::CheckpointReader(const std::string& path, bool check_hashes)
    : path_(path), check_hashes_(check_hashes), manifest_(load_manifest(path)) {
  for (const ManifestFileEntry& file : manifest_.files) {
    const std::string full = join_path(path, file.name);
    if (!file_exists(full) || file_size(full) != file.bytes) {
      throw Error(ErrorCode::CheckpointIncomplete,
                  ErrorText{"is no complete checkpoint", path, file.name + " is missing or has the wrong size", "",
                            "'deltron checkpoint list RUN' names the complete ones"});
    }
    files_.emplace(file.name, std::make_unique<SafetensorsFile>(full));
  }
  for (const ManifestTensor& tensor : manifest_.tensors) tensors_.emplace(tensor.name, &tensor);
}

std::vector<std::string> CheckpointReader::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

HostView CheckpointReader::view(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(ErrorCode::TensorNotFound,
                ErrorText{"no tensor '" + name + "'", path_, "", "", "nearest names: " + nearest_names(name, names())});
  }
  const ManifestTensor& tensor = *found->second;
  const HostView view = files_.at(tensor.file)->view(name);
  if (view.dtype != tensor.dtype || view.shape != tensor.shape ||
      (check_hashes_ && hash_text(hash64(view.data, view.bytes)) != tensor.hash)) {
    throw Error(ErrorCode::CheckpointCorrupted,
                ErrorText{"tensor '" + name + "' does not match its hash", path_, tensor.file, "",
                          "resume from an older step; 'deltron checkpoint verify' lists every fault"});
  }
  return view;
}

HostView CheckpointReader::view(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const HostView found = view(name);
  if (found.shape != shape) {
    throw Error(ErrorCode::TensorShapeMismatch, ErrorText{"tensor '" + name + "' has another shape", path_,
                                                          "found " + shape_text(found.shape) + ", expected " + shape_text(shape),
                                                          "", "use the model configuration that the checkpoint was made with"});
  }
  return found;
}

void CheckpointReader::require_names(const std::vector<std::string>& wanted, bool weights_only) const {
  const std::string faults = compare_names(wanted, names(), !weights_only);
  if (faults.empty()) return;
  throw Error(ErrorCode::CheckpointTensorNames, ErrorText{"holds other tensors than the model", path_, faults, "",
                                                          "use the model configuration that the checkpoint was made with"});
}

}  // namespace deltron
