// See run_folder.h.
#include "src/train/run_folder.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/cpu_info.h"
#include "src/base/file.h"
#include "src/base/version.h"
#include "src/config/loader.h"
#include "src/config/schema.h"
#include "src/tensor/context.h"

namespace deltron {

namespace {

constexpr const char* kLockFile = ".lock";

// A start that was killed while it wrote its first file leaves that file's temporary name behind.
bool is_leftover(const std::string& name) { return name.rfind(std::string(kResolvedConfigFile) + ".tmp.", 0) == 0; }

void refuse_foreign_folder(const std::string& run) {
  for (const std::string& name : list_directory(run)) {
    if (name == kLockFile || is_leftover(name)) continue;
    throw Error(ErrorCode::RunFolderTaken, ErrorText{"the folder is not empty and holds no run", run, "", "a run is never mixed with other files",
                                                     "choose another checkpoint.save"});
  }
}

[[noreturn]] void refuse_writing(const std::string& path, int number) {
  throw Error(ErrorCode::RunFolderNotWritable, ErrorText{"the run folder cannot be written", "checkpoint.save", path + ": " + std::strerror(number),
                                                         "a run writes its configuration, metrics, log and checkpoints there",
                                                         "choose another checkpoint.save, or mend path, permissions or free space"});
}

}  // namespace

void require_writable(const std::string& run) {
  std::string standing = run;  // the part of the path that exists
  struct stat info{};
  while (stat(standing.c_str(), &info) != 0) {
    if (errno != ENOENT || parent_folder(standing) == standing) refuse_writing(standing, errno);
    standing = parent_folder(standing);
  }
  if (!S_ISDIR(info.st_mode)) refuse_writing(standing, ENOTDIR);
  // Access rights do not tell of read-only and full file systems: a folder is made and taken away.
  std::string probe = join_path(standing, ".deltron_probe.XXXXXX");
  if (mkdtemp(probe.data()) == nullptr) refuse_writing(standing, errno);
  rmdir(probe.c_str());
}

RunLock::RunLock(const std::string& run) {
  if (directory_exists(run) && !is_run_folder(run)) refuse_foreign_folder(run);
  std::error_code failure;
  std::filesystem::create_directories(run, failure);
  if (failure && !directory_exists(run)) refuse_writing(run, failure.value());
  const std::string path = join_path(run, kLockFile);
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) refuse_writing(path, errno);
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    close(descriptor_);
    throw Error(ErrorCode::RunFolderTaken, ErrorText{"another process trains in this folder", run, "", "one training a run folder",
                                                     "wait for it, stop it, or choose another checkpoint.save"});
  }
}

RunLock::~RunLock() { close(descriptor_); }

bool is_run_folder(const std::string& run) { return file_exists(join_path(run, kResolvedConfigFile)); }

std::vector<std::string> config_differences(const RunConfig& before, const RunConfig& after) {
  std::vector<std::string> lines;
  for (const Field& field : config_fields()) {
    const std::string old_text = value_text(field, field.get(before)), new_text = value_text(field, field.get(after));
    if (old_text != new_text) lines.push_back(field.name() + ": " + old_text + " -> " + new_text);
  }
  return lines;
}

std::string changed_config_file(std::int64_t resumed_step) { return "config.step_" + std::to_string(resumed_step) + ".yaml"; }

std::vector<std::string> open_run_folder(const std::string& run, const RunConfig& config, std::int64_t resumed_step) {
  make_directories(run);
  const std::string path = join_path(run, kResolvedConfigFile);
  if (!file_exists(path)) {
    for (const std::string& name : list_directory(run)) {
      if (is_leftover(name)) remove_tree(join_path(run, name));
    }
    refuse_foreign_folder(run);
    write_file_atomically(path, to_yaml(config));
    return {};
  }
  const std::vector<std::string> changed = config_differences(read_run_config(run), config);
  if (!changed.empty()) {
    write_file_atomically(join_path(run, changed_config_file(resumed_step)), to_yaml(config));
  }
  return changed;
}

void record_command(const std::string& run, const std::vector<std::string>& arguments, int threads) {
  nlohmann::ordered_json entry;
  entry["time"] = std::time(nullptr);
  entry["command"] = arguments;
  entry["version"] = DELTRON_VERSION;
  entry["git"] = DELTRON_GIT_HASH;
  entry["compiler"] = DELTRON_COMPILER;
  entry["processor"] = cpu_model_name();
  entry["instruction_set"] = instruction_set();
  entry["threads"] = threads;
  FileWriter writer(join_path(run, "commands.jsonl"), true);
  writer.write(entry.dump() + "\n");
  writer.close(false);
}

RunConfig read_run_config(const std::string& run, const std::vector<std::string>& overrides) {
  const std::string path = join_path(run, kResolvedConfigFile);
  if (!file_exists(path)) {
    throw Error(ErrorCode::FileNotReadable, ErrorText{"no run here", run, "", "a run folder holds " + std::string(kResolvedConfigFile),
                                                      "give the folder that 'deltron train' wrote (checkpoint.save)"});
  }
  return load_run_config(path, overrides);
}

}  // namespace deltron
