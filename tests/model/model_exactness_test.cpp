// What must hold to the bit: documents apart, batches equal to single documents, threads, repetition; evaluation that keeps nothing;
// plans that count what runs use; ranks as threads of one process.
#include <set>
#include <thread>

#include "tests/support/tiny_model.h"

namespace deltron {
namespace {

using test::bits_of;
using test::ModelRun;
using test::packed_batch;

TransformerConfig with_dropout() {
  TransformerConfig config = test::tiny_config();
  config.hidden_dropout = 0.1;
  config.attention_dropout = 0.2;
  return config;
}

class EveryType : public ::testing::TestWithParam<DType> {};
std::string type_name(const ::testing::TestParamInfo<DType>& info) { return dtype_name(info.param); }
INSTANTIATE_TEST_SUITE_P(Types, EveryType, ::testing::Values(DType::F32, DType::BF16, DType::F64), type_name);

TEST_P(EveryType, changing_one_document_changes_no_bit_of_the_others) {
  const TransformerConfig config = with_dropout();
  const std::vector<std::int64_t> lengths = {70, 5, 37, 1, 66};
  for (std::size_t changed : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
    std::vector<std::vector<std::uint64_t>> logits, gradients;
    std::vector<std::uint64_t> own;
    for (int variant : {0, 1}) {
      std::vector<int> variants(lengths.size(), 0);
      variants[changed] = variant;
      test::Batch batch = packed_batch(lengths, config.vocab_size, variants);
      ModelRun run(config, GetParam());
      const Tensor scores = run.logits(batch);
      logits.emplace_back();
      for (std::size_t d = 0; d < lengths.size(); ++d) {
        const std::vector<std::uint64_t> rows = bits_of(run.ctx, scores.slice(0, batch.offsets[d], lengths[d]));
        if (d == changed) {
          if (variant == 1) {
            EXPECT_NE(rows, own);
          }
          own = rows;
        } else {
          logits.back().insert(logits.back().end(), rows.begin(), rows.end());
        }
      }
      // The loss of the other documents alone.
      for (std::int64_t t = batch.offsets[changed]; t < batch.offsets[changed + 1]; ++t) batch.labels[static_cast<std::size_t>(t)] = -1;
      gradients.push_back(bits_of(run.loss_and_gradients(batch)));
    }
    EXPECT_EQ(logits[0], logits[1]) << "document " << changed;
    EXPECT_EQ(gradients[0], gradients[1]) << "document " << changed;
  }
}

TEST_P(EveryType, a_batch_of_equal_lengths_gives_each_document_what_it_gets_alone) {
  const TransformerConfig config = with_dropout();
  const std::vector<std::int64_t> lengths(3, 67);
  ModelRun run(config, GetParam(), 2);
  const test::Batch batch = packed_batch(lengths, config.vocab_size);
  const Tensor together = run.logits(batch);
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    test::Batch one;
    one.offsets = {0, 67};
    one.ids.assign(batch.ids.begin() + batch.offsets[d], batch.ids.begin() + batch.offsets[d + 1]);
    one.labels.assign(67, 1);
    one.samples = {static_cast<std::int64_t>(d)};  // the same document to dropout
    EXPECT_EQ(bits_of(run.ctx, run.logits(one)), bits_of(run.ctx, together.slice(0, batch.offsets[d], 67))) << "document " << d;
  }
}

TEST_P(EveryType, threads_and_repetition_change_no_bit) {
  const TransformerConfig config = with_dropout();
  const test::Batch batch = packed_batch({70, 1, 150, 33}, config.vocab_size);
  ModelRun one(config, GetParam(), 1);
  const std::vector<std::uint64_t> expected = bits_of(one.loss_and_gradients(batch));
  EXPECT_EQ(bits_of(one.loss_and_gradients(batch)), expected) << "the same context again";
  for (int threads : {1, 2, 3}) {
    ModelRun other(config, GetParam(), threads);
    EXPECT_EQ(bits_of(other.loss_and_gradients(batch)), expected) << threads << " threads";
  }
}

TEST(Model, dropout_acts_in_training_alone_and_follows_the_sample) {
  const TransformerConfig config = with_dropout();
  ModelRun run(config, DType::F32);
  test::Batch batch = packed_batch({20, 20}, config.vocab_size);
  const auto training = bits_of(run.ctx, run.logits(batch)), evaluation = bits_of(run.ctx, run.logits(batch, false));
  EXPECT_NE(training, evaluation);
  batch.samples = {8, 9};
  EXPECT_NE(bits_of(run.ctx, run.logits(batch)), training);
  EXPECT_EQ(bits_of(run.ctx, run.logits(batch, false)), evaluation);
}

TEST(Model, a_token_never_sees_its_future) {
  ModelRun run(test::tiny_config(), DType::F32);
  test::Batch batch = packed_batch({80}, 13);
  const Tensor before = run.logits(batch);
  batch.ids[50] = (batch.ids[50] + 1) % 13;
  const Tensor after = run.logits(batch);
  EXPECT_EQ(bits_of(run.ctx, before.slice(0, 0, 50)), bits_of(run.ctx, after.slice(0, 0, 50)));
  EXPECT_NE(bits_of(run.ctx, before.slice(0, 50, 1)), bits_of(run.ctx, after.slice(0, 50, 1)));
  EXPECT_NE(bits_of(run.ctx, before.slice(0, 79, 1)), bits_of(run.ctx, after.slice(0, 79, 1)));
}

TEST(Model, linear_mixers_can_be_left_out) {
  ModelRun run(test::tiny_config(), DType::F32);
  const test::Batch batch = packed_batch({30}, 13);
  const Tensor ids = test::int_tensor(run.ctx, batch.ids);
  const Tensor without = run.model.logits(run.ctx, ids, run.layout(batch), {.training = false, .without_linear_mixers = true});
  EXPECT_NE(bits_of(run.ctx, without), bits_of(run.ctx, run.logits(batch, false)));
  // What an out_proj of zeros gives.
  for (const LogicalTensor& logical : run.model.parameters().logical()) {
    if (logical.name.find("out_proj") != std::string::npos) {
      from_doubles(run.ctx, logical.value(), std::vector<double>(static_cast<std::size_t>(logical.value().count()), 0.0));
    }
  }
  EXPECT_EQ(to_doubles(run.ctx, without), to_doubles(run.ctx, run.logits(batch, false)));
}

TEST(Model, evaluation_keeps_nothing) {
  for (bool trainable : {true, false}) {
    ModelRun run(test::tiny_config(), DType::F32, 1, DeviceKind::Cpu, trainable);
    const test::Batch batch = packed_batch({70, 9}, 13);
    GradModeGuard off(run.ctx, false);
    const std::int64_t before = run.ctx.memory()->stats().current;
    run.loss(batch, false);
    EXPECT_EQ(run.ctx.memory()->stats().current, before);
    EXPECT_EQ(run.ctx.memory()->stats().peak_saved, 0);
    EXPECT_TRUE(run.ctx.memory()->saved_storages().empty());
  }
}

TEST(Model, what_training_saves_is_listed_by_layer_and_region) {
  ModelRun run(test::tiny_config(), DType::F32);
  const Tensor loss = run.loss(packed_batch({70, 9}, 13));
  std::set<std::string> seen;
  for (const SavedStorage& saved : run.ctx.memory()->saved_storages()) {
    if (saved.tag != MemoryTag::Activations) continue;
    seen.insert(std::to_string(saved.scope.layer) + " " + saved.scope.region);
    EXPECT_STRNE(saved.scope.region, "") << saved.name;
  }
  for (const char* expected : {"0 gdn_in_proj", "0 gdn_qkv", "0 gdn_core_attn", "0 gdn_norm_out", "0 mlp", "0 residual", "1 attn_qkv",
                               "1 core_attn", "1 attn_proj", "2 gdn_core_attn", "-1 output"}) {
    EXPECT_EQ(seen.count(expected), 1u) << expected;
  }
  std::int64_t bytes = 0;
  for (const ScopeBytes& row : run.ctx.memory()->activations_by_scope()) bytes += row.bytes;
  EXPECT_EQ(bytes, run.ctx.memory()->stats().by_tag[static_cast<std::size_t>(MemoryTag::Activations)]);
}

TEST(Model, memory_after_each_step_is_the_same_and_peaks_repeat) {
  ModelRun run(with_dropout(), DType::BF16, 2);
  const test::Batch batch = packed_batch({70, 9, 66}, 13);
  run.loss_and_gradients(batch);
  const MemoryStats first = run.ctx.memory()->stats();
  for (int step = 0; step < 4; ++step) {
    run.ctx.memory()->reset_peak();
    run.loss_and_gradients(batch);
    const MemoryStats stats = run.ctx.memory()->stats();
    EXPECT_EQ(stats.current, first.current);
    EXPECT_EQ(stats.peak, first.peak);
    EXPECT_EQ(stats.by_tag_at_peak, first.by_tag_at_peak);
    EXPECT_EQ(stats.saved, 0);
    EXPECT_EQ(stats.peak_saved, first.peak_saved);
  }
}

TEST_P(EveryType, a_plan_counts_what_a_run_uses) {
  const auto step = [](DeviceKind device, DType dtype) {
    ModelRun run(with_dropout(), dtype, 2, device);
    for (int i = 0; i < 2; ++i) run.loss_and_gradients(packed_batch({70, 9, 1, 66}, 13));
    return run.ctx.memory()->stats();
  };
  const MemoryStats cpu = step(DeviceKind::Cpu, GetParam()), meta = step(DeviceKind::Meta, GetParam());
  EXPECT_EQ(meta.current, cpu.current);
  EXPECT_EQ(meta.peak, cpu.peak);
  EXPECT_EQ(meta.by_tag, cpu.by_tag);
  EXPECT_EQ(meta.by_tag_at_peak, cpu.by_tag_at_peak);
  EXPECT_EQ(meta.peak_by_tag, cpu.peak_by_tag);
  EXPECT_EQ(meta.peak_saved, cpu.peak_saved);
  EXPECT_EQ(meta.allocations, cpu.allocations);
}

TEST(Model, two_ranks_as_threads_of_one_process_do_not_disturb_each_other) {
  const TransformerConfig config = with_dropout();
  const test::Batch batches[] = {packed_batch({70, 9}, 13), packed_batch({30, 100}, 13, {4, 5})};
  std::vector<std::uint64_t> alone[2], together[2];
  MemoryStats stats_alone[2], stats_together[2];
  const auto rank = [&](int which, std::vector<std::uint64_t>& bits, MemoryStats& stats) {
    ModelRun run(config, DType::F32, 2);
    for (int step = 0; step < 4; ++step) bits = bits_of(run.loss_and_gradients(batches[which]));
    stats = run.ctx.memory()->stats();
  };
  for (int which : {0, 1}) rank(which, alone[which], stats_alone[which]);
  std::thread other([&] { rank(1, together[1], stats_together[1]); });
  rank(0, together[0], stats_together[0]);
  other.join();
  for (int which : {0, 1}) {
    EXPECT_EQ(together[which], alone[which]) << "rank " << which;
    EXPECT_EQ(stats_together[which].peak, stats_alone[which].peak);
    EXPECT_EQ(stats_together[which].allocations, stats_alone[which].allocations);
  }
}

}  // namespace
}  // namespace deltron
