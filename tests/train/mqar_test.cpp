// End to end: Gated DeltaNet layers alone learn associative recall, and it is the mixers that do it.
#include <gtest/gtest.h>

#include "src/checkpoint/reader.h"
#include "src/config/loader.h"
#include "src/train/evaluate.h"
#include "src/train/state_io.h"
#include "src/train/trainer.h"
#include "tests/checkpoint/temp_folder.h"

namespace deltron::test {
namespace {

TEST(Mqar, gdn_layers_alone_recall_four_pairs_and_nothing_is_left_without_them) {
  const TempFolder folder;
  const RunConfig config = load_run_config(std::string(DELTRON_SOURCE_DIR) + "/configs/mqar_tiny.yaml", {"checkpoint.save=" + (folder / "run")});
  ASSERT_EQ(linear_layer_count(config.model), config.model.num_layers) << "linear layers alone";
  ASSERT_EQ(config.data.mqar_vocab_size, 64);
  ASSERT_EQ(config.data.mqar_num_pairs, 4);
  ASSERT_EQ(config.training.seq_length, 32);
  const TrainOutcome outcome = train(config, {});
  EXPECT_FALSE(outcome.stopped);
  Session session = make_session(config, false, DeviceKind::Cpu);
  load_run(session, CheckpointReader(newest_complete(list_checkpoints(folder / "run"))->path), true);
  EvaluateOptions options;
  const EvaluationResult learned = evaluate(session, options).at(0);
  EXPECT_EQ(learned.predictions, 1024 * 4) << "four queries a sequence";
  EXPECT_GE(learned.accuracy(), 0.99);
  options.without_linear_mixers = true;
  EXPECT_LT(evaluate(session, options).at(0).accuracy(), 0.1) << "32 values: chance is 3 %";
}

}  // namespace
}  // namespace deltron::test
