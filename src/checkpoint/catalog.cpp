// See catalog.h.
#include "src/checkpoint/catalog.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace deltron {
namespace {

constexpr std::string_view kStepPrefix = "step_";

bool begins_with(const std::string& text, std::string_view prefix) { return text.compare(0, prefix.size(), prefix) == 0; }

std::string marker_path(const std::string& run, std::int64_t step) {
  return join_path(checkpoints_folder(run), kFailedPrefix + step_name(step));
}

// Empty where every file of the manifest is there with its size.
std::string missing_files(const std::string& path, const Manifest& manifest) {
  std::size_t found = 0;
  std::string first;
  for (const ManifestFileEntry& file : manifest.files) {
    const std::string name = join_path(path, file.name);
    if (!file_exists(name)) {
      if (first.empty()) first = file.name + " is missing";
    } else if (file_size(name) != file.bytes) {
      if (first.empty()) {
        first = file.name + " has " + std::to_string(file_size(name)) + " bytes instead of " + std::to_string(file.bytes);
      }
    } else {
      ++found;
    }
  }
  if (first.empty()) return "";
  return first + "; " + std::to_string(found) + " of " + std::to_string(manifest.files.size()) + " files whole";
}

CheckpointSummary summarize(const std::string& run, std::int64_t step, std::int64_t now) {
  CheckpointSummary summary;
  summary.step = step;
  summary.path = checkpoint_path(run, step);
  if (!file_exists(join_path(summary.path, kManifestFile))) {
    summary.reason = "no manifest";
    return summary;
  }
  try {
    const Manifest manifest = read_manifest(summary.path);
    summary.save_number = manifest.save_number;
    summary.bytes = total_bytes(manifest);
    summary.seconds_since = std::max<std::int64_t>(0, now - manifest.created_unix);
    summary.reason =
        manifest.step == step ? missing_files(summary.path, manifest) : "the manifest is of step " + std::to_string(manifest.step);
    summary.complete = summary.reason.empty();
    const std::string marker = marker_path(run, step);
    if (summary.complete && file_exists(marker)) {
      const std::string text = read_file(marker);
      const std::size_t line = text.find('\n');
      if (text.substr(0, line) == manifest.hash) {
        summary.failed = true;
        summary.reason = line == std::string::npos ? "" : text.substr(line + 1);
        while (!summary.reason.empty() && summary.reason.back() == '\n') summary.reason.pop_back();
      }
    }
  } catch (const Error& error) {
    summary.complete = false;
    summary.reason = error.what();
  }
  return summary;
}

}  // namespace

std::string checkpoints_folder(const std::string& run) { return join_path(run, "checkpoints"); }

std::string step_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof(text), "step_%08lld", static_cast<long long>(step));
  return text;
}

std::optional<std::int64_t> step_of_name(const std::string& name) {
  if (!begins_with(name, kStepPrefix)) return {};
  const std::string digits = name.substr(kStepPrefix.size());
  if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return {};
  const std::int64_t step = std::stoll(digits);
  if (step_name(step) != name) return {};
  return step;
}

std::string checkpoint_path(const std::string& run, std::int64_t step) {
  return join_path(checkpoints_folder(run), step_name(step));
}

Manifest read_manifest(const std::string& path) {
  const std::string file = join_path(path, kManifestFile);
  return parse_manifest(read_file(file), file);
}

std::vector<CheckpointSummary> list_checkpoints(const std::string& run) {
  std::vector<CheckpointSummary> checkpoints;
  const std::string folder = checkpoints_folder(run);
  if (!directory_exists(folder)) return checkpoints;
  const std::int64_t now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::optional<std::int64_t> latest = latest_step(run);
  for (const std::string& name : list_directory(folder)) {
    const std::optional<std::int64_t> step = step_of_name(name);
    if (!step.has_value() || !directory_exists(join_path(folder, name))) continue;
    checkpoints.push_back(summarize(run, *step, now));
    checkpoints.back().latest = latest == step;
  }
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const CheckpointSummary& a, const CheckpointSummary& b) { return a.step < b.step; });
  return checkpoints;
}

std::optional<CheckpointSummary> newest_complete(const std::vector<CheckpointSummary>& checkpoints) {
  std::optional<CheckpointSummary> newest;
  for (const CheckpointSummary& checkpoint : checkpoints) {
    if (checkpoint.usable() && (!newest.has_value() || checkpoint.save_number > newest->save_number)) newest = checkpoint;
  }
  return newest;
}

std::string newest_complete_text(const std::vector<CheckpointSummary>& checkpoints) {
  const std::optional<CheckpointSummary> newest = newest_complete(checkpoints);
  if (!newest.has_value()) return "no complete checkpoint exists: --resume never starts anew";
  return "newest complete: step " + std::to_string(newest->step) + " (--resume " + std::to_string(newest->step) + " to train on, --step " + std::to_string(newest->step) + " to evaluate or generate)";
}

std::optional<std::int64_t> latest_step(const std::string& run) {
  const std::string path = join_path(checkpoints_folder(run), kLatestFile);
  if (!file_exists(path)) return {};
  std::string name = read_file(path);
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return step_of_name(name);
}

void move_latest(Disk& disk, const std::string& run, std::int64_t step) {
  disk.replace_file(join_path(checkpoints_folder(run), kLatestFile), step_name(step) + "\n");
}

void mark_failed(const std::string& run, std::int64_t step, const std::string& reason, WriteObserver* observer) {
  // Without a readable manifest the folder is incomplete anyway and is never chosen.
  std::string hash;
  try {
    hash = read_manifest(checkpoint_path(run, step)).hash;
  } catch (const Error&) {
    return;
  }
  Disk disk(observer);
  disk.replace_file(marker_path(run, step), hash + "\n" + reason + "\n");
}

std::vector<std::string> clean_stale(const std::string& run) {
  Disk disk;
  return clean_stale(disk, run);
}

std::vector<std::string> clean_stale(Disk& disk, const std::string& run) {
  std::vector<std::string> done;
  const std::string folder = checkpoints_folder(run);
  if (!directory_exists(folder)) return done;
  for (const std::string& name : list_directory(folder)) {
    const std::string path = join_path(folder, name);
    if (begins_with(name, kTemporaryPrefix) || begins_with(name, kDeletedPrefix)) {
      disk.remove(path);
      done.push_back("removed " + name + ", left by an interrupted save");
    } else if (begins_with(name, kReplacedPrefix)) {
      const std::string original = name.substr(std::string_view(kReplacedPrefix).size());
      const std::optional<std::int64_t> step = step_of_name(original);
      if (!step.has_value()) continue;
      if (!summarize(run, *step, 0).complete) {
        // The replacement never arrived: the replaced one comes back.
        disk.remove(join_path(folder, original));
        disk.rename(path, join_path(folder, original));
        disk.sync_folder(folder);
        done.push_back("restored " + original + ", whose replacement was interrupted");
      } else {
        const std::string deleted = join_path(folder, kDeletedPrefix + original);
        disk.remove(deleted);
        disk.rename(path, deleted);
        disk.remove(deleted);
        done.push_back("removed " + name + ", which was replaced");
      }
    }
  }
  return done;
}

}  // namespace deltron
