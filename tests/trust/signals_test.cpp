// Stop requests to a real process: every signal, start-up, evaluation and saving, without a run folder, twice; and the limits of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "src/config/schema.h"
#include "tests/trust/child_process.h"
#include "tests/trust/tiny_run.h"

namespace deltron {
namespace {

using ::testing::HasSubstr;
using testing::Child;
using testing::Folder;

std::string write_config(const Folder& folder, const RunConfig& config) {
  write_file_atomically(folder / "config.yaml", to_yaml(config));
  return folder / "config.yaml";
}

TEST(Signals, every_stop_signal_saves) {
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    const Folder folder("each");
    RunConfig config = testing::tiny_config(folder);
    config.training.train_iters = 100000;
    config.optimizer.lr_decay_iters = 0;
    Child child({"train", "-c", write_config(folder, config)}, folder / "output.txt");
    ASSERT_TRUE(child.wait_for("step 5/")) << child.output();
    child.signal(number);
    EXPECT_EQ(child.wait(), 75) << child.output();
    EXPECT_THAT(child.output(), HasSubstr(std::string("stopped by ") + signal_name(number) + " during training"));
    EXPECT_TRUE(newest_complete(list_checkpoints(config.checkpoint.save)));
    EXPECT_THAT(testing::metrics_lines(config.checkpoint.save, "end").at(0).at("reason").get<std::string>(), HasSubstr(signal_name(number)));
  }
}

TEST(Signals, stops_while_the_speed_is_measured) {
  const Folder folder("measured");
  const RunConfig config = testing::tiny_config(folder);
  Child child({"train", "-c", write_config(folder, config), "--minutes", "1"}, folder / "output.txt");
  ASSERT_TRUE(child.wait_for("sample index of")) << child.output();
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 75) << child.output();
  EXPECT_FALSE(directory_exists(config.checkpoint.save)) << "nothing had begun";
}

TEST(Signals, stops_while_it_evaluates_and_while_it_saves) {
  for (const char* moment : {"step 1/", "saving step 2"}) {
    const Folder folder("moments");
    RunConfig config = testing::tiny_config(folder);
    config.training.train_iters = 4;
    config.training.eval_interval = 1;
    config.checkpoint.save_interval = 2;
    config.logging.log_interval = 1;
    testing::make_tokens(folder / "a", 700, 1);  // an evaluation of a third of a second or so
    config.data.split = "10,90,0";
    Child child({"train", "-c", write_config(folder, config)}, folder / "output.txt");
    ASSERT_TRUE(child.wait_for(moment)) << child.output();
    child.signal(SIGTERM);
    EXPECT_EQ(child.wait(), 75) << child.output();
    const auto newest = newest_complete(list_checkpoints(config.checkpoint.save));
    ASSERT_TRUE(newest) << child.output();
    // The signal is meant for the evaluation, or the save, behind that line; a busy machine may deliver it a little later.
    EXPECT_GE(newest->step, std::string(moment) == "step 1/" ? 1 : 2) << child.output();
    EXPECT_THAT(child.output(), HasSubstr("SIGTERM during "));
    EXPECT_EQ(Child({"train", "-c", folder / "config.yaml"}, folder / "again.txt").wait(), 0);
  }
}

TEST(Signals, without_a_run_folder_it_says_that_nothing_is_saved) {
  const Folder folder("unsaved");
  RunConfig config = testing::tiny_config(folder);
  config.training.train_iters = 100000;
  config.checkpoint.save = "";
  Child child({"train", "-c", write_config(folder, config)}, folder / "output.txt");
  ASSERT_TRUE(child.wait_for("step 5/")) << child.output();
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 75);
  EXPECT_THAT(child.output(), HasSubstr("nothing is saved, as checkpoint.save is empty"));
}

int code_of(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    install_stop_signals();
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Signals, a_second_one_ends_at_once) {
  EXPECT_EQ(code_of([] { raise(SIGTERM); }), 0);
  EXPECT_EQ(code_of([] {
              raise(SIGTERM);
              raise(SIGTERM);
            }),
            128 + SIGTERM);
  EXPECT_EQ(code_of([] {
              raise(SIGUSR1);
              raise(SIGINT);
            }),
            128 + SIGINT);
  EXPECT_EQ(code_of([] {
              raise(SIGTERM);
              raise(SIGUSR1);  // a scheduler's warning after the stop was asked for is no reason to lose the save
            }),
            0);
}

TEST(Limits, exit_duration_in_fractions_of_a_minute_stops_saves_and_goes_on) {
  const Folder folder("duration");
  RunConfig config = testing::tiny_config(folder);
  config.training.exit_duration_in_mins = 1e-7;  // over before the first update is: every start does one
  for (std::int64_t start = 1; start <= 3; ++start) {
    const TrainOutcome outcome = train(config, {});
    EXPECT_EQ(outcome.progress.step, start);
    EXPECT_TRUE(outcome.stopped);
    EXPECT_EQ(outcome.reason, "training.exit_duration_in_mins");
    EXPECT_EQ(newest_complete(list_checkpoints(config.checkpoint.save))->step, start);
  }
  config.training.exit_duration_in_mins = 0.02;  // 1.2 seconds of a run that takes minutes
  config.training.train_iters = 1000000;
  const auto began = std::chrono::steady_clock::now();
  const TrainOutcome some = train(config, {});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  EXPECT_TRUE(some.stopped);
  EXPECT_GT(some.progress.step, 3);
  EXPECT_GE(seconds, 1.2);
  EXPECT_LT(seconds, 60) << "the limit was not looked at";
  config.training.train_iters = 20;
  config.training.exit_duration_in_mins = 60;
  config.checkpoint.save = folder / "whole";
  const TrainOutcome whole = train(config, {});
  EXPECT_FALSE(whole.stopped) << "a run that is over in time does not stop";
  EXPECT_EQ(whole.progress.step, 20);
}

TEST(Limits, exit_duration_through_the_command_line_is_exit_code_75) {
  const Folder folder("duration_cli");
  const RunConfig config = testing::tiny_config(folder);
  Child child({"train", "-c", write_config(folder, config), "training.exit_duration_in_mins=0.0000001"}, folder / "output.txt");
  EXPECT_EQ(child.wait(), 75) << child.output();
  EXPECT_THAT(child.output(), HasSubstr("stopped by training.exit_duration_in_mins at step 1; saved, go on with: deltron train -c "));
}

TEST(Limits, exit_interval_stops_and_goes_on) {
  const Folder folder("limits");
  RunConfig config = testing::tiny_config(folder);
  config.training.exit_interval = 7;
  std::vector<std::int64_t> stops;
  for (int start = 0; start < 3; ++start) {
    const TrainOutcome outcome = train(config, {});
    stops.push_back(outcome.progress.step);
    EXPECT_EQ(outcome.stopped, start < 2);
    EXPECT_EQ(outcome.reason, start < 2 ? "training.exit_interval" : "");
  }
  EXPECT_THAT(stops, ::testing::ElementsAre(7, 14, 20));
  RunConfig whole = config;
  whole.training.exit_interval = 0;
  whole.checkpoint.save = folder / "whole";
  train(whole, {});
  EXPECT_EQ(testing::checkpoint_hash(config.checkpoint.save, 20), testing::checkpoint_hash(whole.checkpoint.save, 20));
}

}  // namespace
}  // namespace deltron
