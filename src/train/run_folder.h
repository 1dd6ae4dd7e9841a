// The folder of one run: resolved configuration, commands, environment, metrics, log, checkpoints. Never overwritten: a new run takes an
// empty or absent folder, a resumed one adds to its own.
#pragma once

#include <string>
#include <vector>

#include "src/config/run_config.h"

namespace deltron {

inline constexpr const char* kResolvedConfigFile = "config.yaml";
inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kTensorboardFolder = "tensorboard";

// Held for as long as a process trains in the folder, so that a second one is refused before it touches anything. Ends with the process.
class RunLock {
 public:
  explicit RunLock(const std::string& run);  // makes the folder; throws RunFolderTaken
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

// Throws RunFolderNotWritable unless the folder can be made, or written to where it exists. Leaves nothing behind.
void require_writable(const std::string& run);
// Is there a run in this folder already?
bool is_run_folder(const std::string& run);
// Makes the folder, or checks that it is this run's: writes config.yaml once; a later start with other values writes
// config.step_N.yaml beside it and returns the changed keys as text lines.
std::vector<std::string> open_run_folder(const std::string& run, const RunConfig& config, std::int64_t resumed_step);
// Name of the file that open_run_folder wrote if it returned changes; kResolvedConfigFile is that of the beginning.
std::string changed_config_file(std::int64_t resumed_step);
// Appends the command line and what it ran on (version, git hash, processor, instruction set, threads).
void record_command(const std::string& run, const std::vector<std::string>& arguments, int threads);
// The resolved configuration of a run.
RunConfig read_run_config(const std::string& run, const std::vector<std::string>& overrides = {});
// "key: old -> new" for every key that differs.
std::vector<std::string> config_differences(const RunConfig& before, const RunConfig& after);

}  // namespace deltron
