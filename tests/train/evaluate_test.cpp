// Evaluation: every character counted once, whatever the batch; and a bystander to training.
#include "src/train/evaluate.h"

#include <cmath>

#include "src/base/rng.h"
#include "tests/train/train_test_support.h"

namespace deltron {
namespace {

using namespace deltron::test;

// The held-out documents of `text`: the last tenth, as split "90,10,0" of `documents` cuts it.
std::vector<std::string> held_out(const std::string& text, std::size_t documents) {
  std::vector<std::string> all;
  for (std::size_t begin = 0, end; (end = text.find("\n\n", begin)) != std::string::npos; begin = end + 2) all.push_back(text.substr(begin, end - begin));
  EXPECT_EQ(all.size(), documents);
  return std::vector<std::string>(all.end() - static_cast<std::ptrdiff_t>(documents / 10), all.end());
}

// Nats of one document alone: the model sees the end-of-document token, then the text, and predicts the text and the next end.
double document_nats(Session& session, const std::string& document) {
  Context& ctx = *session.ctx;
  GradModeGuard no_graph(ctx, false);
  HostBatch batch;
  Sample sample;
  sample.tokens = {256};
  for (char c : document) sample.tokens.push_back(static_cast<unsigned char>(c));
  sample.labels.assign(sample.tokens.begin() + 1, sample.tokens.end());
  sample.labels.push_back(256);
  sample.segment_ends = {static_cast<std::int64_t>(sample.tokens.size())};
  append_sample(batch, 0, sample);
  const DeviceBatch device = upload(ctx, batch);
  double nats = 0;
  for (double loss : to_doubles(ctx, token_losses(ctx, session.model->logits(ctx, device.ids, device.layout, {}), device.labels))) nats += loss;
  return nats;
}

TEST(Evaluate, nats_are_the_sum_over_documents_taken_one_by_one) {
  TempFolder folder;
  std::string text = made_text(40, 120);
  const std::size_t last = text.rfind(' ', text.size() - 30);
  text.replace(last, 1, "\xC3\xA4\xE2\x82\xAC");  // a character of two bytes and one of three: bits per character are not per byte
  const std::string prefix = prepare_text(folder, "text", text);
  Session session = make_session(tiny_config(prefix), false, DeviceKind::Cpu);
  double nats = 0;
  std::int64_t bytes = 0;
  for (const std::string& document : held_out(text, 40)) {
    nats += document_nats(session, document);
    bytes += static_cast<std::int64_t>(document.size());
  }
  EvaluateOptions options;
  options.seq_length = 4096;  // no document is cut
  const std::vector<EvaluationResult> results = evaluate(session, options);
  ASSERT_EQ(results.size(), 1U);
  const EvaluationResult& result = results[0];
  EXPECT_NEAR(result.nats, nats, 1e-6 * nats);
  EXPECT_EQ(result.bytes, bytes);
  EXPECT_EQ(result.characters, bytes - 3);
  EXPECT_EQ(result.predictions, bytes + 4) << "each document's end is predicted too";
  EXPECT_DOUBLE_EQ(result.bits_per_character(), result.nats / std::log(2.0) / static_cast<double>(bytes - 3));
  EXPECT_DOUBLE_EQ(result.bits_per_byte(), result.nats / std::log(2.0) / static_cast<double>(bytes));
  EXPECT_DOUBLE_EQ(result.loss(), result.nats / static_cast<double>(result.predictions));
  EXPECT_DOUBLE_EQ(result.perplexity(), std::exp(result.loss()));
}

TEST(Evaluate, does_not_depend_on_the_batch_size) {
  TempFolder folder;
  const std::string prefix = prepare_text(folder, "text", made_text(40, 200));
  for (std::int64_t context : {0, 50}) {
    std::vector<EvaluationResult> results;
    for (const char* batch : {"1", "2", "8"}) {
      Session session = make_session(tiny_config(prefix, {std::string("training.micro_batch_size=") + batch, "training.global_batch_size=8"}), false,
                                     DeviceKind::Cpu);
      EvaluateOptions options;
      options.seq_length = context;
      results.push_back(evaluate(session, options).front());
    }
    for (const EvaluationResult& result : results) {
      EXPECT_NEAR(result.nats, results[0].nats, 1e-6 * results[0].nats);
      EXPECT_EQ(result.predictions, results[0].predictions);
      EXPECT_EQ(result.correct, results[0].correct);
      EXPECT_EQ(result.characters, results[0].characters);
    }
  }
}

TEST(Evaluate, a_longer_context_changes_the_nats_and_not_the_number_of_predictions) {
  TempFolder folder;
  const std::string prefix = prepare_text(folder, "text", made_text(40, 200));
  Session session = make_session(tiny_config(prefix), false, DeviceKind::Cpu);
  EvaluateOptions narrow, wide;
  narrow.seq_length = 16;
  wide.seq_length = 256;
  const EvaluationResult a = evaluate(session, narrow).front(), b = evaluate(session, wide).front();
  EXPECT_EQ(a.predictions, b.predictions);
  EXPECT_NE(a.nats, b.nats);
}

TEST(Evaluate, a_part_of_the_split_has_no_character_count) {
  TempFolder folder;
  const std::string prefix = prepare_text(folder, "text", made_text(40, 200));
  Session session = make_session(tiny_config(prefix), false, DeviceKind::Cpu);
  EvaluateOptions options;
  options.max_batches = 1;
  const EvaluationResult result = evaluate(session, options).front();
  EXPECT_GT(result.predictions, 0);
  EXPECT_EQ(result.characters, 0);
  EXPECT_EQ(result.bits_per_character(), 0.0);
}

TEST(Evaluate, between_steps_changes_no_bit_of_training) {
  TempFolder folder;
  const std::string prefix = prepare_text(folder, "text", made_text(20, 300));
  const std::string without = folder / "without", with = folder / "with";
  const TrainOutcome a = run_training(tiny_config(prefix, {"training.train_iters=6", "checkpoint.save=" + without}));
  const TrainOutcome b = run_training(tiny_config(prefix, {"training.train_iters=6", "training.eval_interval=2", "checkpoint.save=" + with}));
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(tensor_hashes(without, 6), tensor_hashes(with, 6));
  EXPECT_TRUE(a.evaluation.empty());
  ASSERT_EQ(b.evaluation.size(), 1U);
  EXPECT_EQ(metrics_lines(with, "eval").size(), 3U);
}

}  // namespace
}  // namespace deltron
