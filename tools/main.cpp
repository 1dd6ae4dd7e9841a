// The `deltron` binary: stop signals, then the command line.
#include <csignal>
#include <iostream>

#include "src/base/signals.h"
#include "tools/command_line.h"

int main(int count, char** words) {
  deltron::install_stop_signals();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is met like a full disk: the write fails, and says so
  const std::vector<std::string> arguments(words + 1, words + count);
  return deltron::tools::run_command_line(deltron::tools::all_commands(), arguments, std::cout);
}
