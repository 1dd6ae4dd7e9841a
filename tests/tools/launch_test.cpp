// `deltron launch` with real processes: the binary starts shells as ranks (--program), and waits are cut short (--grace).
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file.h"
#include "tests/tools/run_cli.h"
#include "tests/train/train_test_support.h"
#include "tools/launch/verdict.h"

namespace deltron::tools {
namespace {

using deltron::testing::CliResult;
using deltron::testing::run_cli;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kLongest = std::chrono::seconds(60);  // far above what anything here takes, with sanitizers too

bool comes_true(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// Where nobody reaps orphans they stay as zombies, which are gone as far as anybody's GPU is concerned.
bool gone(pid_t process) {
  const std::string stat = "/proc/" + std::to_string(process) + "/stat";
  try {
    return read_file(stat).find(") Z ") != std::string::npos;
  } catch (const Error&) {
    return true;
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines = lines_of(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

// A folder for what ranks leave, in the variable FOLDER of their scripts, and one launcher at a time.
class Launch : public ::testing::Test {
 protected:
  ~Launch() override {
    if (launcher_ > 0) {
      kill(launcher_, SIGKILL);
      waitpid(launcher_, nullptr, 0);
    }
  }
  std::string path(const std::string& name) { return folder_ / name; }

  void start(const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {DELTRON_PROGRAM, "launch"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const std::string out = path("out"), err = path("err"), folder = path("");
    launcher_ = fork();
    if (launcher_ != 0) return;
    setenv("FOLDER", folder.c_str(), 1);
    const int file = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(out_ >= 0 ? out_ : file, STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    execv(pointers[0], pointers.data());
    _exit(127);
  }
  void start_script(int ranks, const std::string& script, const std::vector<std::string>& options = {}) {
    std::vector<std::string> words = {"--nproc-per-node", std::to_string(ranks), "--program", "/bin/sh"};
    words.insert(words.end(), options.begin(), options.end());
    if (std::find(options.begin(), options.end(), "--grace") == options.end()) words.insert(words.end(), {"--grace", "0.2"});
    words.insert(words.end(), {"--", "-c", script});
    start(words);
  }
  // 128 + n for a launcher that signal n ended; -1 for one that does not end.
  CliResult finish() {
    CliResult result;
    int status = 0;
    if (!comes_true([&] { return waitpid(launcher_, &status, WNOHANG) == launcher_; })) {
      result.code = -1;
      return result;
    }
    launcher_ = 0;
    result.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    result.out = read_file(path("out"));
    result.err = read_file(path("err"));
    return result;
  }
  CliResult run_script(int ranks, const std::string& script, const std::vector<std::string>& options = {}) {
    start_script(ranks, script, options);
    return finish();
  }
  bool appears(const std::string& name) {
    return comes_true([&] { return file_exists(path(name)); });
  }
  void signal(int number) { kill(launcher_, number); }

  TempFolder folder_;
  pid_t launcher_ = 0;
  int out_ = -1;  // the launcher's standard output, instead of the file
};

TEST_F(Launch, ranks_see_torchruns_variables_and_our_own) {
  const std::string script =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $MASTER_PORT "
      "$DELTRON_RANK $DELTRON_WORLD_SIZE $DELTRON_LOCAL_RANK $DELTRON_LOCAL_WORLD_SIZE $DELTRON_MASTER_ADDR $DELTRON_MASTER_PORT $DELTRON_JOB_ID";
  const CliResult result = run_script(2, script, {"--nnodes", "3", "--node-rank", "1", "--master-addr", "node0", "--master-port", "2950"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(sorted_lines(result.out), ElementsAre("[2] 2 6 0 2 1 node0 2950 2 6 0 2 node0 2950 node0:2950",
                                                    "[3] 3 6 1 2 1 node0 2950 3 6 1 2 node0 2950 node0:2950"));
}

TEST_F(Launch, one_node_gets_a_port_and_a_job_of_its_own) {
  const CliResult first = run_script(1, "echo $MASTER_ADDR; [ $MASTER_PORT -gt 0 ] && echo $DELTRON_JOB_ID");
  EXPECT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(lines_of(first.out).size(), 2U);
  EXPECT_EQ(lines_of(first.out)[0], "127.0.0.1");
  EXPECT_NE(lines_of(run_script(1, "echo $MASTER_ADDR; echo $DELTRON_JOB_ID").out)[1], lines_of(first.out)[1]);
}

TEST_F(Launch, streams_stay_apart_and_lines_are_marked) {
  const CliResult result = run_script(2, "echo to out; echo to err >&2; printf 'no end'");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(sorted_lines(result.out), ElementsAre("[0] no end", "[0] to out", "[1] no end", "[1] to out"));
  EXPECT_THAT(result.err, HasSubstr("[1] to err\n"));
  EXPECT_THAT(result.err, HasSubstr("launch: 2 ranks, "));
  EXPECT_EQ(run_script(1, "printf 'a\\nb'").out, "a\nb");
}

TEST_F(Launch, this_binarys_commands_are_what_ranks_run) {
  start({"--nproc-per-node", "2", "--", "--version"});
  const CliResult result = finish();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[1] commit"));
  start({"--nproc-per-node", "2", "--grace", "30", "plan", "-c", path("missing.yaml")});
  const CliResult failed = finish();
  EXPECT_EQ(failed.code, 2);
  EXPECT_THAT(failed.err, HasSubstr("exit code 2 (command line or configuration)"));
}

TEST_F(Launch, the_first_failure_ends_all_and_its_last_lines_are_shown) {
  const CliResult result = run_script(3, "[ $RANK = 1 ] || exec sleep 100; for i in $(seq 30); do echo line $i; done; echo last >&2; exit 5");
  EXPECT_EQ(result.code, 5);
  EXPECT_THAT(result.err, HasSubstr("rank 1 of 3 failed first"));
  EXPECT_THAT(result.err, HasSubstr("exit code 5 (out of memory); its last 20 lines:\n"));
  EXPECT_THAT(result.err, HasSubstr("  | line 30\n"));
  EXPECT_THAT(result.err, Not(HasSubstr("  | line 10\n")));
  EXPECT_THAT(result.err, HasSubstr("exit code 5\n"));  // the summary
}

// Rank 0 ends first, but only because it missed rank 1, whose own end comes a moment later.
TEST_F(Launch, a_communication_failure_is_a_follower) {
  const CliResult result = run_script(2, "[ $RANK = 0 ] && exit 7; sleep 0.3; exit 6", {"--grace", "20"});
  EXPECT_EQ(result.code, 6);
  EXPECT_THAT(result.err, HasSubstr("rank 1 of 2 failed first"));
  const CliResult alone = run_script(2, "[ $RANK = 0 ] && exit 7; exit 0");
  EXPECT_EQ(alone.code, 7);
  EXPECT_THAT(alone.err, HasSubstr("rank 0 of 2 failed first"));
}

TEST_F(Launch, a_signal_is_named_and_becomes_128_and_its_number) {
  const CliResult result = run_script(2, "[ $RANK = 1 ] && kill -SEGV $$; exec sleep 100");
  EXPECT_EQ(result.code, 128 + SIGSEGV);
  EXPECT_THAT(result.err, HasSubstr("rank 1 of 2 failed first"));
  EXPECT_THAT(result.err, HasSubstr("SIGSEGV; it printed nothing"));
}

TEST_F(Launch, saved_and_stopped_is_75_unless_somebody_failed) {
  const CliResult result = run_script(2, "[ $RANK = 1 ] && exit 75; exit 0");
  EXPECT_EQ(result.code, 75);
  EXPECT_THAT(result.err, Not(HasSubstr("failed")));
  EXPECT_EQ(run_script(2, "[ $RANK = 1 ] && exit 75; exit 3").code, 3);
}

TEST_F(Launch, stop_signals_reach_every_rank) {
  for (const int number : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) {
    const std::string name = std::to_string(number);
    start_script(2, "trap 'echo got " + name + "; exit 75' " + name + "; touch $FOLDER/" + name + "_$RANK; while :; do sleep 0.01; done");
    ASSERT_TRUE(appears(name + "_0") && appears(name + "_1"));
    signal(number);
    const CliResult result = finish();
    EXPECT_EQ(result.code, 75) << result.err;
    EXPECT_THAT(sorted_lines(result.out), ElementsAre("[0] got " + name, "[1] got " + name));
  }
}

TEST_F(Launch, ranks_that_a_passed_signal_ends_have_not_failed) {
  start_script(2, "touch $FOLDER/$RANK; exec sleep 100");
  ASSERT_TRUE(appears("0") && appears("1"));
  signal(SIGTERM);
  const CliResult result = finish();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_THAT(result.err, Not(HasSubstr("failed")));
}

TEST_F(Launch, output_that_nobody_reads_is_a_stop_request) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  out_ = ends[1];
  start_script(2, "trap 'exit 75' TERM; touch $FOLDER/$RANK; while [ ! -e $FOLDER/go ]; do sleep 0.01; done; echo word; "
                  "while :; do sleep 0.01; done");
  close(ends[1]);
  ASSERT_TRUE(appears("0") && appears("1"));
  write_file_atomically(path("go"), "");
  const CliResult result = finish();
  EXPECT_EQ(result.code, 75);
  EXPECT_THAT(result.err, HasSubstr("nobody reads the output any more"));
}

TEST(LaunchVerdict, followers_of_a_stop_are_no_failures) {
  const RankEnd stopped{0, {0, SIGTERM}, 1, false}, follower{1, {7, 0}, 2, false}, saved{2, {75, 0}, 3, false}, broken{3, {6, 0}, 4, false},
      killed{4, {0, SIGKILL}, 5, true};
  EXPECT_EQ(judge({stopped, follower, saved}, {SIGTERM}).exit_code, 128 + SIGTERM);
  EXPECT_EQ(judge({stopped, follower, saved}, {SIGTERM}).culprit, -1);
  EXPECT_EQ(judge({follower, broken, killed}, {}).culprit, 1);
  EXPECT_EQ(judge({follower, killed}, {}).exit_code, 7);
  EXPECT_EQ(judge({stopped, saved}, {}).exit_code, 128 + SIGTERM);
  EXPECT_EQ(judge({stopped, saved}, {}).culprit, 0);
  EXPECT_EQ(judge({killed, saved}, {SIGINT, SIGTERM}).exit_code, 128 + SIGTERM);
}

TEST_F(Launch, a_second_stop_signal_kills) {
  start_script(2, "trap 'touch $FOLDER/seen$RANK' TERM; touch $FOLDER/$RANK; while :; do sleep 0.01; done");
  ASSERT_TRUE(appears("0") && appears("1"));
  signal(SIGTERM);
  ASSERT_TRUE(appears("seen0") && appears("seen1"));
  signal(SIGINT);
  const CliResult result = finish();
  EXPECT_EQ(result.code, 128 + SIGINT);
  EXPECT_THAT(result.err, HasSubstr("a second SIGINT: SIGKILL to rank 0, 1"));
}

TEST_F(Launch, a_rank_that_ignores_sigterm_is_killed_after_a_failure) {
  const CliResult result = run_script(2, "[ $RANK = 0 ] || { trap '' TERM; touch $FOLDER/ready; while :; do sleep 0.01; done; }; "
                                         "while [ ! -e $FOLDER/ready ]; do sleep 0.01; done; exit 8");
  EXPECT_EQ(result.code, 8);
  EXPECT_THAT(result.err, HasSubstr("SIGTERM to rank 1"));
  EXPECT_THAT(result.err, HasSubstr("SIGKILL to rank 1"));
  EXPECT_THAT(result.err, HasSubstr("rank 0 of 2 failed first"));
}

TEST_F(Launch, ranks_die_with_the_launcher) {
  start_script(2, "echo $$ > $FOLDER/part$RANK; mv $FOLDER/part$RANK $FOLDER/$RANK; exec sleep 100");
  ASSERT_TRUE(appears("0") && appears("1"));
  const pid_t ranks[] = {std::stoi(read_file(path("0"))), std::stoi(read_file(path("1")))};
  EXPECT_FALSE(gone(ranks[0]) || gone(ranks[1]));
  signal(SIGKILL);
  EXPECT_EQ(finish().code, 128 + SIGKILL);
  for (const pid_t rank : ranks) EXPECT_TRUE(comes_true([&] { return gone(rank); }));
}

TEST_F(Launch, what_a_rank_leaves_running_does_not_hold_the_launcher) {
  const CliResult result = run_script(1, "sleep 100 & echo $! > $FOLDER/left");
  EXPECT_EQ(result.code, 0);
  EXPECT_TRUE(comes_true([&] { return gone(std::stoi(read_file(path("left")))); }));
}

TEST_F(Launch, big_output_arrives_whole) {
  constexpr int kLines = 100000;
  const CliResult result = run_script(2, "seq 1 " + std::to_string(kLines) + " | sed 's/$/ some words that make the line longer/'; seq 1 1000 >&2");
  EXPECT_EQ(result.code, 0);
  int next[2] = {1, 1};
  for (const std::string& line : lines_of(result.out)) {
    const int rank = line.substr(0, 4) == "[1] " ? 1 : 0;
    ASSERT_EQ(line, "[" + std::to_string(rank) + "] " + std::to_string(next[rank]++) + " some words that make the line longer");
  }
  EXPECT_EQ(next[0], kLines + 1);
  EXPECT_EQ(next[1], kLines + 1);
  EXPECT_THAT(result.err, HasSubstr("[0] 1000\n"));
  EXPECT_THAT(result.err, HasSubstr("[1] 1000\n"));
}

TEST_F(Launch, a_program_that_cannot_start_is_named) {
  start({"--nproc-per-node", "2", "--program", path("missing")});
  const CliResult result = finish();
  EXPECT_EQ(result.code, 8);
  EXPECT_THAT(result.err, HasSubstr("a rank cannot be started"));
  EXPECT_THAT(result.err, HasSubstr("No such file"));
}

TEST(LaunchUsage, wrong_use_exits_with_2_and_says_what_is_missing) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> rows = {
      {{"--nproc-per-node", "2"}, "COMMAND is missing"},
      {{"--nproc-per-node", "2", "--"}, "COMMAND is missing"},
      {{"train", "-c", "x"}, "--nproc-per-node is missing"},
      {{"--nproc-per-node", "0", "train"}, "--nproc-per-node is '0'"},
      {{"--nproc-per-node", "2x", "train"}, "--nproc-per-node is '2x'"},
      {{"--nproc-per-nod", "2", "train"}, "unknown option '--nproc-per-nod'; did you mean '--nproc-per-node'?"},
      {{"--nproc-per-node", "2", "launch", "train"}, "launch cannot be launched"},
      {{"--nproc-per-node", "2", "--", "-q", "launch", "train"}, "launch cannot be launched"},
      {{"--nproc-per-node", "2", "--nnodes", "0", "train"}, "--nnodes is 0"},
      {{"--nproc-per-node", "2", "--nnodes", "2", "--node-rank", "2", "train"}, "--node-rank is 2 of 2 nodes"},
      {{"--nproc-per-node", "2", "--nnodes", "2", "train"}, "--master-addr is missing"},
      {{"--nproc-per-node", "2", "--nnodes", "2", "--master-addr", "a", "train"}, "--master-port is missing"},
      {{"--nproc-per-node", "2", "--master-port", "70000", "train"}, "--master-port is 70000"},
  };
  for (const auto& [words, message] : rows) {
    std::vector<std::string> arguments = {"launch"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const CliResult result = run_cli(arguments);
    EXPECT_EQ(result.code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

TEST(LaunchUsage, a_rank_launches_nothing) {
  setenv("DELTRON_LOCAL_RANK", "3", 1);
  const CliResult result = run_cli({"launch", "--nproc-per-node", "2", "train"});
  unsetenv("DELTRON_LOCAL_RANK");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("itself a rank (DELTRON_LOCAL_RANK is 3)"));
}

}  // namespace
}  // namespace deltron::tools
