// Switches of the model on many ranks against one rank, each on a layout where it has most to do; bf16; recompute and offload around the
// exchanges, bit by bit; repetition, bit by bit.
#include <cstdio>

#include "tests/model/parallel_run.h"

namespace deltron {
namespace {

using test::Limits;
using test::ParallelCase;
using test::ParallelResult;
using test::Ranks;
using test::run_parallel;

struct Feature {
  const char* name;
  void (*turn)(TransformerConfig&);
  std::vector<Ranks> layouts;
};

void gdn2(TransformerConfig& c) { c.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2; }
void fused(TransformerConfig& c) { c.gdn_pre_gated_delta_rule_fusion = c.gdn_gated_output_norm_fusion = true; }
void more_value_heads(TransformerConfig& c) { c.linear_num_value_heads = 16; }

const std::vector<Feature>& features() {
  static const std::vector<Feature> all = {
      {"fusions", [](TransformerConfig& c) { fused(c), more_value_heads(c); }, {{2, 2, true}, {1, 4, false}, {2, 1, false}}},
      {"fusions_of_gdn2", [](TransformerConfig& c) { gdn2(c), fused(c), more_value_heads(c); }, {{2, 2, true}, {1, 4, false}}},
      {"fused_preparation_alone", [](TransformerConfig& c) { c.gdn_pre_gated_delta_rule_fusion = true; }, {{2, 2, false}}},
      {"fused_output_norm_alone", [](TransformerConfig& c) { c.gdn_gated_output_norm_fusion = true; }, {{2, 2, false}}},
      {"more_value_heads", more_value_heads, {{4, 2, true}}},
      {"more_value_heads_of_gdn2", [](TransformerConfig& c) { gdn2(c), more_value_heads(c); }, {{2, 4, false}}},
      {"tied", [](TransformerConfig& c) { c.untie_embeddings_and_output_weights = false; }, {{4, 1, true}, {2, 2, false}, {1, 2, false}}},
      {"two_groups",
       [](TransformerConfig& c) { c.num_query_groups = 2; },
       {{4, 2, true}, {2, 4, false}, {1, 4, false}, {4, 1, false}, {2, 1, false}}},
      {"one_group", [](TransformerConfig& c) { c.num_query_groups = 1; }, {{2, 2, true}, {1, 2, false}, {8, 1, false}}},
      {"four_groups", [](TransformerConfig& c) { c.num_query_groups = 4; }, {{2, 4, false}, {2, 2, false}}},
      {"no_output_gate", [](TransformerConfig& c) { c.attention_output_gate = false; }, {{2, 2, false}}},
      {"no_rotary_and_no_qk_norm",
       [](TransformerConfig& c) {
         c.position_embedding_type = PositionEmbeddingType::None;
         c.qk_layernorm = false;
         c.num_query_groups = 2;
       },
       {{4, 2, false}}},
      {"zero_centred_norms",
       [](TransformerConfig& c) { c.layernorm_zero_centered_gamma = c.linear_output_norm_zero_centered_gamma = true; },
       {{2, 2, true}}},
      {"neg_eigval", [](TransformerConfig& c) { c.allow_neg_eigval = true; }, {{2, 2, false}}},
      {"dropout", [](TransformerConfig& c) { c.hidden_dropout = 0.2, c.attention_dropout = 0.3; }, {{2, 2, true}, {4, 2, false}, {1, 4, false}}},
      {"fewer_tokens_than_ids", [](TransformerConfig& c) { c.vocab_size = 509; }, {{4, 1, true}}},
  };
  return all;
}

class ParallelFeature : public ::testing::TestWithParam<std::size_t> {};

TEST_P(ParallelFeature, agrees_with_one_rank) {
  const Feature& feature = features()[GetParam()];
  ParallelCase what;
  feature.turn(what.config);
  what.lengths = {40, 56, 40};
  const ParallelResult expected = run_parallel(what, {});
  for (const Ranks& ranks : feature.layouts) {
    const ParallelResult actual = run_parallel(what, ranks);
    const test::Worst worst = test::compare(actual, expected, Limits{}, std::string(feature.name) + " " + ranks.name());
    std::printf("    %-12s loss %.1e, gradients %.1e (%s), decay %.1e\n", ranks.name().c_str(), worst.loss, worst.gradient,
                worst.gradient_name.c_str(), worst.decay);
    for (const auto& [name, weights] : expected.weights) EXPECT_EQ(test::bits_of(actual.weights.at(name)), test::bits_of(weights)) << name;
  }
}

std::string feature_name(const ::testing::TestParamInfo<std::size_t>& info) { return features()[info.param].name; }

INSTANTIATE_TEST_SUITE_P(Model, ParallelFeature, ::testing::Range(std::size_t{0}, features().size()), feature_name);

// 50257 ids, which no two ranks share evenly.
TEST(ParallelModel, a_vocabulary_that_does_not_divide) {
  ParallelCase what;
  what.config.vocab_size = 50257;
  what.config.hidden_size = 16;
  what.config.num_layers = 1;
  what.config.linear_attention_freq.pattern = {0};
  what.lengths = {24};
  const ParallelResult expected = run_parallel(what, {});
  for (const Ranks& ranks : {Ranks{2, 1, false}, Ranks{4, 1, true}}) {
    const ParallelResult actual = run_parallel(what, ranks);
    test::compare(actual, expected, Limits{}, ranks.name());
    for (const auto& [name, weights] : expected.weights) EXPECT_EQ(test::bits_of(actual.weights.at(name)), test::bits_of(weights)) << name;
  }
}

// Ranks whose own rows hold no valid label, and layouts with data-parallel ranks, have the same loss.
TEST(ParallelModel, a_rank_without_a_valid_label_is_legal) {
  ParallelCase what;
  what.lengths = {8, 16};
  what.mask_first_half = true;
  const ParallelResult expected = run_parallel(what, {});
  for (const Ranks& ranks : {Ranks{1, 4, false}, Ranks{2, 2, true}, Ranks{2, 2, true, 2}}) {
    test::compare(run_parallel(what, ranks), expected, Limits{}, ranks.name());
  }
}

struct Storage16 {
  const char* name;
  void (*turn)(TransformerConfig&);
  Limits limits, with_context;
};

// Parts of sums travel in fp32 and are rounded where one rank rounds: what is left is that one rank rounds the gradient of a normed input
// once a product, and a rank of several once for both.
TEST(ParallelModel, bf16_stays_within_its_rounding) {
  const Storage16 models[] = {
      {"gdn", [](TransformerConfig& c) { c.linear_attention_freq.pattern = {1, 1}; }, {5e-3, 5e-3, 5e-3}, {5e-3, 5e-3, 5e-3}},
      {"gdn2", [](TransformerConfig& c) { gdn2(c), c.linear_attention_freq.pattern = {1, 1}; }, {2e-2, 2e-2, 2e-2}, {3e-2, 3e-2, 3e-2}},
      {"hybrid", [](TransformerConfig& c) { c.num_query_groups = 2; }, {5e-3, 5e-3, 5e-3}, {5e-3, 5e-3, 5e-3}}};
  for (const Storage16& model : models) {
    ParallelCase what;
    what.config.init_method_std = 0.02;
    model.turn(what.config);
    what.dtype = DType::BF16;
    what.lengths = {40, 56, 40};
    const ParallelResult expected = run_parallel(what, {});
    for (const Ranks& ranks :
         {Ranks{2, 1, false}, Ranks{2, 1, true}, Ranks{1, 2, false}, Ranks{2, 2, true}, Ranks{4, 1, false}, Ranks{1, 4, false}}) {
      const test::Worst worst = test::compare(run_parallel(what, ranks), expected, ranks.cp > 1 ? model.with_context : model.limits,
                                              std::string(model.name) + " " + ranks.name());
      std::printf("    %-6s %-10s loss %.1e, gradients %.1e (%s), decay %.1e (%s)\n", model.name, ranks.name().c_str(), worst.loss, worst.gradient,
                  worst.gradient_name.c_str(), worst.decay, worst.decay_name.c_str());
    }
  }
}

RecomputePlan plan_of(const std::vector<std::string>& modules) {
  RecomputeConfig config;
  config.recompute_granularity = RecomputeGranularity::Selective;
  config.recompute_modules = modules;
  return make_recompute_plan(config);
}

// Regions and groups lie around the exchanges: a replay repeats them on all ranks, and changes no bit.
TEST(ParallelModel, recompute_and_offload_change_no_bit) {
  struct Row {
    std::vector<std::string> recompute, offload;
  };
  const std::vector<Row> rows = {
      {{"core_attn", "mlp"}, {}},
      {{"gdn"}, {}},
      {{"gdn_in_proj"}, {}},
      {{"gdn_norm_out"}, {"core_attn", "attn_proj"}},
      {{"gdn_in_proj", "gdn_qkv", "gdn_norm_out"}, {}},
      {{"gdn_qkv_block", "gdn_norm_out"}, {}},
      {{"gdn_core_attn", "gdn_qkv"}, {"gdn_qkv"}},
      {{}, {"gdn_qkv", "gdn_core_attn", "core_attn", "attn_proj"}},
  };
  for (const bool second : {false, true}) {
    ParallelCase plain;
    if (second) gdn2(plain.config);
    plain.config.num_layers = 4;
    plain.config.linear_attention_freq.pattern = {1, 0, 1, 0};
    plain.config.num_query_groups = 2;
    plain.config.attention_output_gate = !second;
    plain.config.hidden_dropout = 0.1;
    plain.config.attention_dropout = 0.1;
    plain.lengths = {24, 16};
    for (const Ranks& ranks : {Ranks{2, 2, false}, Ranks{2, 2, true}}) {
      const std::vector<std::uint64_t> expected = run_parallel(plain, ranks).bits();
      EXPECT_EQ(run_parallel(plain, ranks).bits(), expected) << "the same run again, " << ranks.name();
      for (const Row& row : rows) {
        ParallelCase what = plain;
        if (!row.recompute.empty()) what.recompute = plan_of(row.recompute);
        what.offload = row.offload;
        EXPECT_EQ(run_parallel(what, ranks, row.offload.empty() ? 1 : 3).bits(), expected)
            << ranks.name() << (second ? " gdn2 " : " gdn ") << (row.recompute.empty() ? row.offload[0] : row.recompute[0]);
      }
      ParallelCase full = plain;
      RecomputeConfig config;
      config.recompute_granularity = RecomputeGranularity::Full;
      config.recompute_method = RecomputeMethod::Uniform;
      config.recompute_num_layers = 2;
      full.recompute = make_recompute_plan(config);
      full.offload = {"layer_input"};
      EXPECT_EQ(run_parallel(full, ranks, 3).bits(), expected) << ranks.name() << " full";
    }
  }
}

}  // namespace
}  // namespace deltron
