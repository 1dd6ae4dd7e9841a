// The run folder: what it holds, and that nothing in it is ever overwritten.
#include "src/train/run_folder.h"
#include "src/train/state_io.h"

#include <cmath>
#include <csignal>
#include <limits>

#include <sys/resource.h>

#include "src/train/metrics.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using namespace deltron::test;

TEST(RunFolder, keeps_the_resolved_configuration_command_metrics_and_log) {
  TempFolder folder;
  const std::string run = folder / "run";
  const RunConfig config = tiny_config(prepare_text(folder, "text", made_text(20, 300)),
                                       {"training.train_iters=6", "training.eval_interval=3", "checkpoint.save=" + run, "checkpoint.save_interval=4"});
  TrainOptions options;
  options.command = {"train", "-c", "tiny.yaml"};
  run_training(config, options);
  EXPECT_TRUE(is_run_folder(run));
  EXPECT_EQ(read_run_config(run), config);
  const nlohmann::json command = nlohmann::json::parse(read_file(join_path(run, "commands.jsonl")));
  EXPECT_EQ(command.at("command"), options.command);
  EXPECT_EQ(command.at("threads"), 1);
  for (const char* key : {"version", "git", "compiler", "processor", "instruction_set", "time"}) EXPECT_TRUE(command.contains(key)) << key;
  EXPECT_TRUE(file_exists(join_path(run, "log.txt")));
  std::vector<std::string> events;
  for (const nlohmann::json& line : metrics_lines(run)) {
    EXPECT_TRUE(line.at("time").is_number());
    EXPECT_TRUE(line.at("step").is_number_integer());
    events.push_back(line.at("event"));
  }
  const std::vector<std::string> expected = {"start", "train", "eval", "checkpoint", "train", "train", "eval", "checkpoint", "end"};
  EXPECT_EQ(events, expected) << "log lines at steps 1, 5 and 6, evaluation at 3 and 6, checkpoints at 4 and 6";
  const nlohmann::json last = metrics_lines(run, "train").back();
  EXPECT_EQ(last.at("step"), 6);
  EXPECT_EQ(last.at("samples"), 24);
  EXPECT_EQ(last.at("tokens"), 24 * 32);
  EXPECT_NEAR(last.at("lr").get<double>(), 1e-4, 1e-12);
  EXPECT_EQ(metrics_lines(run, "end").back().at("reason"), "done");
}

TEST(RunFolder, other_peoples_files_are_not_mixed_with_a_run) {
  TempFolder folder;
  const std::string run = folder / "run";
  make_directories(run);
  write_file_atomically(join_path(run, "thesis.tex"), "precious");
  const RunConfig config = tiny_config(prepare_text(folder, "text", made_text(20, 300)), {"checkpoint.save=" + run});
  EXPECT_ERROR(run_training(config), ErrorCode::RunFolderTaken, run, "not empty");
  EXPECT_EQ(list_directory(run), std::vector<std::string>{"thesis.tex"});
  EXPECT_EQ(read_file(join_path(run, "thesis.tex")), "precious");
}

TEST(RunFolder, a_start_with_other_values_keeps_the_first_configuration_and_notes_the_new_one) {
  TempFolder folder;
  const std::string run = folder / "run";
  const RunConfig first = tiny_config("unused", {"checkpoint.save=" + run});
  RunConfig second = first;
  second.logging.log_interval = 1;
  second.optimizer.lr = 1e-3;
  EXPECT_TRUE(open_run_folder(run, first, 0).empty());
  EXPECT_TRUE(open_run_folder(run, first, 10).empty());
  EXPECT_FALSE(file_exists(join_path(run, "config.step_10.yaml")));
  const std::vector<std::string> changed = open_run_folder(run, second, 10);
  EXPECT_EQ(changed, (std::vector<std::string>{"optimizer.lr: 0.003 -> 0.001", "logging.log_interval: 5 -> 1"}));
  EXPECT_EQ(read_run_config(run), first);
  EXPECT_EQ(load_run_config(join_path(run, "config.step_10.yaml")), second);
}

