// Reads one checkpoint: logical tensors by name, each checked against its hash, and the trainer's state.
// Knows nothing of models; the names and shapes a model wants are given to it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/checkpoint/manifest.h"
#include "src/checkpoint/safetensors.h"

namespace deltron {

class CheckpointReader {
 public:
  // `path` is a step folder. Throws CheckpointIncomplete or ManifestInvalid. `check_hashes` off: for a checkpoint just verified.
  explicit CheckpointReader(const std::string& path, bool check_hashes = true);
  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  std::int64_t step() const { return manifest_.step; }
  const nlohmann::json& state() const { return manifest_.state; }
  std::vector<std::string> names() const;  // sorted
  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }

  // The whole tensor, put together first where it lies in pieces. Throws TensorNotFound (with nearest names) or CheckpointCorrupted (with the
  // tensor). The view lives as long as the reader.
  HostView view(const std::string& name) const;
  // The same, and the shape must be this one.
  HostView view(const std::string& name, const std::vector<std::int64_t>& shape) const;
  HostArray read(const std::string& name) const { return copy_of(view(name)); }
  // A block of a tensor that must have this whole shape, whatever blocks it was written in; only the pieces that it needs are read.
  HostArray read_block(const std::string& name, const std::vector<std::int64_t>& shape, const Block& block) const;

  // The checkpoint must hold exactly these names (or, for `weights_only`, at least these); all faults in one error.
  void require_names(const std::vector<std::string>& names, bool weights_only = false) const;

 private:
  const ManifestTensor& tensor(const std::string& name) const;
  void require_shape(const ManifestTensor& tensor, const std::vector<std::int64_t>& shape) const;
  HostView piece_view(const ManifestTensor& tensor, const ManifestPiece& piece) const;  // checked against its hash once

  std::string path_;
  bool check_hashes_;
  Manifest manifest_;
  mutable std::set<std::string> checked_;               // entries that matched their hash, as FILE/NAME
  mutable std::map<std::string, HostArray> assembled_;  // whole tensors that view() put together
  std::map<std::string, const ManifestTensor*> tensors_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

// Lines "missing 'a' (nearest: b, c)" and "unknown 'd' (nearest: ...)" of two lists of names; at most `most` of each kind.
std::string compare_names(const std::vector<std::string>& wanted, const std::vector<std::string>& found,
                          bool unknown_is_fault = true, int most = 5);

}  // namespace deltron
