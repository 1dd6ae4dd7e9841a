// SIGTERM to a real process at fifty random moments: it saves or has nothing to save, says so with exit code 75, and goes on to the same
// bits as a process that nobody stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include "src/config/schema.h"
#include "tests/trust/child_process.h"
#include "tests/trust/tiny_run.h"

namespace deltron {
namespace {

using ::testing::HasSubstr;
using testing::Child;
using testing::Folder;

// Evaluates and saves often, so that random moments meet both.
RunConfig busy_config(const Folder& folder) {
  RunConfig config = testing::tiny_config(folder);
  config.training.train_iters = 40;
  config.training.eval_interval = 2;
  config.training.eval_iters = 0;
  config.checkpoint.save_interval = 3;
  config.checkpoint.keep_last = 2;
  config.logging.tensorboard = true;
  config.data.split = "50,50,0";
  testing::make_tokens(folder / "a", 80, 1);
  return config;
}

std::string write_config(const Folder& folder, const RunConfig& config) {
  write_file_atomically(folder / "config.yaml", to_yaml(config));
  return folder / "config.yaml";
}

TEST(Signals, fifty_random_moments_are_all_resumable_to_the_same_bits) {
  std::string expected;
  double seconds = 0;
  {
    const Folder folder("uninterrupted");
    const RunConfig config = busy_config(folder);
    const std::string path = write_config(folder, config);
    const auto start = std::chrono::steady_clock::now();
    Child child({"train", "-c", path}, folder / "output.txt");
    ASSERT_EQ(child.wait(), 0) << child.output();
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    expected = testing::checkpoint_hash(config.checkpoint.save, 40);
  }
  std::mt19937 random(20240607);
  std::map<std::string, int> moments;
  int stopped = 0, finished = 0;
  // A machine's speed changes while the test runs (the first process may have had busy neighbours), so the window of moments follows the
  // shortest run seen, and trials go on until fifty signals met a process that was still running.
  for (int trial = 0; stopped < 50 && trial < 200; ++trial) {
    const Folder folder("stopped");
    const RunConfig config = busy_config(folder);
    const std::string path = write_config(folder, config);
    const double delay = std::uniform_real_distribution<double>(0, seconds)(random);
    const auto start = std::chrono::steady_clock::now();
    Child child({"train", "-c", path}, folder / "output.txt");
    std::this_thread::sleep_for(std::chrono::duration<double>(delay));
    child.signal(SIGTERM);
    const int code = child.wait();
    // A signal that meets the process before its first instruction ends it the default way: nothing had begun, nothing is lost.
    const bool before_main = code == 1000 + SIGTERM && child.output().empty() && !directory_exists(config.checkpoint.save);
    ASSERT_TRUE(code == 75 || code == 0 || before_main) << "trial " << trial << " after " << delay << " s: exit code " << code << "\n" << child.output();
    if (before_main) {
      ++stopped;
      ++moments["before main"];
      Child again({"train", "-c", path}, folder / "again.txt");
      ASSERT_EQ(again.wait(), 0) << again.output();
    } else if (code == 75) {
      ++stopped;
      const std::string output = child.output();
      const std::size_t at = output.find("SIGTERM during ");
      ASSERT_NE(at, std::string::npos) << output;
      const std::string moment = output.substr(at, output.find_first_of("\n:,", at) - at);
      moments[moment.substr(0, moment.find(" at step"))]++;
      const auto newest = newest_complete(list_checkpoints(config.checkpoint.save));
      if (output.find("; saved") != std::string::npos) {
        ASSERT_TRUE(newest) << output;
        EXPECT_THAT(output, HasSubstr("at step " + std::to_string(newest->step) + ";")) << "the newest state is what was saved";
      } else {
        EXPECT_FALSE(newest) << "stopped before the first step: there was nothing to save\n" << output;
      }
      Child again({"train", "-c", path}, folder / "again.txt");
      ASSERT_EQ(again.wait(), 0) << again.output();
    } else {
      ++finished;
      seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    ASSERT_EQ(testing::checkpoint_hash(config.checkpoint.save, 40), expected) << "trial " << trial << " after " << delay << " s";
  }
  EXPECT_EQ(stopped, 50) << "too few of 200 signals met a running process";
  RecordProperty("stopped", stopped);
  RecordProperty("finished", finished);
  for (const auto& [moment, count] : moments) std::cout << count << " x " << moment << "\n";
  std::cout << "bits of the uninterrupted run: " << expected << "\n" << stopped << " stopped and resumed, " << finished << " had finished\n";
}

}  // namespace
}  // namespace deltron