TEST(RunFolder, a_folder_without_a_run_says_what_is_missing) {
  TempFolder folder;
  EXPECT_ERROR(read_run_config(folder.path()), ErrorCode::FileNotReadable, folder.path(), "config.yaml");
}

TEST(Metrics, what_is_not_finite_is_null_and_flagged) {
  TempFolder folder;
  {
    MetricsFile file(folder / "metrics.jsonl");
    file.write({{"event", "a"}, {"loss", std::numeric_limits<double>::quiet_NaN()}, {"norm", std::numeric_limits<double>::infinity()}, {"lr", 0.5}});
  }
  MetricsFile(folder / "metrics.jsonl").write({{"event", "b"}, {"loss", 1.5}});  // appends
  const std::vector<nlohmann::json> lines = metrics_lines(folder.path());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(lines[0].at("loss").is_null());
  EXPECT_TRUE(lines[0].at("norm").is_null());
  EXPECT_EQ(lines[0].at("lr"), 0.5);
  EXPECT_EQ(lines[0].at("nonfinite"), true);
  EXPECT_EQ(lines[1].at("loss"), 1.5);
  EXPECT_FALSE(lines[1].contains("nonfinite"));
}

TEST(Minutes, fix_the_number_of_steps_once_and_for_all) {
  TempFolder folder;
  const std::string run = folder / "run";
  const RunConfig config = tiny_config(prepare_text(folder, "text", made_text(20, 300)),
                                       {"checkpoint.save=" + run, "optimizer.lr_decay_style=WSD", "optimizer.lr_wsd_decay_iters=15"});
  TrainOptions options;
  options.minutes = 0.0002;  // 12 ms: fewer steps than the configuration's schedule has
  const TrainOutcome outcome = run_training(config, options);
  const RunConfig written = read_run_config(run);  // and is legal, although the schedule had to shrink
  EXPECT_EQ(written.training.train_iters, outcome.progress.step);
  EXPECT_GE(written.training.train_iters, 1);
  EXPECT_LE(written.optimizer.lr_warmup_iters + written.optimizer.lr_wsd_decay_iters, written.training.train_iters);
  const auto hashes = tensor_hashes(run, outcome.progress.step);
  options.minutes = 5;
  const TrainOutcome again = run_training(config, options);
  EXPECT_EQ(again.progress.step, outcome.progress.step);
  EXPECT_TRUE(again.losses.empty());
  EXPECT_EQ(tensor_hashes(run, outcome.progress.step), hashes);
}

TEST(RunFolder, a_second_training_is_refused_while_the_first_one_holds_the_folder) {
  const TempFolder folder;
  const std::string prefix = prepare_text(folder, "text", made_text(20, 600));
  const std::string run = folder / "run";
  const RunConfig config = tiny_config(prefix, {"checkpoint.save=" + run});
  {
    const RunLock first(run);
    try {
      run_training(config);
      FAIL() << "two trainings in one folder";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::RunFolderTaken);
      EXPECT_NE(std::string(error.what()).find("another process"), std::string::npos) << error.what();
    }
    EXPECT_EQ(list_directory(run), std::vector<std::string>{".lock"}) << "nothing was touched";
  }
  EXPECT_FALSE(run_training(config).losses.empty()) << "free again";
}

TEST(RunFolder, other_text_under_the_same_prefix_is_reported_on_resume) {
  const TempFolder folder;
  const std::string prefix = prepare_text(folder, "text", made_text(20, 600));
  const RunConfig config = tiny_config(prefix, {});
  Session session = make_session(config, true, DeviceKind::Cpu);
  session.data_content = data_content(config);
  ASSERT_EQ(session.data_content.count(prefix), 1U);
  const nlohmann::json before = update_fingerprint(session);
  prepare_text(folder, "text", made_text(20, 600, 9));
  session.data_content = data_content(config);
  EXPECT_NE(update_fingerprint(session), before);
}

