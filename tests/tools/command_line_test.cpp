// The command line: parsing into a command's members, usage errors with suggestions, and exceptions as exit codes.
#include <gmock/gmock.h>

#include <functional>
#include <iterator>
#include <new>
#include <ostream>
#include <stdexcept>

#include "src/base/error.h"
#include "tests/tools/run_cli.h"

namespace deltron::tools {
namespace {

using deltron::testing::CliResult;
using deltron::testing::run_cli;
using ::testing::HasSubstr;

struct Given {
  std::string file, kind = "a";
  std::vector<std::string> overrides, names;
  std::int64_t count = 7;
  double rate = 0.5;
  bool flag = false;
};

class SampleCommand : public Command {
 public:
  SampleCommand(std::string name, std::function<ExitCode(const Given&, CommandIo&)> work)
      : name_(std::move(name)), work_(std::move(work)) {}
  std::string name() const override { return name_; }
  std::string summary() const override { return "does something"; }
  std::string examples() const override { return "  deltron " + name_ + " x --count 3\n"; }
  void declare(OptionSet& options) override {
    options.positional("file", given_.file, true, "a file");
    options.rest("override", given_.overrides, false, "section.key=value");
    options.value("-n,--count", given_.count, "N", "how many");
    options.value("--rate", given_.rate, "X", "a number");
    options.values("--name", given_.names, "NAME", "names");
    options.choice("--kind", given_.kind, {"alpha", "beta", "a"}, "which");
    options.flag("--flag", given_.flag, "a switch");
  }
  ExitCode run(CommandIo& io) override { return work_(given_, io); }

 private:
  std::string name_;
  std::function<ExitCode(const Given&, CommandIo&)> work_;
  Given given_;
};

CommandTable sample_table(const std::function<ExitCode(const Given&, CommandIo&)>& work) {
  CommandTable table;
  table.groups.push_back({"group", "things in a group"});
  table.commands.push_back(std::make_unique<SampleCommand>("sample", work));
  table.commands.push_back(std::make_unique<SampleCommand>("group inner", work));
  return table;
}

CliResult run_sample(const std::vector<std::string>& arguments, Given* given = nullptr) {
  return run_cli(sample_table([given](const Given& seen, CommandIo& io) {
                   if (given != nullptr) *given = seen;
                   io.out << "ran";
                   return ExitCode::Done;
                 }),
                 arguments);
}

TEST(CommandLine, options_and_positionals_reach_the_command) {
  Given given;
  const CliResult result = run_sample(
      {"sample", "f.yaml", "a.b=1", "c.d=2", "-n", "3", "--rate=0.25", "--name", "x", "--name", "y", "--kind", "beta", "--flag"},
      &given);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "ran");
  EXPECT_EQ(given.file, "f.yaml");
  EXPECT_THAT(given.overrides, ::testing::ElementsAre("a.b=1", "c.d=2"));
  EXPECT_EQ(given.count, 3);
  EXPECT_EQ(given.rate, 0.25);
  EXPECT_THAT(given.names, ::testing::ElementsAre("x", "y"));
  EXPECT_EQ(given.kind, "beta");
  EXPECT_TRUE(given.flag);
}

TEST(CommandLine, defaults_stay_where_nothing_is_given) {
  Given given;
  EXPECT_EQ(run_sample({"sample", "f"}, &given).code, 0);
  EXPECT_EQ(given.count, 7);
  EXPECT_EQ(given.kind, "a");
  EXPECT_FALSE(given.flag);
}

TEST(CommandLine, a_positional_may_have_the_name_of_a_command) {
  Given given;
  EXPECT_EQ(run_sample({"sample", "sample", "group"}, &given).code, 0);
  EXPECT_EQ(given.file, "sample");
  EXPECT_THAT(given.overrides, ::testing::ElementsAre("group"));
}

TEST(CommandLine, commands_of_a_group_are_found) {
  Given given;
  EXPECT_EQ(run_sample({"group", "inner", "f", "--count", "9"}, &given).code, 0);
  EXPECT_EQ(given.count, 9);
}

TEST(CommandLine, usage_errors_exit_with_2_and_say_what_is_near) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> rows = {
      {{"sampel", "f"}, "unknown command 'sampel'; did you mean 'sample'?"},
      {{"group", "iner"}, "deltron group: unknown command 'iner'; did you mean 'inner'?"},
      {{"sample", "f", "--cuont", "3"}, "deltron sample: unknown option '--cuont'; did you mean '--count'?"},
      {{"sample", "--flg"}, "unknown option '--flg'; did you mean '--flag'?"},
      {{"--verison"}, "unknown option '--verison'; did you mean '--version'?"},
      {{"sample"}, "deltron sample: FILE is missing"},
      {{"sample", "f", "--kind", "betta"}, "'betta' is no --kind; did you mean 'beta'?"},
      {{"sample", "f", "--count", "many"}, "--count"},
      {{"sample", "f", "--count"}, "--count"},
      {{"sample", "f", "-q", "-v"}, "--quiet and --verbose exclude each other"},
      {{"group"}, "deltron group: a command is missing"},
      {{}, "a command is missing"},
  };
  for (const auto& [arguments, message] : rows) {
    const CliResult result = run_sample(arguments);
    EXPECT_EQ(result.code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr("E100 ")) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(result.out, "") << message;
  }
}

