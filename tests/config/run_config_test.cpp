// What follows from the keys alone: layer pattern, head sizes, blends, splits, resume requests.
#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/config/run_config.h"

namespace deltron {
namespace {

std::string pattern(const TransformerConfig& model) {
  std::string text;
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) text += is_linear_layer(model, layer) ? '1' : '0';
  return text;
}

TEST(LayerPattern, interval_puts_softmax_on_every_fth_layer_counted_from_one) {
  TransformerConfig model;
  model.num_layers = 8;
  model.experimental_attention_variant = ExperimentalAttentionVariant::Gdn;
  model.linear_attention_freq.interval = 4;
  EXPECT_EQ(pattern(model), "11101110");
  EXPECT_EQ(linear_layer_count(model), 6);
  EXPECT_EQ(softmax_layer_count(model), 2);
  model.linear_attention_freq.interval = 3;
  EXPECT_EQ(pattern(model), "11011011");
  model.linear_attention_freq.interval = 1;
  EXPECT_EQ(pattern(model), "00000000");
  model.linear_attention_freq.interval = 0;
  EXPECT_EQ(pattern(model), "11111111");
}

TEST(LayerPattern, list_has_one_entry_a_layer) {
  TransformerConfig model;
  model.num_layers = 4;
  model.experimental_attention_variant = ExperimentalAttentionVariant::Gdn;
  model.linear_attention_freq.pattern = {1, 0, 0, 1};
  EXPECT_EQ(pattern(model), "1001");
  model.linear_attention_freq.pattern = {1, 0};
  EXPECT_THROW(is_linear_layer(model, 0), Error);
}

TEST(LayerPattern, without_a_variant_every_layer_is_softmax) {
  TransformerConfig model;
  model.num_layers = 2;
  EXPECT_EQ(pattern(model), "00");
  EXPECT_THROW(is_linear_layer(model, 2), Error);
}

TEST(Heads, unset_sizes_follow_from_the_others) {
  TransformerConfig model;
  EXPECT_EQ(head_dim(model), 0);
  model.hidden_size = 64;
  model.num_attention_heads = 4;
  EXPECT_EQ(head_dim(model), 16);
  EXPECT_EQ(query_groups(model), 4);
  EXPECT_EQ(rotary_dim(model), 16);
  model.kv_channels = 100;
  model.num_query_groups = 2;
  model.rotary_percent = 0.29;  // 0.29 * 100 is below 29 in binary
  EXPECT_EQ(head_dim(model), 100);
  EXPECT_EQ(query_groups(model), 2);
  EXPECT_EQ(rotary_dim(model), 29);
  model.position_embedding_type = PositionEmbeddingType::None;
  EXPECT_EQ(rotary_dim(model), 0);
}

TEST(Schedule, decay_iters_default_to_the_run) {
  RunConfig config;
  config.training.train_iters = 100;
  EXPECT_EQ(decay_iters(config), 100);
  config.optimizer.lr_decay_iters = 70;
  EXPECT_EQ(decay_iters(config), 70);
}

TEST(Blend, both_forms_are_read) {
  DataConfig data;
  std::vector<BlendPart> parts;
  EXPECT_TRUE(blend(data, parts));
  EXPECT_TRUE(parts.empty());
  data.data_path = {"a", "b"};
  ASSERT_TRUE(blend(data, parts));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1].prefix, "b");
  EXPECT_EQ(parts[1].weight, 1.0);
  data.data_path = {"0.25", "a", "3", "b"};
  ASSERT_TRUE(blend(data, parts));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].weight, 0.25);
  EXPECT_EQ(parts[1].weight, 3.0);
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{{"1", "a", "b"}, {"a", "1"}, {"-1", "a"}, {"1", "2"}, {""}, {"1", ""}}) {
    data.data_path = wrong;
    EXPECT_FALSE(blend(data, parts)) << wrong.front();
  }
}

TEST(Split, three_weights_of_positive_sum) {
  std::array<double, 3> weights{};
  ASSERT_TRUE(split_weights("90,10,0", weights));
  EXPECT_EQ(weights, (std::array<double, 3>{90, 10, 0}));
  ASSERT_TRUE(split_weights(" 0.9, 0.05 ,0.05", weights));
  EXPECT_EQ(weights[1], 0.05);
  for (const char* wrong : {"", "90", "90,10", "90,10,0,0", "90,10,", "a,b,c", "0,0,0", "1,-1,1", "inf,0,0"}) EXPECT_FALSE(split_weights(wrong, weights)) << wrong;
}

TEST(Resume, words_and_steps) {
  ResumeRequest request;
  ASSERT_TRUE(resume_request("auto", request));
  EXPECT_EQ(request.kind, ResumeRequest::Kind::Auto);
  ASSERT_TRUE(resume_request("never", request));
  EXPECT_EQ(request.kind, ResumeRequest::Kind::Never);
  ASSERT_TRUE(resume_request("1200", request));
  EXPECT_EQ(request.kind, ResumeRequest::Kind::Step);
  EXPECT_EQ(request.step, 1200);
  for (const char* wrong : {"", "Auto", "-1", "1.5", "12x"}) EXPECT_FALSE(resume_request(wrong, request)) << wrong;
}

}  // namespace
}  // namespace deltron
