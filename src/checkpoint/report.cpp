// See report.h.
#include "src/checkpoint/report.h"

#include <algorithm>

#include "src/base/human.h"
#include "src/checkpoint/host_array.h"
#include "src/checkpoint/reader.h"

namespace deltron {
namespace {

using nlohmann::json;

std::string padded(std::string text, std::size_t width, bool right = false) {
  if (text.size() < width) text.insert(right ? 0 : text.size(), width - text.size(), ' ');
  return text;
}

const char* state_word(const CheckpointSummary& checkpoint) {
  return !checkpoint.complete ? "incomplete" : checkpoint.failed ? "failed" : "complete";
}

}  // namespace

InspectReport inspect_checkpoint(const std::string& path) {
  const CheckpointReader reader(path, false);
  InspectReport report{path, reader.manifest(), 0};
  for (const ManifestTensor& tensor : report.manifest.tensors) report.elements += element_count(tensor.shape);
  return report;
}

std::string to_text(const std::vector<CheckpointSummary>& checkpoints) {
  if (checkpoints.empty()) return "no checkpoints\n";
  std::string text = "      step  state            size  written\n";
  for (const CheckpointSummary& checkpoint : checkpoints) {
    const bool known = checkpoint.save_number > 0;
    std::string line = padded(std::to_string(checkpoint.step), 10, true) + "  " + padded(state_word(checkpoint), 10) + "  " +
                       padded(known ? human_bytes(checkpoint.bytes) : "-", 9, true) + "  " +
                       (known ? human_seconds(static_cast<double>(checkpoint.seconds_since)) + " ago" : "-");
    if (checkpoint.latest) line += "  (latest)";
    if (!checkpoint.reason.empty()) line += "  " + checkpoint.reason;
    text += line + "\n";
  }
  return text;
}

std::string to_text(const InspectReport& report) {
  const Manifest& manifest = report.manifest;
  std::string text = report.path + ": step " + std::to_string(manifest.step) + ", save " + std::to_string(manifest.save_number) +
                     ", " + std::to_string(manifest.tensors.size()) + " tensors, " +
                     human_count(static_cast<double>(report.elements)) + " values, " + human_bytes(total_bytes(manifest)) + " in " +
                     std::to_string(manifest.files.size()) + " files\n";
  std::size_t width = 0;
  for (const ManifestTensor& tensor : manifest.tensors) width = std::max(width, tensor.name.size());
  for (const ManifestTensor& tensor : manifest.tensors) {
    text += "  " + padded(tensor.name, width) + "  " + padded(dtype_name(tensor.dtype), 5) + "  " + padded(shape_text(tensor.shape), 16) + "  ";
    text += tensor.pieces.empty() ? tensor.hash + "  " + tensor.file + "\n" : std::to_string(tensor.pieces.size()) + " pieces\n";
    for (const ManifestPiece& piece : tensor.pieces) {
      text += "    at " + padded(shape_text(piece.block.offset), 16) + "  " + padded(shape_text(piece.block.shape), 16) + "  " + piece.hash + "  " +
              piece.file + "\n";
    }
  }
  return text + "state " + manifest.state.dump(2) + "\n";
}

std::string to_text(const VerifyReport& report) {
  std::string text;
  for (const VerifyFault& fault : report.faults) {
    text += "FAULT " + fault.file + (fault.tensor.empty() ? "" : " tensor '" + fault.tensor + "'") + ": " + fault.what + "\n";
  }
  text += report.path + ": " + (report.good() ? "good" : std::to_string(report.faults.size()) + " faults") + ", " +
          std::to_string(report.tensors) + " tensors, " + human_bytes(report.bytes) + ", " + human_seconds(report.seconds) + "\n";
  return text;
}

json to_json(const std::vector<CheckpointSummary>& checkpoints) {
  json list = json::array();
  for (const CheckpointSummary& checkpoint : checkpoints) {
    list.push_back({{"step", checkpoint.step},
                    {"path", checkpoint.path},
                    {"state", state_word(checkpoint)},
                    {"latest", checkpoint.latest},
                    {"reason", checkpoint.reason},
                    {"bytes", checkpoint.bytes},
                    {"save_number", checkpoint.save_number},
                    {"seconds_since", checkpoint.seconds_since}});
  }
  return list;
}

json to_json(const InspectReport& report) {
  const Manifest& manifest = report.manifest;
  json tensors = json::array();
  for (const ManifestTensor& tensor : manifest.tensors) {
    json entry = {{"name", tensor.name}, {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}};
    if (tensor.pieces.empty()) {
      entry["file"] = tensor.file;
      entry["hash"] = tensor.hash;
    }
    for (const ManifestPiece& piece : tensor.pieces) {
      entry["pieces"].push_back({{"offset", piece.block.offset}, {"shape", piece.block.shape}, {"file", piece.file}, {"hash", piece.hash}});
    }
    tensors.push_back(entry);
  }
  json files = json::array();
  for (const ManifestFileEntry& file : manifest.files)
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"hash", file.hash}});
  return {{"path", report.path},         {"step", manifest.step},          {"save_number", manifest.save_number},
          {"elements", report.elements}, {"bytes", total_bytes(manifest)}, {"files", files},
          {"tensors", tensors},          {"state", manifest.state}};
}

json to_json(const VerifyReport& report) {
  json faults = json::array();
  for (const VerifyFault& fault : report.faults)
    faults.push_back({{"file", fault.file}, {"tensor", fault.tensor}, {"what", fault.what}});
  return {{"path", report.path},   {"step", report.step},       {"good", report.good()}, {"tensors", report.tensors},
          {"bytes", report.bytes}, {"seconds", report.seconds}, {"faults", faults}};
}

}  // namespace deltron
