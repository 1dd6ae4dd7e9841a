// Recorded steps of a training: the trace file, its nesting and sums, replays and copies in it, the same bits with and without, and starts
// that do not run the steps.
#include "src/train/profile.h"

#include <gmock/gmock.h>

#include <map>

#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using nlohmann::json;
using test::run_training;
using test::tiny_config;
using ::testing::HasSubstr;

class ProfiledTraining : public ::testing::Test {
 protected:
  void SetUp() override { prefix_ = test::prepare_text(folder_, "tokens", test::made_text(30, 300)); }
  RunConfig profiled(std::vector<std::string> more = {}) const {
    const std::vector<std::string> base = {"logging.profile=true", "logging.profile_step_start=2", "logging.profile_step_end=4",
                                           "checkpoint.save=" + (folder_ / "run")};
    const auto steps = [](const std::string& word) { return word.rfind("training.train_iters=", 0) == 0; };
    if (std::none_of(more.begin(), more.end(), steps)) more.push_back("training.train_iters=6");
    more.insert(more.begin(), base.begin(), base.end());
    return tiny_config(prefix_, more);
  }
  static std::vector<std::string> with_regions() {
    return {"training.seq_length=64",
            "recompute.recompute_granularity=selective",
            "recompute.recompute_modules=[gdn_norm_out]",
            "model.num_layers=4",
            "model.linear_attention_freq=[1,1,1,0]",
            "offload.fine_grained_activation_offloading=true",
            "offload.offload_modules=[gdn_qkv]",
            "offload.min_offloaded_tensor_size=64"};
  }
  TempFolder folder_;
  std::string prefix_;
};

std::vector<json> complete_events(const json& trace, int thread) {
  std::vector<json> events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("tid") == thread) events.push_back(event);
  }
  return events;
}

// Events of one thread as they come: each lies in the last one that is still open, or behind it.
void expect_nested(const std::vector<json>& events) {
  std::vector<double> ends;
  for (const json& event : events) {
    const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
    EXPECT_GE(event.at("dur").get<double>(), 0.0);
    constexpr double kRounding = 1e-3;  // microseconds
    while (!ends.empty() && begin >= ends.back() - kRounding) ends.pop_back();
    if (!ends.empty()) {
      EXPECT_LE(end, ends.back() + kRounding) << event;
    }
    ends.push_back(end);
  }
}

TEST_F(ProfiledTraining, the_trace_holds_the_recorded_steps_with_nested_ranges_that_add_up) {
  const TrainOutcome outcome = run_training(profiled());
  ASSERT_EQ(outcome.profile_file, folder_ / "run/profile/steps_2_4.json");
  const std::string text = read_file(outcome.profile_file);
  ASSERT_TRUE(json::accept(text));
  const json trace = json::parse(text);
  EXPECT_EQ(trace.at("deltron").at("first_step"), 3);
  EXPECT_EQ(trace.at("deltron").at("last_step"), 4);
  EXPECT_EQ(trace.at("deltron").at("device"), "cpu");
  const std::vector<json> events = complete_events(trace, 1);
  expect_nested(events);
  std::map<std::string, int> counts;
  double steps = 0, total = 0;
  for (const json& event : events) {
    counts[event.at("cat")]++;
    if (event.at("cat") == "step") steps += event.at("dur").get<double>();
  }
  EXPECT_EQ(counts["step"], 2);
  EXPECT_EQ(counts["micro-batch"], 4);
  EXPECT_EQ(counts["forward"], 4);
  EXPECT_EQ(counts["backward"], 4);
  EXPECT_EQ(counts["optimizer"], 2);
  EXPECT_EQ(counts["replay"], 0);
  std::map<std::string, double> rows;
  for (const json& row : trace.at("deltron").at("self_times")) {
    total += row.at("ms").get<double>();
    rows[row.at("phase").get<std::string>() + ", " + row.at("name").get<std::string>()] = row.at("ms");
  }
  EXPECT_NEAR(total, steps / 1000, 1e-6 * steps);
  for (const char* row : {"forward, gdn_core_attn", "backward, gdn_core_attn", "forward, mlp", "backward, mlp", "forward, core_attn", "forward, embedding",
                          "backward, output", "optimizer, gradient norm"}) {
    EXPECT_TRUE(rows.count(row) != 0 && rows[row] > 0) << row;
  }
  EXPECT_EQ(trace.at("traceEvents").at(0).at("ph"), "M");
}

TEST_F(ProfiledTraining, replays_and_copies_are_ranges_of_their_own) {
  const TrainOutcome outcome = run_training(profiled(with_regions()));
  const json trace = json::parse(read_file(outcome.profile_file));
  const std::vector<json> events = complete_events(trace, 1);
  expect_nested(events);
  int replays = 0;
  for (const json& event : events) {
    if (event.at("cat") != "replay") continue;
    ++replays;
    EXPECT_THAT(event.at("name").get<std::string>(), HasSubstr("replay of gdn_norm_out (layer "));
  }
  EXPECT_EQ(replays, 3 * 2 * 2);  // layers, micro-batches, steps
  const std::vector<json> out = complete_events(trace, 3), in = complete_events(trace, 4);
  EXPECT_FALSE(out.empty());
  EXPECT_EQ(out.size(), in.size());
}

TEST_F(ProfiledTraining, recording_changes_no_bit) {
  const std::vector<std::string> more = with_regions();
  std::vector<std::string> plain = more;
  plain.push_back("training.train_iters=6");
  EXPECT_EQ(run_training(profiled(more)).losses, run_training(tiny_config(prefix_, plain)).losses);
}

TEST_F(ProfiledTraining, a_run_that_stops_in_between_leaves_what_it_has) {
  const TrainOutcome outcome = run_training(profiled({"training.exit_interval=3"}));
  EXPECT_TRUE(outcome.stopped);
  ASSERT_EQ(outcome.profile_file, folder_ / "run/profile/steps_2_3.json");
  EXPECT_EQ(json::parse(read_file(outcome.profile_file)).at("deltron").at("last_step"), 3);
}

TEST_F(ProfiledTraining, a_start_behind_the_steps_is_refused_if_it_asked_for_them_and_goes_on_if_the_run_did) {
  ASSERT_FALSE(run_training(profiled()).profile_file.empty());
  const RunConfig longer = profiled({"training.train_iters=8"});
  TrainOptions asked;
  asked.profile = true;
  try {
    run_training(longer, asked);
    FAIL() << "steps that are done were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::UsageError);
    EXPECT_THAT(error.what(), HasSubstr("steps=2:4"));
    EXPECT_THAT(error.what(), HasSubstr("step 6"));
  }
  const TrainOutcome rest = run_training(longer);
  EXPECT_EQ(rest.progress.step, 8);
  EXPECT_TRUE(rest.profile_file.empty());
}

}  // namespace
}  // namespace deltron
