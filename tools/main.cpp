// The `deltron` binary: stop signals, then the command line.
#include <csignal>
#include <iostream>

#include <fcntl.h>

#include "src/base/signals.h"
#include "tools/command_line.h"

namespace {

// A file must never get the number of a standard stream that the caller closed: what is printed would land in it.
void open_standard_streams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) < 0) open("/dev/null", descriptor == 0 ? O_RDONLY : O_WRONLY);  // takes the lowest free number: this one
  }
}

}  // namespace

int main(int count, char** words) {
  open_standard_streams();
  deltron::install_stop_signals();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is met like a full disk: the write fails, and says so
  const std::vector<std::string> arguments(words + 1, words + count);
  return deltron::tools::run_command_line(deltron::tools::all_commands(), arguments, std::cout);
}
