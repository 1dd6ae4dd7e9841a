// Exact resume where data make it hard, and checkpoints that cannot be resumed from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "src/checkpoint/resume.h"
#include "src/checkpoint/writer.h"
#include "tests/trust/tiny_run.h"

namespace deltron {
namespace {

using ::testing::HasSubstr;
using testing::Folder;

// Stopping after every single step meets every border: between the two files of the blend, between epochs (the second file is used up
// within a few steps), between evaluations and saves.
TEST(ResumeBlend, stopping_after_every_step_changes_no_bit) {
  const Folder folder("every_step");
  RunConfig whole = testing::tiny_config(folder);
  whole.checkpoint.save = folder / "whole";
  const TrainOutcome expected = train(whole, {});
  RunConfig config = whole;
  config.checkpoint.save = folder / "pieces";
  config.training.exit_interval = 1;
  std::vector<double> losses;
  for (int start = 0; start < 20; ++start) {
    config.logging.log_interval = 1 + start % 3;
    config.checkpoint.save_interval = start % 4;
    const TrainOutcome outcome = train(config, {});
    ASSERT_EQ(outcome.progress.step, start + 1);
    losses.insert(losses.end(), outcome.losses.begin(), outcome.losses.end());
  }
  EXPECT_EQ(losses, expected.losses);
  EXPECT_EQ(testing::checkpoint_hash(config.checkpoint.save, 20), testing::checkpoint_hash(whole.checkpoint.save, 20));

  // The borders were there: both files were read, and the smaller one for more than one epoch.
  const DataOptions data = data_options(config);
  DataOptions smaller = data;
  smaller.data_path = {folder / "b"};
  const IndexReport blend = build_sample_index(data, Split::Train, 80);
  const IndexReport epochs = build_sample_index(smaller, Split::Train, 20);
  EXPECT_EQ(blend.entries.size(), 2u);
  EXPECT_GT(epochs.entries.at(0).samples, 0);
  EXPECT_GT(blend.entries.at(0).epochs + blend.entries.at(1).epochs, 2) << to_text(blend);
}

class BrokenResume : public ::testing::Test {
 protected:
  BrokenResume() : folder_("broken"), config_(testing::tiny_config(folder_)) {
    config_.checkpoint.save_interval = 5;
    train(config_, {});
  }
  Error failure(const std::string& resume) {
    RunConfig config = config_;
    config.checkpoint.resume = resume;
    config.training.train_iters = 25;
    try {
      train(config, {});
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::InternalFault, {"no error"});
  }
  Folder folder_;
  RunConfig config_;
};

TEST_F(BrokenResume, an_explicit_step_that_is_missing_or_incomplete_names_the_newest_complete_one) {
  std::remove(join_path(checkpoint_path(config_.checkpoint.save, 20), "manifest.json").c_str());
  const Error incomplete = failure("20");
  EXPECT_EQ(incomplete.code(), ErrorCode::CheckpointIncomplete);
  EXPECT_THAT(incomplete.what(), HasSubstr("newest complete: step 15"));
  const Error missing = failure("7");
  EXPECT_EQ(missing.code(), ErrorCode::CheckpointNotFound);
  EXPECT_THAT(missing.what(), HasSubstr("newest complete: step 15"));
}

// Hashes are right, but the trainer's state is not what this version reads: the step is marked and passed over from then on.
TEST_F(BrokenResume, a_step_that_verifies_but_does_not_load_is_tried_once) {
  {
    const CheckpointReader reader(checkpoint_path(config_.checkpoint.save, 20));
    CheckpointContent content;
    content.step = 20;
    TensorGroup group{"model", {}};
    std::vector<HostArray> arrays;
    for (const std::string& name : reader.names()) arrays.push_back(copy_of(reader.view(name)));
    for (const HostArray& array : arrays) group.tensors.push_back(array.view());
    content.groups.push_back(group);
    content.state["step"] = "twenty";
    save_checkpoint(config_.checkpoint.save, content);
  }
  const Error first = failure("auto");
  EXPECT_EQ(first.code(), ErrorCode::CheckpointInvalid);
  for (const CheckpointSummary& checkpoint : list_checkpoints(config_.checkpoint.save)) {
    EXPECT_EQ(checkpoint.failed, checkpoint.step == 20) << checkpoint.step;
  }
  const ResumeChoice choice = resolve_resume(config_.checkpoint.save, "auto");
  ASSERT_TRUE(choice.checkpoint);
  EXPECT_EQ(choice.checkpoint->step, 15);
  EXPECT_THAT(choice.notes, ::testing::Contains(HasSubstr("step 20 passed over")));
}

TEST_F(BrokenResume, a_sound_step_of_another_model_is_not_marked) {
  RunConfig other = config_;
  other.model.ffn_hidden_size = 32;
  EXPECT_THROW(train(other, {}), Error);
  for (const CheckpointSummary& checkpoint : list_checkpoints(config_.checkpoint.save)) EXPECT_TRUE(checkpoint.usable()) << checkpoint.step;
}

}  // namespace
}  // namespace deltron
