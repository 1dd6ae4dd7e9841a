// Generation on recurrent state, convolution state and key-value cache: token by token equals the full forward.
#include <gtest/gtest.h>

#include <cmath>

#include "src/base/rng.h"
#include "src/train/generate.h"

namespace deltron {
namespace {

TransformerConfig base_config() {
  TransformerConfig config;
  config.num_layers = 3;
  config.hidden_size = 48;
  config.ffn_hidden_size = 64;
  config.vocab_size = 37;
  config.init_method_std = 0.2;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

TransformerConfig linear_config() {
  TransformerConfig config = base_config();
  config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn;
  config.linear_attention_freq.interval = 0;
  config.linear_num_key_heads = 2;
  config.linear_num_value_heads = 4;
  config.linear_key_head_dim = 16;
  config.linear_value_head_dim = 24;
  return config;
}

void add_attention(TransformerConfig& config) {
  config.num_attention_heads = 4;
  config.num_query_groups = 2;
  config.kv_channels = 16;
  config.attention_output_gate = true;
  config.qk_layernorm = true;
  config.rotary_percent = 0.5;
}

TransformerConfig softmax_config() {
  TransformerConfig config = base_config();
  add_attention(config);
  return config;
}

TransformerConfig hybrid_config() {
  TransformerConfig config = linear_config();
  add_attention(config);
  config.linear_attention_freq = {LinearAttentionFreq::kNotSet, {1, 0, 1}};
  return config;
}

// Gated DeltaNet-2: decay and erasure by key channel, writing by value channel.
TransformerConfig gdn2_config() {
  TransformerConfig config = linear_config();
  config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
  return config;
}

TransformerConfig gdn2_hybrid_config() {
  TransformerConfig config = hybrid_config();
  config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
  return config;
}

RunConfig run_config(const TransformerConfig& model) {
  RunConfig config;
  config.model = model;
  config.training.seq_length = 64;
  config.training.threads = 2;
  return config;
}

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t vocab) {
  RngStream random({7, 0, kRngSiteData}, 0);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocab))));
  return ids;
}

// [T, vocab] in one row after the other.
std::vector<double> full_logits(Session& session, const std::vector<std::int32_t>& ids) {
  GradModeGuard no_graph(*session.ctx, false);
  HostBatch batch;
  batch.tokens = ids;
  batch.labels.assign(ids.size(), kIgnoreLabel);
  batch.cu_seqlens = {0, static_cast<std::int64_t>(ids.size())};
  const DeviceBatch device = upload(*session.ctx, batch);
  return to_doubles(*session.ctx, session.model->logits(*session.ctx, device.ids, device.layout, {}));
}

double largest_difference(const std::vector<double>& logits, const std::vector<double>& all, std::size_t row) {
  double worst = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) worst = std::max(worst, std::abs(logits[i] - all[row * logits.size() + i]));
  return worst;
}

struct Case {
  const char* name;
  TransformerConfig config;
};

class Generation : public testing::TestWithParam<int> {
 protected:
  static Case model_case(int index) {
    TransformerConfig short_conv = linear_config(), no_conv = linear_config(), plain = softmax_config(), gdn2_short = gdn2_config();
    short_conv.linear_conv_kernel_dim = 2;
    short_conv.allow_neg_eigval = true;
    no_conv.linear_conv_kernel_dim = 1;
    plain.attention_output_gate = plain.qk_layernorm = false;
    plain.num_query_groups = 0;
    gdn2_short.linear_conv_kernel_dim = 1;
    gdn2_short.allow_neg_eigval = true;
    const Case cases[] = {{"gdn", linear_config()},        {"softmax", softmax_config()}, {"hybrid", hybrid_config()},
                          {"gdn_conv2_neg", short_conv},   {"gdn_conv1", no_conv},        {"softmax_plain", plain},
                          {"gdn2", gdn2_config()},         {"gdn2_hybrid", gdn2_hybrid_config()}, {"gdn2_conv1_neg", gdn2_short}};
    return cases[index];
  }
};

