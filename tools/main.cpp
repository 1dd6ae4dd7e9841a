// The `deltron` binary: stop signals, then the command line.
#include <iostream>

#include "src/base/signals.h"
#include "tools/command_line.h"

int main(int count, char** words) {
  deltron::install_stop_signals();
  const std::vector<std::string> arguments(words + 1, words + count);
  return deltron::tools::run_command_line(deltron::tools::all_commands(), arguments, std::cout);
}
