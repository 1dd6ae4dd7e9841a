// Stop requests: state is saved, the outcome says so, and the run goes on to the same bits.
#include <atomic>
#include <csignal>
#include <thread>

#include "src/base/signals.h"
#include "src/train/generate.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using namespace deltron::test;

class Stop : public ::testing::Test {
 protected:
  void SetUp() override {
    clear_stop_signal();
    std::signal(SIGHUP, SIG_DFL);  // under nohup it is ignored, and then stays so
    install_stop_signals();
  }
  void TearDown() override { clear_stop_signal(); }
  TempFolder folder_;
};

// Sends the signal once the run's metrics show `step`.
class SignalAt {
 public:
  SignalAt(std::string run, std::int64_t step, int signal)
      : thread_([this, run = std::move(run), step, signal] {
          while (!ended_) {
            if (file_exists(join_path(run, "metrics.jsonl")) &&
                read_file(join_path(run, "metrics.jsonl")).find("\"event\":\"train\",\"step\":" + std::to_string(step)) != std::string::npos) {
              raise(signal);
              return;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}
  ~SignalAt() {
    ended_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

TEST_F(Stop, saves_reports_and_goes_on_to_the_same_bits) {
  const std::string prefix = prepare_text(folder_, "text", made_text(20, 300));
  const std::vector<std::string> base = {"training.train_iters=150", "logging.log_interval=1"};
  const auto config = [&](const std::string& run) {
    std::vector<std::string> all = base;
    all.push_back("checkpoint.save=" + run);
    return tiny_config(prefix, all);
  };
  const TrainOutcome whole = run_training(config(folder_ / "whole"));
  std::vector<double> losses;
  const std::string run = folder_ / "run";
  for (int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    TrainOutcome part;
    {
      const SignalAt sender(run, static_cast<std::int64_t>(losses.size()) + 3, signal);
      part = run_training(config(run));
    }
    EXPECT_TRUE(part.stopped);
    EXPECT_EQ(part.reason.rfind(signal_name(signal), 0), 0U) << part.reason;
    losses.insert(losses.end(), part.losses.begin(), part.losses.end());
    EXPECT_EQ(part.progress.step, static_cast<std::int64_t>(losses.size()));
    const auto newest = newest_complete(list_checkpoints(run));
    ASSERT_TRUE(newest.has_value());
    EXPECT_EQ(newest->step, part.progress.step);
    EXPECT_EQ(metrics_lines(run, "end").back().at("reason"), part.reason);
    clear_stop_signal();
  }
  const TrainOutcome rest = run_training(config(run));
  EXPECT_FALSE(rest.stopped);
  losses.insert(losses.end(), rest.losses.begin(), rest.losses.end());
  EXPECT_EQ(losses, whole.losses);
  EXPECT_EQ(tensor_hashes(run, 150), tensor_hashes(folder_ / "whole", 150));
}

TEST_F(Stop, before_the_first_step_leaves_nothing_half_done) {
  const std::string prefix = prepare_text(folder_, "text", made_text(20, 300));
  const RunConfig config = tiny_config(prefix, {"training.train_iters=5", "checkpoint.save=" + (folder_ / "run")});
  raise(SIGTERM);
  try {
    const TrainOutcome outcome = run_training(config);
    EXPECT_TRUE(outcome.stopped);
    EXPECT_EQ(outcome.progress.step, 0);
  } catch (const StopRequested& stop) {  // while the data were opened: there was no state yet
    EXPECT_NE(std::string(stop.what()).find("SIGTERM"), std::string::npos);
  }
  set_log_file("");
  clear_stop_signal();
  const TrainOutcome outcome = run_training(config);
  EXPECT_FALSE(outcome.stopped);
  EXPECT_EQ(outcome.progress.step, 5);
  EXPECT_EQ(outcome.losses.size(), 5U);
}

TEST_F(Stop, is_heard_by_evaluation_generation_and_data_preparation) {
  const std::string prefix = prepare_text(folder_, "text", made_text(20, 300));
  Session session = make_session(tiny_config(prefix), false, DeviceKind::Cpu);
  std::vector<std::int32_t> tokens = {256};
  raise(SIGTERM);
  EXPECT_THROW(evaluate(session, {}), StopRequested);
  EXPECT_THROW(generate(session, tokens, {}, [](std::int32_t) {}), StopRequested);
  EXPECT_THROW(prepare_text(folder_, "more", made_text(20, 300)), StopRequested);
}

}  // namespace
}  // namespace deltron