TEST_P(Generation, token_by_token_equals_the_full_forward) {
  const Case model = model_case(GetParam());
  Session session = make_session(run_config(model.config), false, DeviceKind::Cpu);
  const std::vector<std::int32_t> ids = random_ids(80, model.config.vocab_size);
  double worst = 0, largest = 0;
  for (std::int64_t prompt : {1, 2, 3, 4, 5, 63, 64, 65}) {
    const std::vector<std::int32_t> used(ids.begin(), ids.begin() + prompt + 10);
    const std::vector<double> all = full_logits(session, used);
    for (double value : all) largest = std::max(largest, std::abs(value));
    DecodeCache cache;
    std::vector<std::int32_t> next(used.begin(), used.begin() + prompt);
    for (std::int64_t row = prompt - 1; row < prompt + 10; ++row) {
      const std::vector<double> logits = to_doubles(*session.ctx, session.model->next_logits(*session.ctx, next, cache));
      worst = std::max(worst, largest_difference(logits, all, static_cast<std::size_t>(row)));
      if (row + 1 < prompt + 10) next = {used[static_cast<std::size_t>(row + 1)]};
    }
  }
  EXPECT_GT(largest, 0.5) << "logits too small to tell";
  EXPECT_LE(worst, 1e-4) << model.name;
  RecordProperty("worst_" + std::string(model.name), std::to_string(worst));
}

// A prompt may also come in pieces of several tokens.
TEST_P(Generation, pieces_of_several_tokens_equal_the_full_forward) {
  const Case model = model_case(GetParam());
  Session session = make_session(run_config(model.config), false, DeviceKind::Cpu);
  const std::vector<std::int32_t> ids = random_ids(150, model.config.vocab_size);
  const std::vector<double> all = full_logits(session, ids);
  DecodeCache cache;
  std::size_t begin = 0;
  for (std::size_t piece : {3u, 1u, 60u, 2u, 70u, 14u}) {
    const std::vector<std::int32_t> next(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.begin() + static_cast<std::ptrdiff_t>(begin + piece));
    const std::vector<double> logits = to_doubles(*session.ctx, session.model->next_logits(*session.ctx, next, cache));
    begin += piece;
    EXPECT_LE(largest_difference(logits, all, begin - 1), 1e-4) << model.name << " after " << begin << " tokens";
  }
  EXPECT_EQ(cache.tokens, 150);
}

INSTANTIATE_TEST_SUITE_P(models, Generation, testing::Range(0, 9));

TEST(Generate, greedy_text_is_that_of_full_forwards_and_ends_at_the_end_token) {
  Session session = make_session(run_config(hybrid_config()), false, DeviceKind::Cpu);
  std::vector<std::int32_t> expected = random_ids(6, 37), tokens = expected;
  for (int i = 0; i < 20; ++i) {
    const std::vector<double> all = full_logits(session, expected);
    expected.push_back(sample_token({all.end() - 37, all.end()}, {.temperature = 0}, 0));
  }
  GenerateOptions options{.max_tokens = 20, .temperature = 0};
  std::int64_t seen = 0;
  const GenerateReport report = generate(session, tokens, options, [&](std::int32_t) { ++seen; });
  EXPECT_EQ(tokens, expected);
  EXPECT_EQ(seen, 20);
  EXPECT_EQ(report.drawn, 20);
  EXPECT_EQ(report.prompt_tokens, 6);
  EXPECT_FALSE(report.ended);

  options.end_token = expected[8];  // the third drawn, or an equal one before it
  std::vector<std::int32_t> ended(expected.begin(), expected.begin() + 6);
  EXPECT_TRUE(generate(session, ended, options, [](std::int32_t) {}).ended);
  EXPECT_LE(ended.size(), 8u);
}

TEST(Generate, a_seed_repeats_and_another_differs) {
  Session session = make_session(run_config(linear_config()), false, DeviceKind::Cpu);
  const auto drawn = [&](std::uint64_t seed) {
    std::vector<std::int32_t> tokens = {1};
    generate(session, tokens, {.max_tokens = 40, .top_k = 20, .top_p = 0.9, .seed = seed}, [](std::int32_t) {});
    return tokens;
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

}  // namespace
}  // namespace deltron
