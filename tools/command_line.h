// From the words of a command line to a command's exit code: parsing, help, version, did-you-mean, and the one place where
// exceptions become exit codes.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "tools/command.h"

namespace deltron::tools {

struct CommandGroup {
  std::string name;
  std::string summary;
};

struct CommandTable {
  std::vector<CommandGroup> groups;
  std::vector<std::unique_ptr<Command>> commands;
};

// All of tools/commands.def.
CommandTable all_commands();

// `arguments` without the program's name. Results and help go to `out`, messages to stderr. Never throws.
int run_command_line(const CommandTable& table, const std::vector<std::string>& arguments, std::ostream& out);

}  // namespace deltron::tools
