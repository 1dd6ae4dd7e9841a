// The part of a checkpoint that one rank writes: its files in the step's temporary folder, and the description of them that rank 0 puts into
// the manifest. Knows neither the other ranks nor the order of a save.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/checkpoint/disk.h"
#include "src/checkpoint/manifest.h"

namespace deltron {

// A tensor, or a block of one, that is written here. Every element of a tensor is written by exactly one rank.
struct TensorPiece {
  TensorPiece(HostView whole) : view(std::move(whole)), shape(view.shape), block(whole_block(shape)) {}  // a whole tensor
  // `part` holds the elements of `where` of a tensor of `whole_shape` under that tensor's name.
  TensorPiece(HostView part, std::vector<std::int64_t> whole_shape, Block where)
      : view(std::move(part)), shape(std::move(whole_shape)), block(std::move(where)) {}
  HostView view;
  std::vector<std::int64_t> shape;
  Block block;
};

// Tensors that share files: "model" gives model.safetensors, or model-00001-of-00002.safetensors ... where it is larger than a
// shard; of several ranks model-rank00003.safetensors and so on.
struct TensorGroup {
  std::string name;
  std::vector<TensorPiece> tensors;
};

struct WrittenPart {
  std::vector<ManifestFileEntry> files;
  std::vector<ManifestTensor> tensors;  // each with the pieces that are here
};

// Writes and fsyncs the files. `suffix` keeps the ranks' names apart; empty for a rank alone.
WrittenPart write_part(Disk& disk, const std::string& folder, const std::vector<TensorGroup>& groups, const std::string& suffix,
                       std::uint64_t shard_bytes);

std::string part_to_text(const WrittenPart& part);
WrittenPart part_from_text(const std::string& text, const std::string& where);

// All parts as one list of files and tensors, in the order of the ranks. A piece that is the whole tensor becomes an ordinary entry. Throws
// an internal fault where the pieces of a tensor do not cover it exactly once or disagree on it: the callers' cut is wrong.
void merge_parts(const std::vector<WrittenPart>& parts, Manifest& manifest);

}  // namespace deltron
