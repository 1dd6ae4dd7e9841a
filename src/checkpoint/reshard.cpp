// See reshard.h.
#include "src/checkpoint/reshard.h"

#include <cstdio>
#include <map>

#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"

namespace deltron {
namespace {

// "model" of model.safetensors, model-rank00003.safetensors and model-00001-of-00002.safetensors.
std::string group_of(const std::string& file) { return file.substr(0, file.find_first_of("-.")); }

std::string piece_suffix(int piece, int pieces) {
  if (pieces == 1) return "";
  char text[24];
  std::snprintf(text, sizeof(text), "-piece%05d", piece);
  return text;
}

}  // namespace

SaveReport reshard_checkpoint(const std::string& source, const std::string& run, int pieces, WriteObserver* observer) {
  const CheckpointReader reader(source);
  if (directory_exists(checkpoint_path(run, reader.step()))) {
    throw Error(ErrorCode::RunFolderTaken, ErrorText{"holds step " + std::to_string(reader.step()) + " already", run, "", "nothing is replaced",
                                                     "choose another folder for --output"});
  }
  CheckpointContent content;
  content.step = reader.step();
  content.state = reader.state();
  std::map<std::string, std::size_t> groups;
  for (const ManifestTensor& tensor : reader.manifest().tensors) {
    const HostView view = reader.view(tensor.name);
    const std::string name = group_of(pieces_of(tensor)[0].file);
    const std::int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const auto row_bytes = rows == 0 ? std::size_t{0} : view.bytes / static_cast<std::size_t>(rows);
    for (int piece = 0; piece < pieces; ++piece) {
      const std::int64_t begin = rows * piece / pieces, count = rows * (piece + 1) / pieces - begin;
      const bool whole = count == rows;
      if (count == 0 && !(rows == 0 && piece == 0)) continue;
      const auto [place, fresh] = groups.try_emplace(name + piece_suffix(piece, pieces), content.groups.size());
      if (fresh) content.groups.push_back({place->first, {}});
      Block block = whole_block(tensor.shape);
      HostView part = view;
      if (!whole) {
        block.offset[0] = begin;
        block.shape[0] = count;
        part.shape = block.shape;
        part.data += static_cast<std::size_t>(begin) * row_bytes;
        part.bytes = static_cast<std::size_t>(count) * row_bytes;
      }
      content.groups[place->second].tensors.push_back(TensorPiece(part, tensor.shape, block));
    }
  }
  SaveOptions options;
  options.observer = observer;
  return save_checkpoint(run, content, options);
}

}  // namespace deltron
