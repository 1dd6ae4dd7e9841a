// How a training begins and what its end says: from another run's checkpoint, with nothing left to do, in a folder that cannot be written,
// in too little memory; and what a reader of exit codes sees of a full disk, a full output and an interrupted reader.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "src/config/loader.h"
#include "src/config/schema.h"
#include "src/train/capacity.h"
#include "src/train/memory_advice.h"
#include "src/train/plan.h"
#include "src/train/run_folder.h"
#include "tests/tools/run_cli.h"
#include "tests/trust/child_process.h"
#include "tests/trust/tiny_run.h"

namespace deltron {
namespace {

using ::testing::HasSubstr;
using testing::Child;
using testing::CliResult;
using testing::Folder;
using testing::run_cli;

std::string write_config(const Folder& folder, const RunConfig& config, const std::string& name = "config.yaml") {
  write_file_atomically(folder / name, to_yaml(config));
  return folder / name;
}

std::string expect_failure(const std::function<void()>& work, ErrorCode code, const std::vector<std::string>& parts) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) EXPECT_THAT(error.what(), HasSubstr(part));
    return error.what();
  }
  ADD_FAILURE() << "no error " << static_cast<int>(code);
  return "";
}

// Exit code of a shell's command line.
int shell(const std::string& line) {
  const int status = std::system(("{ " + line + "; } 2>/dev/null").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}
int shell_with_errors(const std::string& line, const std::string& errors) {
  const int status = std::system(("{ " + line + "; } 2>'" + errors + "'").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// --- from another run ---

TEST(Load, weights_alone_begin_a_new_run_and_leave_the_old_one_untouched) {
  const Folder folder("load_weights");
  RunConfig first = testing::tiny_config(folder);
  first.checkpoint.save_interval = 10;
  train(first, {});
  const std::string before10 = testing::checkpoint_hash(first.checkpoint.save, 10), before20 = testing::checkpoint_hash(first.checkpoint.save, 20);
  const std::vector<std::string> listing = list_directory(checkpoints_folder(first.checkpoint.save));
  RunConfig second = first;
  second.checkpoint.save = folder / "second";
  second.optimizer.lr = 5e-4;
  TrainOptions options;
  options.load = first.checkpoint.save;
  options.weights_only = true;
  const TrainOutcome outcome = train(second, options);
  EXPECT_EQ(outcome.losses.size(), 20u) << "all steps, from 1";
  EXPECT_TRUE(outcome.differences.empty()) << "nothing to repeat";
  RunConfig fresh = first;
  fresh.checkpoint.save = "";
  fresh.checkpoint.save_interval = 0;
  EXPECT_LT(outcome.losses[0], train(fresh, {}).losses[0] - 0.05) << "the weights were trained";
  EXPECT_EQ(list_directory(checkpoints_folder(first.checkpoint.save)), listing);
  EXPECT_EQ(testing::checkpoint_hash(first.checkpoint.save, 10), before10);
  EXPECT_EQ(testing::checkpoint_hash(first.checkpoint.save, 20), before20);
  EXPECT_THAT(testing::metrics_lines(second.checkpoint.save, "start").at(0).at("loaded").get<std::string>(), HasSubstr("step_00000020"));
}

TEST(Load, the_same_command_line_starts_and_restarts_a_run) {
  const Folder folder("load_restart");
  RunConfig first = testing::tiny_config(folder);
  train(first, {});
  TrainOptions options;
  options.load = first.checkpoint.save;
  options.weights_only = true;
  RunConfig second = first;
  second.checkpoint.save = folder / "whole";
  train(second, options);
  const std::string expected = testing::checkpoint_hash(second.checkpoint.save, 20);
  second.checkpoint.save = folder / "parts";
  second.training.exit_interval = 7;
  std::vector<std::int64_t> steps;
  for (int start = 0; start < 3; ++start) steps.push_back(train(second, options).progress.step);
  EXPECT_THAT(steps, ::testing::ElementsAre(7, 14, 20)) << "its own checkpoints count once it has some";
  EXPECT_EQ(testing::checkpoint_hash(second.checkpoint.save, 20), expected);
}

TEST(Load, the_whole_state_goes_on_bit_by_bit_in_a_new_folder) {
  const Folder folder("load_whole");
  RunConfig first = testing::tiny_config(folder);
  first.checkpoint.save_interval = 10;
  train(first, {});
  RunConfig branch = first;
  branch.checkpoint.save = folder / "branch";
  TrainOptions options;
  options.load = checkpoint_path(first.checkpoint.save, 10);
  const TrainOutcome outcome = train(branch, options);
  EXPECT_EQ(outcome.losses.size(), 10u);
  EXPECT_TRUE(outcome.differences.empty());
  EXPECT_EQ(testing::checkpoint_hash(branch.checkpoint.save, 20), testing::checkpoint_hash(first.checkpoint.save, 20));
  branch.checkpoint.save = folder / "done";  // nothing left to train, but the new folder still gets the state
  options.load = first.checkpoint.save;
  EXPECT_TRUE(train(branch, options).losses.empty());
  EXPECT_EQ(testing::checkpoint_hash(branch.checkpoint.save, 20), testing::checkpoint_hash(first.checkpoint.save, 20));
}

TEST(Load, what_cannot_be_meant_is_refused) {
  const Folder folder("load_refused");
  RunConfig config = testing::tiny_config(folder);
  config.training.train_iters = 4;
  train(config, {});
  const std::string run = config.checkpoint.save, step = checkpoint_path(run, 4);
  TrainOptions options;
  options.weights_only = true;
  RunConfig other = config;
  other.checkpoint.save = folder / "other";
  for (const RunConfig& target : {config, other}) {
    expect_failure([&] { train(target, options); }, ErrorCode::UsageError, {"--weights-only has no weights to take", "--load"});
  }
  EXPECT_FALSE(directory_exists(other.checkpoint.save));
  options.load = folder / "nowhere";
  expect_failure([&] { train(other, options); }, ErrorCode::CheckpointNotFound, {"nowhere", "no complete checkpoint"});
  options.load = run;
  RunConfig stepped = other;
  stepped.checkpoint.resume = "4";
  expect_failure([&] { train(stepped, options); }, ErrorCode::UsageError, {"exclude each other"});
  RunConfig itself = config;  // a run without checkpoints of its own cannot name one of them; with them, they are what it goes on from
  EXPECT_TRUE(train(itself, options).losses.empty());
  EXPECT_EQ(list_checkpoints(run).size(), 1u);
  const std::string file = join_path(step, "model.safetensors");
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(file, bytes);
  options.load = step;
  expect_failure([&] { train(other, options); }, ErrorCode::CheckpointCorrupted, {"step 4 is corrupted", "model.safetensors"});
  EXPECT_FALSE(list_checkpoints(run).at(0).failed) << "another run's folder is only read";
}

// --- nothing left ---

TEST(NothingLeft, is_said_where_nothing_else_was_asked_for_and_refused_where_it_was) {
  const Folder folder("nothing_left");
  RunConfig config = testing::tiny_config(folder);
  config.training.train_iters = 6;
  config.optimizer.lr_decay_iters = 20;
  config.checkpoint.save_interval = 3;
  train(config, {});
  const std::string path = write_config(folder, config);
  const CliResult again = run_cli({"train", "-c", path});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("nothing left to train: step 6 of 6"));
  EXPECT_EQ(run_cli({"train", "-c", path, "logging.log_interval=1"}).code, 0) << "changes no update";
  struct Row {
    std::vector<std::string> words;
    std::string message;
  };
  const std::vector<Row> rows = {
      {{"training.train_iters=4"}, "training.train_iters lies before the step that the run has reached (4, resumed at step 6)"},
      {{"optimizer.lr=0.01"}, "changed keys have no effect: nothing is left to train (optimizer.lr: 0.001 then, 0.01 now)"},
      {{"--inject-nan", "step=3,param=embedding.word_embeddings.weight"}, "this start does not run the step (step 3)"},
      {{"--inject-nan", "step=7,param=embedding.word_embeddings.weight"}, "this start does not run the step (step 7)"},
      {{"--minutes", "1", "training.train_iters=9"}, "--minutes fixes training.train_iters"},
      {{"--weights-only"}, "--weights-only has no weights to take"},
      {{"--minutes", "1", "--load", config.checkpoint.save}, "--minutes fits a schedule that begins at step 0"},
  };
  std::filesystem::remove(join_path(config.checkpoint.save, "config.step_6.yaml"));
  for (const Row& row : rows) {
    std::vector<std::string> line = {"train", "-c", path};
    line.insert(line.end(), row.words.begin(), row.words.end());
    const CliResult result = run_cli(line);
    EXPECT_EQ(result.code, 2) << row.message << result.err;
    EXPECT_THAT(result.err, HasSubstr(row.message));
    EXPECT_FALSE(file_exists(join_path(config.checkpoint.save, "config.step_6.yaml"))) << row.message;
  }
  EXPECT_EQ(run_cli({"train", "-c", path, "training.train_iters=8", "optimizer.lr=0.01"}).code, 0) << "two steps are left";
}

// --- folders and advice ---

TEST(RunFolderStart, a_folder_that_cannot_be_written_is_found_before_anything_is_built) {
  const Folder folder("unwritable");
  RunConfig config = testing::tiny_config(folder);
  write_file_atomically(folder / "file", "a file");
  const std::vector<std::string> before = list_directory(folder / "");
  for (const std::string& save : {folder / "file", folder / "file/below", std::string("/proc/deltron/run"), folder / std::string(300, 'x')}) {
    config.checkpoint.save = save;
    const std::string path = write_config(folder, config);
    for (const bool dry : {false, true}) {
      std::vector<std::string> line = {"train", "-c", path};
      if (dry) line.push_back("--dry-run");
      const CliResult result = run_cli(line);
      EXPECT_EQ(result.code, 2) << result.err;
      EXPECT_THAT(result.err, HasSubstr("E127 checkpoint.save: the run folder cannot be written ("));
      EXPECT_EQ(result.err.find("parameters"), std::string::npos) << "nothing was built before: " << result.err;
    }
    std::filesystem::remove(path);
  }
  EXPECT_EQ(list_directory(folder / ""), before) << "nothing is left behind";
  require_writable(folder / "new/deep/folder");
  EXPECT_FALSE(directory_exists(folder / "new"));
}

TEST(Advice, names_the_configuration_of_this_start) {
  const Folder folder("advice");
  RunConfig config = testing::tiny_config(folder);
  config.training.exit_interval = 5;
  const std::string path = write_config(folder, config), run = config.checkpoint.save;
  const CliResult first = run_cli({"train", "-c", path});
  EXPECT_EQ(first.code, 75);
  EXPECT_THAT(first.err, HasSubstr("go on with: deltron train -c " + join_path(run, "config.yaml") + "\n"));
  const CliResult second = run_cli({"train", "-c", path, "logging.log_interval=1"});
  EXPECT_EQ(second.code, 75);
  const std::string current = join_path(run, "config.step_5.yaml");
  EXPECT_THAT(second.err, HasSubstr("go on with: deltron train -c " + current + "\n"));
  EXPECT_EQ(load_run_config(current).logging.log_interval, 1);
  const CliResult third = run_cli({"train", "-c", current});  // as it was told
  EXPECT_EQ(third.code, 75);
  EXPECT_THAT(third.err, HasSubstr("step 11/20"));
}

// --- sizes and memory ---

TEST(Capacity, sizes_beyond_any_machine_are_refused_at_once) {
  const Folder folder("absurd");
  RunConfig config = testing::tiny_config(folder);
  const std::string path = write_config(folder, config);
  const std::vector<std::vector<std::string>> rows = {
      {"model.vocab_size=2000000000", "model.hidden_size=1048576"},
      {"model.num_layers=100000", "model.hidden_size=1048576", "model.ffn_hidden_size=1048576"},
      {"training.seq_length=2000000000"},
      {"training.micro_batch_size=200000000", "training.global_batch_size=200000000"},
  };
  for (const std::vector<std::string>& row : rows) {
    for (const char* command : {"plan", "train"}) {
      std::vector<std::string> line = {command, "-c", path};
      line.insert(line.end(), row.begin(), row.end());
      const auto began = std::chrono::steady_clock::now();
      const CliResult result = run_cli(line);
      EXPECT_EQ(result.code, 2) << row[0] << result.err;
      EXPECT_THAT(result.err, HasSubstr("E121 model and training: these sizes are beyond any machine"));
      EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), 5) << row[0];
    }
  }
}