// Lines beyond the limit are lost, whole ones before and after stay readable.
TEST(Metrics, a_full_disk_costs_lines_but_neither_the_run_nor_the_file) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  set_log_level(LogLevel::Error);
  struct rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  MetricsFile metrics(path);
  metrics.write({{"event", "train"}, {"step", 1}});
  struct rlimit tight = before;
  tight.rlim_cur = read_file(path).size() + 10;
  setrlimit(RLIMIT_FSIZE, &tight);
  for (int step : {2, 3}) EXPECT_NO_THROW(metrics.write({{"event", "train"}, {"step", step}}));
  setrlimit(RLIMIT_FSIZE, &before);
  metrics.write({{"event", "eval"}, {"step", 4}});
  std::vector<int> steps;
  for (const nlohmann::json& line : metrics_lines(folder / "")) steps.push_back(line.at("step"));
  EXPECT_EQ(steps, (std::vector<int>{1, 4}));
  EXPECT_TRUE(metrics_have(path, "eval", 4));
  EXPECT_FALSE(metrics_have(path, "eval", 1));
  EXPECT_FALSE(metrics_have(folder / "missing.jsonl", "eval", 4));
  EXPECT_NO_THROW(MetricsFile("/dev/full").write({{"event", "train"}, {"step", 1}}));
}

TEST(Metrics, half_a_line_that_a_crash_left_is_cut_off_when_the_run_goes_on) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  write_file_atomically(path, "{\"event\":\"train\",\"step\":1}\n{\"event\":\"tra");
  MetricsFile(path).write({{"event", "train"}, {"step", 2}});
  ASSERT_EQ(metrics_lines(folder / "").size(), 2U);
  write_file_atomically(path, "{\"event\":\"tra");
  MetricsFile(path).write({{"event", "train"}, {"step", 3}});
  EXPECT_EQ(metrics_lines(folder / "").size(), 1U);
}

TEST(RunFolder, an_evaluation_that_a_stop_left_unmade_is_made_up_for_once) {
  const TempFolder folder;
  const std::string run = folder / "run";
  const std::string prefix = prepare_text(folder, "text", made_text(40, 300));
  const auto config = [&](const std::string& iterations) {
    return tiny_config(prefix, {"training.train_iters=" + iterations, "training.eval_interval=3", "training.eval_iters=1", "checkpoint.save=" + run});
  };
  const TrainOutcome whole = run_training(config("6"));
  ASSERT_EQ(metrics_lines(run, "eval").size(), 2U);
  std::string kept;  // as if the stop had come during the last evaluation
  for (const nlohmann::json& line : metrics_lines(run)) {
    if (line.at("event") != "eval" || line.at("step") != 6) kept += line.dump() + "\n";
  }
  write_file_atomically(join_path(run, "metrics.jsonl"), kept);
  const TrainOutcome again = run_training(config("6"));
  EXPECT_TRUE(again.losses.empty());
  ASSERT_EQ(again.evaluation.size(), 1U);
  EXPECT_EQ(again.evaluation[0].nats, whole.evaluation[0].nats);
  EXPECT_EQ(metrics_lines(run, "eval").size(), 2U);
  EXPECT_TRUE(run_training(config("6")).evaluation.empty()) << "nothing is owed any more";
}

TEST(RunFolder, eval_iters_counts_global_batches_and_a_part_of_a_split_has_no_bits_per_character) {
  const TempFolder folder;
  const std::string prefix = prepare_text(folder, "text", made_text(200, 300));
  std::map<int, std::int64_t> predictions;
  for (const int batch : {2, 4, 8}) {
    const std::string run = folder / ("run" + std::to_string(batch));
    run_training(tiny_config(prefix, {"training.train_iters=5", "training.eval_interval=5", "training.eval_iters=1", "data.split=50,50,0",
                                      "training.global_batch_size=" + std::to_string(batch), "checkpoint.save=" + run}));
    const nlohmann::json eval = metrics_lines(run, "eval").at(0);
    predictions[batch] = eval.at("predictions");
    EXPECT_TRUE(eval.at("bits_per_character").is_null());
  }
  EXPECT_NEAR(static_cast<double>(predictions[4]) / static_cast<double>(predictions[2]), 2, 0.2);
  EXPECT_NEAR(static_cast<double>(predictions[8]) / static_cast<double>(predictions[2]), 4, 0.4);
}

}  // namespace
}  // namespace deltron
