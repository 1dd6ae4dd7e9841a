// What a subcommand of `deltron` is: a name, help with examples, options bound to its own members, and run(). Knows nothing of the
// command-line library (tools/command_line.cpp alone does), so that a command compiles in no time.
//
// A new command: tools/cmd_<name>.cpp that defines `std::unique_ptr<Command> make_<name>_command()` in deltron::tools, one line in
// tools/commands.def, one in tools/CMakeLists.txt.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "src/base/exit_code.h"

namespace deltron::tools {

// Declares options and positional arguments; what stands in `target` before is the default. `names` is "-c,--config" or "--json".
class OptionSet {
 public:
  virtual ~OptionSet() = default;
  virtual void flag(const std::string& names, bool& target, const std::string& help) = 0;
  virtual void value(const std::string& names, std::string& target, const std::string& placeholder, const std::string& help) = 0;
  virtual void value(const std::string& names, std::int64_t& target, const std::string& placeholder, const std::string& help) = 0;
  virtual void value(const std::string& names, double& target, const std::string& placeholder, const std::string& help) = 0;
  // May be given several times.
  virtual void values(const std::string& names, std::vector<std::string>& target, const std::string& placeholder,
                      const std::string& help) = 0;
  // One of `words`; anything else is a usage error that lists them.
  virtual void choice(const std::string& names, std::string& target, const std::vector<std::string>& words,
                      const std::string& help) = 0;
  // Not shown in help: for tests.
  virtual void hidden_value(const std::string& names, std::string& target) = 0;
  // In the order of their declaration; `rest` takes all that follow. `name` is shown in upper case: FILE.
  virtual void positional(const std::string& name, std::string& target, bool required, const std::string& help) = 0;
  virtual void rest(const std::string& name, std::vector<std::string>& target, bool required, const std::string& help) = 0;
  // Everything from the first word that is no option on, or behind "--": another command's words, untouched.
  virtual void tail(const std::string& name, std::vector<std::string>& target, const std::string& help) = 0;
  virtual void require(const std::string& name) = 0;  // the option with this long name ("--output") must be given
};

// What a command runs in. Results go to `out`, messages through src/base/log.h.
struct CommandIo {
  std::ostream& out;
  bool colour = false;  // of `out`
  bool quiet = false;
  bool verbose = false;
  std::vector<std::string> arguments = {};  // the whole command line after the program's name, for run records
};

class Command {
 public:
  virtual ~Command() = default;
  virtual std::string name() const = 0;      // "train", or "data prepare" inside a group
  virtual std::string summary() const = 0;   // one line
  virtual std::string examples() const = 0;  // whole command lines, one a line
  virtual void declare(OptionSet& options) = 0;
  // Failures are exceptions (Error and so on); a returned code is a result: "did not pass".
  virtual ExitCode run(CommandIo& io) = 0;
  // Does the same command line go on where a stop request ended it? Then exit code 75, else 128 + the signal's number.
  virtual bool resumable() const { return false; }
};

// Wrong use that only the command itself can see: ErrorCode::UsageError, exit code 2.
[[noreturn]] void usage_error(const std::string& command, const std::string& what, const std::string& fix = {});

}  // namespace deltron::tools
