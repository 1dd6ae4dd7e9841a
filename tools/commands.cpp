// The table of commands, made from commands.def.
#include "tools/command_line.h"

namespace deltron::tools {

#define DELTRON_GROUP(name, summary)
#define DELTRON_COMMAND(name) std::unique_ptr<Command> make_##name##_command();
#include "tools/commands.def"
#undef DELTRON_COMMAND
#undef DELTRON_GROUP

CommandTable all_commands() {
  CommandTable table;
#define DELTRON_GROUP(name, summary) table.groups.push_back({#name, summary});
#define DELTRON_COMMAND(name) table.commands.push_back(make_##name##_command());
#include "tools/commands.def"
#undef DELTRON_COMMAND
#undef DELTRON_GROUP
  return table;
}

}  // namespace deltron::tools
