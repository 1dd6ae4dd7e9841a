// See verify.h.
#include "src/checkpoint/verify.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "src/base/hash.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/safetensors.h"

namespace deltron {
namespace {

void verify_file(const std::string& path, const Manifest& manifest, const ManifestFileEntry& entry, bool from_device,
                 VerifyReport& report) {
  const std::string full = join_path(path, entry.name);
  const auto fault = [&](const std::string& tensor, const std::string& what) {
    report.faults.push_back({entry.name, tensor, what});
  };
  if (!file_exists(full)) return fault("", "file is missing");
  if (file_size(full) != entry.bytes) {
    return fault("", "file has " + std::to_string(file_size(full)) + " bytes instead of " + std::to_string(entry.bytes));
  }
  if (from_device) drop_page_cache(full);
  const std::size_t faults_before = report.faults.size();
  const MappedFile raw(full);
  const bool file_good = hash_text(hash64(raw.data(), raw.size())) == entry.hash;
  report.bytes += raw.size();

  std::unique_ptr<SafetensorsFile> file;
  try {
    file = std::make_unique<SafetensorsFile>(full);
  } catch (const Error& error) {
    return fault("", error.what());
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (const ManifestPiece& piece : pieces_of(tensor)) {
      if (piece.file != entry.name) continue;
      ++report.tensors;
      const std::string name = block_name(tensor.name, piece.block, tensor.shape);
      if (!file->contains(name)) {
        fault(name, "tensor is missing in its file");
        continue;
      }
      try {
        const HostView view = file->view(name);
        if (view.dtype != tensor.dtype || view.shape != piece.block.shape) {
          fault(name, std::string("is ") + dtype_name(view.dtype) + " " + shape_text(view.shape) + ", the manifest says " +
                          dtype_name(tensor.dtype) + " " + shape_text(piece.block.shape));
        } else if (hash_text(hash64(view.data, view.bytes)) != piece.hash) {
          fault(name, "content does not match its hash");
        }
      } catch (const Error& error) {
        fault(name, error.what());
      }
    }
  }
  if (!file_good && report.faults.size() == faults_before) fault("", "header or metadata do not match the hash of the file");
}

VerifyReport verify(const std::string& path, const std::vector<std::string>* only, bool from_device) {
  const auto start = std::chrono::steady_clock::now();
  VerifyReport report;
  report.path = path;
  try {
    if (from_device) drop_page_cache(join_path(path, kManifestFile));
    const Manifest manifest = read_manifest(path);
    report.step = manifest.step;
    for (const ManifestFileEntry& entry : manifest.files) {
      if (only == nullptr || std::find(only->begin(), only->end(), entry.name) != only->end()) {
        verify_file(path, manifest, entry, from_device, report);
      }
    }
  } catch (const Error& error) {
    report.faults.push_back({kManifestFile, "", error.what()});
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace

VerifyReport verify_checkpoint(const std::string& path, bool from_device) { return verify(path, nullptr, from_device); }

VerifyReport verify_files(const std::string& path, const std::vector<std::string>& files, bool from_device) {
  return verify(path, &files, from_device);
}

}  // namespace deltron