TEST(Capacity, a_training_beyond_this_machine_is_planned_but_not_begun) {
  const Folder folder("too_large");
  RunConfig config = testing::tiny_config(folder);
  const MachineMemory machine = machine_memory();
  ASSERT_GT(machine.total, 0);
  ASSERT_GT(machine.available, 0);
  ASSERT_LE(machine.available, machine.total);
  // An embedding alone of twice the machine: 16 bytes a weight.
  config.model.hidden_size = 16384;
  config.model.kv_channels = 8;
  config.model.vocab_size = 2 * machine.total / 16 / config.model.hidden_size;
  const std::string path = write_config(folder, config);
  const CliResult plan = run_cli({"plan", "-c", path});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out, ::testing::ContainsRegex("this machine      .* of it free: does not fit"));
  const CliResult trained = run_cli({"train", "-c", path});
  EXPECT_EQ(trained.code, 5) << trained.err;
  EXPECT_THAT(trained.err, HasSubstr("E500 cpu: the training does not fit into this machine"));
  EXPECT_THAT(trained.err, HasSubstr("this machine has "));
  EXPECT_FALSE(is_run_folder(config.checkpoint.save));
  const RunConfig small = testing::tiny_config(folder);
  EXPECT_THAT(to_text(make_plan(small)), ::testing::ContainsRegex("this machine      .* of it free: fits"));
  EXPECT_LE(least_bytes(small), static_cast<double>(make_plan(small).memory.peak)) << "a lower bound";
}

