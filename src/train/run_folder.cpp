// See run_folder.h.
#include "src/train/run_folder.h"

#include <chrono>
#include <ctime>

#include <nlohmann/json.hpp>

#include "src/base/cpu_info.h"
#include "src/base/file.h"
#include "src/base/version.h"
#include "src/config/loader.h"
#include "src/config/schema.h"
#include "src/tensor/context.h"

namespace deltron {

bool is_run_folder(const std::string& run) { return file_exists(join_path(run, kResolvedConfigFile)); }

std::vector<std::string> config_differences(const RunConfig& before, const RunConfig& after) {
  std::vector<std::string> lines;
  for (const Field& field : config_fields()) {
    const std::string old_text = value_text(field, field.get(before)), new_text = value_text(field, field.get(after));
    if (old_text != new_text) lines.push_back(field.name() + ": " + old_text + " -> " + new_text);
  }
  return lines;
}

std::vector<std::string> open_run_folder(const std::string& run, const RunConfig& config, std::int64_t resumed_step) {
  make_directories(run);
  const std::string path = join_path(run, kResolvedConfigFile);
  if (!file_exists(path)) {
    // A start that was killed while it wrote its first file leaves that file's temporary name behind.
    const std::string temporary = std::string(kResolvedConfigFile) + ".tmp.";
    bool foreign = false;
    for (const std::string& name : list_directory(run)) {
      if (name.rfind(temporary, 0) == 0) {
        remove_tree(join_path(run, name));
      } else {
        foreign = true;
      }
    }
    if (foreign) {
      throw Error(ErrorCode::RunFolderTaken, ErrorText{"the folder is not empty and holds no run", run, "", "a run is never mixed with other files",
                                                       "choose another checkpoint.save"});
    }
    write_file_atomically(path, to_yaml(config));
    return {};
  }
  const std::vector<std::string> changed = config_differences(read_run_config(run), config);
  if (!changed.empty()) {
    write_file_atomically(join_path(run, "config.step_" + std::to_string(resumed_step) + ".yaml"), to_yaml(config));
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
