// The manifest of one checkpoint: what it holds, the hash of every tensor and file, and the trainer's state as free-form JSON.
// Text form and its own hash are in docs/checkpoint_format.md. Knows nothing of folders or of what the state means.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/base/dtype.h"
#include "src/checkpoint/blocks.h"

namespace deltron {

// Version 2 adds tensors in pieces; a manifest without any is written as version 1.
inline constexpr int kManifestVersion = 2;
inline constexpr const char* kManifestFile = "manifest.json";

struct ManifestFileEntry {
  std::string name;
  std::uint64_t bytes = 0;
  std::string hash;
};

// A block of a tensor that several ranks wrote: it stands in `file` under block_name().
struct ManifestPiece {
  Block block;
  std::string file;
  std::string hash;
};

struct ManifestTensor {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;  // of the whole tensor
  std::string file;                 // where it lies in one piece
  std::string hash;
  std::vector<ManifestPiece> pieces = {};  // otherwise: they cover it exactly once
};

// The pieces of any tensor; one that lies in one piece has that one.
std::vector<ManifestPiece> pieces_of(const ManifestTensor& tensor);

struct Manifest {
  std::int64_t step = 0;
  std::int64_t save_number = 0;   // grows with every save of a run: the order in which checkpoints were written
  std::int64_t created_unix = 0;  // seconds; for people, never for a decision
  std::vector<ManifestFileEntry> files;
  std::vector<ManifestTensor> tensors;
  nlohmann::json state = nlohmann::json::object();
  std::string hash;  // of the manifest's own text, set by reading and composing
};

std::uint64_t total_bytes(const Manifest& manifest);
// The text that is written; sets manifest.hash.
std::string compose_manifest(Manifest& manifest);
// Throws ManifestInvalid: own hash first, then every field.
Manifest parse_manifest(std::string_view text, const std::string& where);
DType dtype_from_name(std::string_view name, const std::string& where);

}  // namespace deltron
