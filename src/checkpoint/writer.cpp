// See writer.h.
#include "src/checkpoint/writer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "src/base/check.h"
#include "src/base/hash.h"
#include "src/base/human.h"
#include "src/checkpoint/safetensors.h"
#include "src/checkpoint/verify.h"

namespace deltron {
namespace {

constexpr std::uint64_t kSpaceMargin = std::uint64_t{1} << 20;  // headers of small files, the manifest, the file system's own needs
constexpr std::uint64_t kHeaderBytesPerTensor = 512;

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

// Runs of tensors, in the given order, of at most `limit` bytes each (one tensor alone may be larger).
std::vector<std::vector<HostView>> cut_into_shards(const std::vector<HostView>& tensors, std::uint64_t limit) {
  std::vector<std::vector<HostView>> shards;
  std::uint64_t filled = 0;
  for (const HostView& tensor : tensors) {
    if (shards.empty() || (filled > 0 && filled + tensor.bytes > limit)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(tensor);
    filled += tensor.bytes;
  }
  return shards;
}

std::string shard_name(const std::string& group, std::size_t index, std::size_t count) {
  if (count == 1) return group + ".safetensors";
  char text[48];
  std::snprintf(text, sizeof(text), "-%05zu-of-%05zu.safetensors", index + 1, count);
  return group + text;
}

void write_group(Disk& disk, const std::string& folder, const TensorGroup& group, std::uint64_t shard_bytes, Manifest& manifest) {
  const std::vector<std::vector<HostView>> shards = cut_into_shards(group.tensors, shard_bytes);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(group.name, i, shards.size());
    const WrittenTensors written = write_safetensors_in_place(disk, join_path(folder, name), shards[i], {});
    manifest.files.push_back({name, written.bytes, hash_text(written.hash)});
    for (std::size_t t = 0; t < shards[i].size(); ++t) {
      const HostView& tensor = shards[i][t];
      manifest.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, name, hash_text(written.tensor_hashes[t])});
    }
  }
}

void write_folder(Disk& disk, const std::string& folder, const CheckpointContent& content, std::uint64_t shard_bytes,
                  Manifest& manifest) {
  disk.make_folder(folder);
  for (const TensorGroup& group : content.groups) write_group(disk, folder, group, shard_bytes, manifest);
  const std::string text = compose_manifest(manifest);
  DiskFile file(disk, join_path(folder, kManifestFile));
  file.write(text.data(), text.size());
  file.finish();
  disk.sync_folder(folder);
}

void verify_written(const std::string& run, std::int64_t step, const std::string& path, bool replaced, SaveReport& report) {
  const VerifyReport verified = verify_checkpoint(path);
  report.verify_seconds = verified.seconds;
  if (verified.good()) return;
  const VerifyFault& fault = verified.faults.front();
  if (replaced) {
    remove_tree(path);  // clean_stale then brings the replaced one back
  } else {
    mark_failed(run, step, "read back wrong after writing: " + fault.what);
  }
  throw Error(
      ErrorCode::CheckpointCorrupted,
      ErrorText{fault.tensor.empty() ? fault.file + ": " + fault.what : "tensor '" + fault.tensor + "': " + fault.what, path,
                "found when the new checkpoint was read back", "", "check the disk; the older checkpoints are untouched"});
}

std::int64_t next_save_number(const std::vector<CheckpointSummary>& checkpoints) {
  std::int64_t last = 0;
  for (const CheckpointSummary& checkpoint : checkpoints) last = std::max(last, checkpoint.save_number);
  return last + 1;
}

}  // namespace

std::uint64_t bytes_needed(const CheckpointContent& content) {
  std::uint64_t bytes = kSpaceMargin;
  for (const TensorGroup& group : content.groups) {
    for (const HostView& tensor : group.tensors) bytes += tensor.bytes + kHeaderBytesPerTensor;
  }
  return bytes;
}

void check_free_space(const std::string& run, const CheckpointContent& content) {
  const std::string folder = checkpoints_folder(run);
  const std::uint64_t needed = bytes_needed(content);
  const std::uint64_t available = free_bytes(folder);
  if (available >= needed) return;
  throw Error(
      ErrorCode::CheckpointNoSpace,
      ErrorText{"not enough free space", folder, "needed " + human_bytes(needed) + ", free " + human_bytes(available),
                "the older checkpoints stay until the new one is verified", "free space there, or save to another file system"});
}

SaveReport save_checkpoint(const std::string& run, const CheckpointContent& content, const SaveOptions& options) {
  DELTRON_CHECK_GE(content.step, 0, "step of a checkpoint");
  const auto start = std::chrono::steady_clock::now();
  const std::string folder = checkpoints_folder(run);
  const std::string final_path = checkpoint_path(run, content.step);
  const std::string temporary = join_path(folder, kTemporaryPrefix + step_name(content.step));
  const std::string replaced = join_path(folder, kReplacedPrefix + step_name(content.step));
  SaveReport report;
  report.path = final_path;
  report.step = content.step;

  Disk disk(options.observer);
  disk.make_folder(folder);
  clean_stale(disk, run);
  check_free_space(run, content);
  Manifest manifest;
  manifest.step = content.step;
  manifest.save_number = next_save_number(list_checkpoints(run));
  manifest.created_unix =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  manifest.state = content.state;
  try {
    write_folder(disk, temporary, content, options.shard_bytes, manifest);
    const bool replaces = directory_exists(final_path);
    if (replaces) disk.rename(final_path, replaced);
    disk.rename(temporary, final_path);
    disk.sync_folder(folder);
    report.bytes = total_bytes(manifest);
    report.write_seconds = seconds_between(start, std::chrono::steady_clock::now());
    verify_written(run, content.step, final_path, replaces, report);
    if (replaces) disk.remove(replaced);
    move_latest(disk, run, content.step);
    report.removed = prune(disk, run, options.retention);
  } catch (...) {
    try {
      clean_stale(run);
    } catch (const Error&) {
      // The first fault is the one to report; what is left is cleaned at the next start.
    }
    throw;
  }
  return report;
}

}  // namespace deltron
