// From a YAML file and command-line overrides to a RunConfig, with the place of every key and all faults found in one pass.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "src/config/run_config.h"

namespace deltron {

// Where each key was written, for messages.
struct ConfigSources {
  std::string file = {};                            // as the user named it; empty for a configuration made in code
  std::map<std::string, std::string> places = {};   // "section.key" and "section" -> "file:line:column" or "command line: ..."
  std::set<std::string> unreadable = {};            // keys that were written but could not be read

  bool given(const std::string& section, const std::string& key) const { return places.count(section + "." + key) != 0; }
  // The key's place, else its section's, else the file.
  std::string where(const std::string& section, const std::string& key) const;
};

struct LoadedConfig {
  RunConfig config = {};
  ConfigSources sources = {};
  bool complete = true;                  // false: a syntax error cut the file short, so that missing keys mean nothing
  std::vector<std::string> notices = {};  // older spellings that were read, with their places; load_config logs them
  std::vector<std::string> faults = {};  // formatted, in the order of the file, then overrides
};

// Never throws for faults in the text: they are in `faults`, and keys at fault keep their defaults.
LoadedConfig read_config_text(const std::string& text, const std::string& name, const std::vector<std::string>& overrides);
// The same for a file. Throws FileNotReadable.
LoadedConfig read_config_file(const std::string& path, const std::vector<std::string>& overrides);

// Read and validated (validate.h); throws everything that was found, together, as ConfigInvalid.
LoadedConfig load_config_text(const std::string& text, const std::string& name, const std::vector<std::string>& overrides = {});
LoadedConfig load_config(const std::string& path, const std::vector<std::string>& overrides = {});
// Throws ConfigInvalid with the place of data.data_path where nothing says what to train on: for commands that read data.
void require_data(const LoadedConfig& loaded);
RunConfig load_run_config(const std::string& path, const std::vector<std::string>& overrides = {});

}  // namespace deltron