TEST(CommandLine, help_goes_to_stdout_and_shows_options_and_examples) {
  const CliResult root = run_sample({"--help"});
  EXPECT_EQ(root.code, 0);
  EXPECT_THAT(root.out, HasSubstr("sample"));
  EXPECT_THAT(root.out, HasSubstr("things in a group"));
  const CliResult result = run_sample({"sample", "--help"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("--count"));
  EXPECT_THAT(result.out, HasSubstr("Usage: deltron sample [OPTIONS] file"));
  EXPECT_THAT(result.out, HasSubstr("deltron sample x --count 3"));
}

TEST(CommandLine, version_names_the_commit) {
  const CliResult result = run_sample({"--version"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("deltron 0."));
  EXPECT_THAT(result.out, HasSubstr("commit"));
}

TEST(CommandLine, every_failure_has_its_exit_code) {
  using Thrower = std::function<void()>;
  const std::vector<std::tuple<int, std::string, Thrower>> rows = {
      {4, "E404 here: gone",
       [] {
         throw Error(ErrorCode::TensorNotFound, ErrorText{"gone", "here"});
       }},
      {6, "E600", [] { throw Error(ErrorCode::NonFiniteValue, ErrorText{"nan"}); }},
      {143, "stopped: SIGTERM during training; nothing is saved", [] { throw StopRequested("SIGTERM during training"); }},
      {5, "E500", [] { throw std::bad_alloc(); }},
      {8, "E800 unexpected failure: odd", [] { throw std::runtime_error("odd"); }},
      {8, "E800", [] { throw 3; }},
  };
  for (const auto& row : rows) {
    const Thrower& thrower = std::get<2>(row);
    const CliResult result = run_cli(sample_table([&thrower](const Given&, CommandIo&) -> ExitCode {
                                       thrower();
                                       return ExitCode::Done;
                                     }),
                                     {"sample", "f"});
    EXPECT_EQ(result.code, std::get<0>(row));
    EXPECT_THAT(result.err, HasSubstr(std::get<1>(row)));
  }
}

class ResumableCommand : public SampleCommand {
 public:
  using SampleCommand::SampleCommand;
  bool resumable() const override { return true; }
};

TEST(CommandLine, a_stopped_command_that_can_go_on_exits_with_75) {
  CommandTable table;
  table.commands.push_back(std::make_unique<ResumableCommand>("sample", [](const Given&, CommandIo&) -> ExitCode { throw StopRequested("SIGINT"); }));
  const CliResult result = run_cli(table, {"sample", "f"});
  EXPECT_EQ(result.code, 75);
  EXPECT_THAT(result.err, HasSubstr("stopped: SIGINT"));
}

TEST(CommandLine, only_training_can_go_on) {
  for (const std::unique_ptr<Command>& command : all_commands().commands) EXPECT_EQ(command->resumable(), command->name() == "train") << command->name();
}

TEST(CommandLine, output_that_cannot_be_written_is_a_failure_unless_there_is_a_worse_one) {
  class Full : public std::streambuf {};  // takes nothing
  for (const ExitCode code : {ExitCode::Done, ExitCode::Data}) {
    Full full;
    std::ostream out(&full);
    ::testing::internal::CaptureStderr();
    const int result = run_command_line(sample_table([code](const Given&, CommandIo& io) {
                                          io.out << "a result";
                                          return code;
                                        }),
                                        {"sample", "f"}, out);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("E801 standard output: the result cannot be written"));
    EXPECT_EQ(result, code == ExitCode::Done ? 8 : 3);
  }
}

TEST(CommandLine, every_command_has_a_summary_and_examples) {
  const CommandTable table = all_commands();
  ASSERT_FALSE(table.commands.empty());
  for (const auto& command : table.commands) {
    EXPECT_FALSE(command->summary().empty()) << command->name();
    EXPECT_THAT(command->examples(), HasSubstr("deltron " + command->name()));
    std::istringstream words(command->name());
    std::vector<std::string> line{std::istream_iterator<std::string>(words), {}};
    line.push_back("--help");
    const CliResult result = run_cli(line);
    EXPECT_EQ(result.code, 0) << command->name();
    EXPECT_THAT(result.out, HasSubstr("Examples:"));
  }
}

}  // namespace
}  // namespace deltron::tools
