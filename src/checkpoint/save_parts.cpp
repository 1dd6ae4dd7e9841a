// See save_parts.h.
#include "src/checkpoint/save_parts.h"

#include <cstdio>
#include <map>

#include "src/base/check.h"
#include "src/base/hash.h"
#include "src/checkpoint/json_strict.h"
#include "src/checkpoint/safetensors.h"

namespace deltron {
namespace {

using nlohmann::json;

// Runs of tensors, in the given order, of at most `limit` bytes each (one tensor alone may be larger).
std::vector<std::vector<const TensorPiece*>> cut_into_shards(const std::vector<TensorPiece>& tensors, std::uint64_t limit) {
  std::vector<std::vector<const TensorPiece*>> shards;
  std::uint64_t filled = 0;
  for (const TensorPiece& tensor : tensors) {
    if (shards.empty() || (filled > 0 && filled + tensor.view.bytes > limit)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(&tensor);
    filled += tensor.view.bytes;
  }
  return shards;
}

std::string shard_name(const std::string& group, std::size_t index, std::size_t count) {
  if (count == 1) return group + ".safetensors";
  char text[48];
  std::snprintf(text, sizeof(text), "-%05zu-of-%05zu.safetensors", index + 1, count);
  return group + text;
}

}  // namespace

WrittenPart write_part(Disk& disk, const std::string& folder, const std::vector<TensorGroup>& groups, const std::string& suffix,
                       std::uint64_t shard_bytes) {
  WrittenPart part;
  std::map<std::string, std::size_t> places;
  for (const TensorGroup& group : groups) {
    const auto shards = cut_into_shards(group.tensors, shard_bytes);
    for (std::size_t i = 0; i < shards.size(); ++i) {
      std::vector<HostView> entries;
      for (const TensorPiece* piece : shards[i]) {
        entries.push_back(piece->view);
        entries.back().name = block_name(piece->view.name, piece->block, piece->shape);
      }
      const std::string name = shard_name(group.name + suffix, i, shards.size());
      const WrittenTensors written = write_safetensors_in_place(disk, join_path(folder, name), entries, {});
      part.files.push_back({name, written.bytes, hash_text(written.hash)});
      for (std::size_t t = 0; t < shards[i].size(); ++t) {
        const TensorPiece& piece = *shards[i][t];
        const auto [place, fresh] = places.try_emplace(piece.view.name, part.tensors.size());
        if (fresh) part.tensors.push_back({piece.view.name, piece.view.dtype, piece.shape, "", ""});
        part.tensors[place->second].pieces.push_back({piece.block, name, hash_text(written.tensor_hashes[t])});
      }
    }
  }
  return part;
}

std::string part_to_text(const WrittenPart& part) {
  json text = {{"files", json::array()}, {"tensors", json::array()}};
  for (const ManifestFileEntry& file : part.files) text["files"].push_back({file.name, file.bytes, file.hash});
  for (const ManifestTensor& tensor : part.tensors) {
    json pieces = json::array();
    for (const ManifestPiece& piece : tensor.pieces) pieces.push_back({piece.block.offset, piece.block.shape, piece.file, piece.hash});
    text["tensors"].push_back({tensor.name, dtype_name(tensor.dtype), tensor.shape, pieces});
  }
  return text.dump();
}

WrittenPart part_from_text(const std::string& text, const std::string& where) {
  using Sizes = std::vector<std::int64_t>;
  const json root = parse_json_strict(text, where, ErrorCode::ManifestInvalid);
  WrittenPart part;
  for (const json& file : root.at("files")) {
    part.files.push_back({file.at(0).get<std::string>(), file.at(1).get<std::uint64_t>(), file.at(2).get<std::string>()});
  }
  for (const json& tensor : root.at("tensors")) {
    part.tensors.push_back({tensor.at(0).get<std::string>(), dtype_from_name(tensor.at(1).get<std::string>(), where), tensor.at(2).get<Sizes>(), "", ""});
    for (const json& piece : tensor.at(3)) {
      part.tensors.back().pieces.push_back(
          {{piece.at(0).get<Sizes>(), piece.at(1).get<Sizes>()}, piece.at(2).get<std::string>(), piece.at(3).get<std::string>()});
    }
  }
  return part;
}

void merge_parts(const std::vector<WrittenPart>& parts, Manifest& manifest) {
  std::map<std::string, std::size_t> places;
  for (const WrittenPart& part : parts) {
    manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
    for (const ManifestTensor& tensor : part.tensors) {
      const auto [place, fresh] = places.try_emplace(tensor.name, manifest.tensors.size());
      if (fresh) {
        manifest.tensors.push_back(tensor);
        continue;
      }
      ManifestTensor& merged = manifest.tensors[place->second];
      DELTRON_CHECK(merged.dtype == tensor.dtype && merged.shape == tensor.shape, "ranks disagree on '", tensor.name, "'");
      merged.pieces.insert(merged.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
    }
  }
  for (ManifestTensor& tensor : manifest.tensors) {
    std::vector<Block> blocks;
    for (const ManifestPiece& piece : tensor.pieces) blocks.push_back(piece.block);
    const std::string fault = why_not_tiling(tensor.shape, blocks);
    DELTRON_CHECK(fault.empty(), "the ranks' pieces of '", tensor.name, "': ", fault);
    if (tensor.pieces.size() != 1) continue;
    tensor.file = tensor.pieces[0].file;
    tensor.hash = tensor.pieces[0].hash;
    tensor.pieces.clear();
  }
}

}  // namespace deltron
