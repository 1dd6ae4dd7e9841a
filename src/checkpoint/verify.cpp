// See verify.h.
#include "src/checkpoint/verify.h"

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
    if (tensor.file != entry.name) continue;
    ++report.tensors;
    if (!file->contains(tensor.name)) {
      fault(tensor.name, "tensor is missing in its file");
      continue;
    }
    try {
      const HostView view = file->view(tensor.name);
      if (view.dtype != tensor.dtype || view.shape != tensor.shape) {
        fault(tensor.name, std::string("is ") + dtype_name(view.dtype) + " " + shape_text(view.shape) + ", the manifest says " +
                               dtype_name(tensor.dtype) + " " + shape_text(tensor.shape));
      } else if (hash_text(hash64(view.data, view.bytes)) != tensor.hash) {
        fault(tensor.name, "content does not match its hash");
      }
    } catch (const Error& error) {
      fault(tensor.name, error.what());
    }
  }
  if (!file_good && report.faults.size() == faults_before) fault("", "header or metadata do not match the hash of the file");
}

}  // namespace

VerifyReport verify_checkpoint(const std::string& path, bool from_device) {
  const auto start = std::chrono::steady_clock::now();
  VerifyReport report;
  report.path = path;
  try {
    if (from_device) drop_page_cache(join_path(path, kManifestFile));
    const Manifest manifest = read_manifest(path);
    report.step = manifest.step;
    for (const ManifestFileEntry& entry : manifest.files) verify_file(path, manifest, entry, from_device, report);
  } catch (const Error& error) {
    report.faults.push_back({kManifestFile, "", error.what()});
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace deltron