TEST(Capacity, a_long_plan_hears_a_signal) {
  const Folder folder("long_plan");
  RunConfig config = testing::tiny_config(folder);
  config.model.num_layers = 100000;
  const std::string path = write_config(folder, config);
  Child child({"plan", "-c", path}, folder / "output.txt");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  child.signal(SIGINT);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(child.wait(), 128 + SIGINT) << child.output();
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), 20);
}

TEST(Capacity, the_smallest_limit_is_a_limit) {
  const Folder folder("tiny_limit");
  RunConfig config = testing::tiny_config(folder);
  config.checkpoint.save = "";
  config.training.memory_limit_gib = 1e-12;
  EXPECT_EQ(memory_limit_bytes(config), 1);
  expect_failure([&] { train(config, {}); }, ErrorCode::OutOfMemory, {"capacity"});
  config.training.memory_limit_gib = 0;
  EXPECT_EQ(memory_limit_bytes(config), 0);
}

TEST(Threads, more_than_any_machine_has_is_out_of_range) {
  const Folder folder("threads");
  RunConfig config = testing::tiny_config(folder);
  const std::string path = write_config(folder, config);
  const CliResult result = run_cli({"plan", "-c", path, "training.threads=4096"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("rule: training.threads >= 0 and <= 1024"));
  const CliResult slow = run_cli({"train", "-c", path, "training.train_iters=1", "training.threads=" + std::to_string(available_cores() + 1),
                                  "optimizer.lr_warmup_iters=0"});
  EXPECT_EQ(slow.code, 0) << slow.err;
  EXPECT_THAT(slow.err, HasSubstr("processors that this process may use"));
}

// --- data and options ---

TEST(DataStart, nothing_to_train_on_is_a_fault_of_the_configuration_with_its_place) {
  const Folder folder("no_data");
  RunConfig config = testing::tiny_config(folder);
  config.data.data_path = {};
  config.data.split = "90,10,0";
  std::string text = to_yaml(config);
  const std::string path = write_config(folder, config);
  for (const char* command : {"train", "index"}) {
    std::vector<std::string> line = {command, "-c", path};
    if (std::string(command) == "index") line.insert(line.begin(), "data");
    const CliResult missing = run_cli(line);
    EXPECT_EQ(missing.code, 2) << missing.err;
    EXPECT_THAT(missing.err, HasSubstr("E120 " + path));
    EXPECT_THAT(missing.err, HasSubstr("data.data_path is "));
    line.push_back("data.data_path=[]");
    const CliResult empty = run_cli(line);
    EXPECT_EQ(empty.code, 2) << empty.err;
    EXPECT_THAT(empty.err, HasSubstr("data.data_path is empty"));
  }
  write_file_atomically(folder / "empty.yaml", "model: {num_layers: 1, hidden_size: 16, ffn_hidden_size: 16, vocab_size: 264, num_attention_heads: 2}\n"
                                               "training: {seq_length: 8, train_iters: 4}\noptimizer: {lr: 0.001}\ndata:\n  data_path: []\n");
  const CliResult placed = run_cli({"train", "-c", folder / "empty.yaml"});
  EXPECT_EQ(placed.code, 2);
  EXPECT_THAT(placed.err, HasSubstr(folder / "empty.yaml:5:"));
}

TEST(Evaluate, samples_of_text_are_refused) {
  const Folder folder("samples");
  RunConfig config = testing::tiny_config(folder);
  config.training.train_iters = 2;
  train(config, {});
  const CliResult result = run_cli({"evaluate", config.checkpoint.save, "--samples", "5"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("--samples counts samples of a synthetic task"));
  EXPECT_EQ(run_cli({"evaluate", config.checkpoint.save}).code, 0);
}

TEST(Help, of_a_group_speaks_of_the_group) {
  const CliResult help = run_cli({"data", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("'deltron data COMMAND --help' shows the options of a command"));
  EXPECT_EQ(help.out.find("A first run"), std::string::npos) << help.out;
  EXPECT_THAT(run_cli({"--help"}).out, HasSubstr("A first run"));
}

// --- processes ---

class Process : public ::testing::Test {
 protected:
  Process() : folder_("process"), config_(testing::tiny_config(folder_)) {
    config_.training.train_iters = 4;
    path_ = write_config(folder_, config_);
  }
  std::string program(const std::string& words) const { return std::string("'") + DELTRON_PROGRAM + "' " + words; }
  Folder folder_;
  RunConfig config_;
  std::string path_;
};

TEST_F(Process, a_full_standard_output_is_noticed) {
  const std::string errors = folder_ / "errors.txt";
  for (const std::string& words : {"plan -c " + path_, std::string("--version"), std::string("--help"), "train -c " + path_}) {
    EXPECT_EQ(shell(program(words) + " > /dev/null"), 0) << words;
    EXPECT_EQ(shell_with_errors(program(words) + " > /dev/full", errors), 8) << words;
    EXPECT_THAT(read_file(errors), HasSubstr("E801 standard output: the result cannot be written (No space left on device)")) << words;
  }
  EXPECT_TRUE(newest_complete(list_checkpoints(config_.checkpoint.save))) << "the training itself was saved";
}

TEST_F(Process, closed_standard_streams_put_no_text_into_the_run_s_files) {
  for (const std::string closed : {" <&- >&- 2>&-", " >&-", " 2>&-"}) {
    remove_tree(config_.checkpoint.save);
    EXPECT_EQ(shell(program("train -c " + path_) + (closed == " 2>&-" ? " > /dev/null" : "") + closed), 0) << closed;
    std::istringstream metrics(read_file(join_path(config_.checkpoint.save, kMetricsFile)));
    for (std::string line; std::getline(metrics, line);) EXPECT_TRUE(nlohmann::json::accept(line)) << closed << ": " << line;
    EXPECT_EQ(read_file(join_path(config_.checkpoint.save, ".lock")), "") << closed;
  }
}

TEST_F(Process, a_reader_of_the_log_that_goes_away_does_not_end_the_training) {
  EXPECT_EQ(shell(program("train -c " + path_) + " 2>&1 >/dev/null | true"), 0);
  const auto newest = newest_complete(list_checkpoints(config_.checkpoint.save));
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 4);
}

TEST_F(Process, a_limit_of_file_sizes_is_met_like_a_full_disk) {
  const std::string errors = folder_ / "errors.txt";
  EXPECT_EQ(shell("(ulimit -f 16; " + program("train -c " + path_) + " > /dev/null)"), 8) << "and not killed by SIGXFSZ";
  EXPECT_FALSE(newest_complete(list_checkpoints(config_.checkpoint.save)));
  EXPECT_EQ(shell_with_errors("(ulimit -f 16; " + program("train -c " + path_) + " > /dev/null)", errors), 8);
  EXPECT_THAT(read_file(errors), HasSubstr("File too large"));
  EXPECT_THAT(read_file(errors), HasSubstr("ulimit -f"));
  EXPECT_EQ(shell(program("train -c " + path_) + " > /dev/null"), 0) << "and goes on when there is room";
}

TEST_F(Process, a_command_with_nothing_to_go_on_from_ends_with_128_and_the_signal) {
  EXPECT_EQ(shell(program("train -c " + path_) + " > /dev/null"), 0);
  for (const int number : {SIGTERM, SIGINT}) {
    Child generate({"generate", config_.checkpoint.save, "--ignore-eod", "--max-tokens", "100000000"}, folder_ / "generate.txt");
    ASSERT_TRUE(generate.wait_for("model of step 4")) << generate.output();
    generate.signal(number);
    EXPECT_EQ(generate.wait(), 128 + number) << generate.output().substr(0, 500);
    EXPECT_THAT(generate.output(), HasSubstr("nothing is saved, run the command again"));
  }
  testing::make_tokens(folder_ / "a", 4000, 1);
  Child evaluate({"evaluate", config_.checkpoint.save, "--split", "train"}, folder_ / "evaluate.txt");
  ASSERT_TRUE(evaluate.wait_for("model of step 4")) << evaluate.output();
  evaluate.signal(SIGTERM);
  EXPECT_EQ(evaluate.wait(), 128 + SIGTERM) << evaluate.output();
}

}  // namespace
}  // namespace deltron
