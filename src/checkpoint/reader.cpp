// See reader.h.
#include "src/checkpoint/reader.h"

#include <set>

#include "src/base/check.h"
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

const ManifestTensor& CheckpointReader::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return *found->second;
  throw Error(ErrorCode::TensorNotFound,
              ErrorText{"no tensor '" + name + "'", path_, "", "", "nearest names: " + nearest_names(name, names())});
}

void CheckpointReader::require_shape(const ManifestTensor& tensor, const std::vector<std::int64_t>& shape) const {
  if (tensor.shape == shape) return;
  throw Error(ErrorCode::TensorShapeMismatch, ErrorText{"tensor '" + tensor.name + "' has another shape", path_,
                                                        "found " + shape_text(tensor.shape) + ", expected " + shape_text(shape),
                                                        "", "use the model configuration that the checkpoint was made with"});
}

HostView CheckpointReader::piece_view(const ManifestTensor& tensor, const ManifestPiece& piece) const {
  const std::string entry = block_name(tensor.name, piece.block, tensor.shape);
  const SafetensorsFile& file = *files_.at(piece.file);
  const bool there = file.contains(entry);
  const HostView view = there ? file.view(entry) : HostView{};
  const std::string key = piece.file + "/" + entry;
  const bool known = !check_hashes_ || checked_.count(key) != 0;
  if (!there || view.dtype != tensor.dtype || view.shape != piece.block.shape || (!known && hash_text(hash64(view.data, view.bytes)) != piece.hash)) {
    throw Error(ErrorCode::CheckpointCorrupted,
                ErrorText{"tensor '" + tensor.name + "' does not match its hash", path_, piece.file, "",
                          "resume from an older step; 'deltron checkpoint verify' lists every fault"});
  }
  checked_.insert(key);
  return view;
}

HostView CheckpointReader::view(const std::string& name) const {
  const ManifestTensor& found = tensor(name);
  if (found.pieces.empty()) return piece_view(found, pieces_of(found)[0]);
  auto [place, fresh] = assembled_.try_emplace(name);
  if (fresh) place->second = read_block(name, found.shape, whole_block(found.shape));
  return place->second.view();
}

HostView CheckpointReader::view(const std::string& name, const std::vector<std::int64_t>& shape) const {
  require_shape(tensor(name), shape);
  return view(name);
}

HostArray CheckpointReader::read_block(const std::string& name, const std::vector<std::int64_t>& shape, const Block& block) const {
  const ManifestTensor& found = tensor(name);
  require_shape(found, shape);
  HostArray array = make_array(name, found.dtype, block.shape);
  const auto element_bytes = static_cast<std::int64_t>(dtype_size(found.dtype));
  std::int64_t copied = 0;
  for (const ManifestPiece& piece : pieces_of(found)) {
    bool meets = true;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      meets = meets && piece.block.offset[d] < block.offset[d] + block.shape[d] && block.offset[d] < piece.block.offset[d] + piece.block.shape[d];
    }
    if (meets) copied += copy_common(piece.block, piece_view(found, piece).data, block, array.bytes.data(), element_bytes);
  }
  DELTRON_CHECK_EQ(copied, element_count(block.shape), "elements read of '", name, "', block at ", shape_text(block.offset));
  return array;
}

void CheckpointReader::require_names(const std::vector<std::string>& wanted, bool weights_only) const {
  const std::string faults = compare_names(wanted, names(), !weights_only);
  if (faults.empty()) return;
  throw Error(ErrorCode::CheckpointTensorNames, ErrorText{"holds other tensors than the model", path_, faults, "",
                                                          "use the model configuration that the checkpoint was made with"});
}

}  // namespace deltron
