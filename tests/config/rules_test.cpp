// Every validation rule has at least one row: condition, code, place, message. Legal configurations raise none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "src/config/rules.h"
#include "tests/config/config_text.h"
#include "tests/config/rule_rows.h"

namespace deltron {
namespace {

using testing::Edit;
using ::testing::HasSubstr;

using Row = testing::RuleRow;

std::vector<Row> rows() {
  const auto gdn = [](std::vector<Edit> edits) { return testing::edited(testing::gdn_base(), edits); };
  const auto hybrid = [](std::vector<Edit> edits) { return testing::edited(testing::hybrid_base(), edits); };
  const auto softmax = [](std::vector<Edit> edits) { return testing::edited(testing::softmax_base(), edits); };
  const auto mqar = [](std::vector<Edit> edits) { return testing::edited(testing::mqar_base(), edits); };
  const ErrorCode missing = ErrorCode::ConfigMissingKey;
  const ErrorCode contradiction = ErrorCode::ConfigInconsistent;
  const ErrorCode no_effect = ErrorCode::ConfigNoEffect;
  const ErrorCode not_yet = ErrorCode::ConfigNotAvailable;
  std::vector<Row> all = {
      {"sizes_are_set", gdn({{"model.num_layers", ""}}), missing, "model", "model.num_layers is not set"},
      {"sizes_are_set", gdn({{"model.hidden_size", ""}}), missing, "model", "model.hidden_size is not set"},
      {"sizes_are_set", gdn({{"model.ffn_hidden_size", ""}}), missing, "model", "add ffn_hidden_size to section 'model'"},
      {"sizes_are_set", gdn({{"model.vocab_size", "0"}}), missing, "model.vocab_size", "model.vocab_size is not set"},
      {"freq_is_set", gdn({{"model.linear_attention_freq", ""}}), missing, "model", "model.linear_attention_freq is not set"},
      {"freq_list_has_every_layer", gdn({{"model.linear_attention_freq", "[1, 1, 1]"}}), contradiction, "model.linear_attention_freq",
       "wrong length (3 entries, num_layers 4)"},
      {"variant_has_a_layer", gdn({{"model.linear_attention_freq", "1"}, {"model.num_attention_heads", "4"}}), no_effect,
       "model.experimental_attention_variant", "makes every layer softmax attention"},
      {"linear_sizes_are_set", gdn({{"model.linear_num_key_heads", ""}}), missing, "model", "model.linear_num_key_heads is not set"},
      {"linear_sizes_are_set", gdn({{"model.linear_num_value_heads", ""}}), missing, "model", "model.linear_num_value_heads is not set"},
      {"linear_sizes_are_set", gdn({{"model.linear_key_head_dim", ""}}), missing, "model", "model.linear_key_head_dim is not set"},
      {"linear_sizes_are_set", gdn({{"model.linear_value_head_dim", ""}}), missing, "model", "model.linear_value_head_dim is not set"},
      {"value_heads_divide_by_key_heads", gdn({{"model.linear_num_key_heads", "4"}, {"model.linear_num_value_heads", "6"}}), contradiction,
       "model.linear_num_value_heads", "(6 and 4); rule: each key head serves equally many value heads; fix: 4 or 8"},
      {"heads_are_set", hybrid({{"model.num_attention_heads", ""}}), missing, "model", "2 of 4 layers have softmax attention"},
      {"heads_are_set", softmax({{"model.num_attention_heads", ""}}), missing, "model", "4 of 4 layers have softmax attention"},
      {"heads_divide_by_groups", hybrid({{"model.num_query_groups", "3"}}), contradiction, "model.num_query_groups", "the next lower legal value is 2"},
      {"heads_divide_by_groups", hybrid({{"model.num_query_groups", "8"}}), contradiction, "model.num_query_groups", "the next lower legal value is 4"},
      {"head_size_is_whole", hybrid({{"model.num_attention_heads", "3"}}), contradiction, "model.num_attention_heads", "set kv_channels, or hidden_size 63 or 66"},
      {"rotary_channels_are_even", hybrid({{"model.kv_channels", "15"}}), contradiction, "model.kv_channels", "head size 15 x 1 = 15"},
      {"rotary_channels_are_even", hybrid({{"model.rotary_percent", "0.3"}}), contradiction, "model.rotary_percent", "product is an even integer"},
      {"rotary_keys_need_rope", hybrid({{"model.position_embedding_type", "none"}, {"model.rotary_base", "5000"}}), no_effect, "model.rotary_base",
       "read only with position_embedding_type: rope"},
      {"rotary_keys_need_rope", hybrid({{"model.position_embedding_type", "none"}, {"model.rotary_percent", "0.5"}}), no_effect, "model.rotary_percent", "(0.5)"},
      {"lengths_are_set", gdn({{"training.seq_length", ""}}), missing, "training", "training.seq_length is not set"},
      {"lengths_are_set", gdn({{"training.train_iters", ""}}), missing, "training", "training.train_iters is not set"},
      {"lengths_are_set", gdn({{"optimizer.lr", ""}, {"optimizer.clip_grad", "2"}}), missing, "optimizer", "optimizer.lr is not set"},
      {"ranks_divide", gdn({{"parallel.tensor_model_parallel_size", "2"}}), contradiction, "parallel.tensor_model_parallel_size", "1 ranks, product 2"},
      {"global_batch_is_whole", gdn({{"training.micro_batch_size", "4"}, {"training.global_batch_size", "10"}}), contradiction,
       "training.global_batch_size", "(10; 4 x 1); rule: every rank accumulates whole micro-batches; fix: 8 or 12"},
      {"always_deterministic", gdn({{"training.deterministic_mode", "false"}}), ErrorCode::ConfigAlwaysDeterministic, "training.deterministic_mode",
       "there is no non-deterministic mode"},
      {"eval_iters_need_an_interval", gdn({{"training.eval_iters", "5"}}), no_effect, "training.eval_iters", "eval_interval > 0"},
      {"min_lr_is_below_lr", gdn({{"optimizer.min_lr", "2e-3"}}), contradiction, "optimizer.min_lr", "(0.002 and 0.001)"},
      {"warmup_fits", gdn({{"optimizer.lr_warmup_iters", "101"}}), contradiction, "optimizer.lr_warmup_iters", "101 of 100 updates"},
      {"warmup_fits", gdn({{"optimizer.lr_warmup_iters", "60"}, {"optimizer.lr_decay_iters", "50"}}), contradiction, "optimizer.lr_warmup_iters", "60 of 50 updates"},
      {"warmup_fits", gdn({{"optimizer.lr_warmup_iters", "150"}, {"optimizer.lr_decay_iters", "200"}}), contradiction, "optimizer.lr_warmup_iters", "150 of 100"},
      {"decay_keys_need_a_decay", gdn({{"optimizer.lr_decay_style", "constant"}, {"optimizer.min_lr", "1e-4"}}), no_effect, "optimizer.min_lr", "does not decay"},
      {"decay_keys_need_a_decay", gdn({{"optimizer.lr_decay_style", "constant"}, {"optimizer.lr_decay_iters", "50"}}), no_effect, "optimizer.lr_decay_iters", "(50)"},
      {"wsd_keys_need_wsd", gdn({{"optimizer.lr_wsd_decay_iters", "10"}}), no_effect, "optimizer.lr_wsd_decay_iters", "read only with lr_decay_style: WSD"},
      {"wsd_keys_need_wsd", gdn({{"optimizer.lr_wsd_decay_style", "linear"}}), no_effect, "optimizer.lr_wsd_decay_style", "(linear)"},
      {"wsd_decay_is_set_and_fits", gdn({{"optimizer.lr_decay_style", "WSD"}}), missing, "optimizer", "optimizer.lr_wsd_decay_iters is not set"},
      {"wsd_decay_is_set_and_fits", gdn({{"optimizer.lr_decay_style", "WSD"}, {"optimizer.lr_warmup_iters", "30"}, {"optimizer.lr_wsd_decay_iters", "80"}}),
       contradiction, "optimizer.lr_wsd_decay_iters", "the largest legal value is 70"},
      {"adam_keys_need_adamw", gdn({{"optimizer.optimizer", "sgd"}, {"optimizer.adam_beta1", "0.8"}}), no_effect, "optimizer.adam_beta1", "(0.8)"},
      {"adam_keys_need_adamw", gdn({{"optimizer.optimizer", "sgd"}, {"optimizer.adam_beta2", "0.8"}}), no_effect, "optimizer.adam_beta2", "(0.8)"},
      {"adam_keys_need_adamw", gdn({{"optimizer.optimizer", "sgd"}, {"optimizer.adam_eps", "1e-6"}}), no_effect, "optimizer.adam_eps", "optimizer: adamw"},
      {"decay_all_needs_a_decay", gdn({{"optimizer.weight_decay", "0"}, {"optimizer.decay_all_parameters", "true"}}), no_effect,
       "optimizer.decay_all_parameters", "weight_decay > 0"},
      {"data_path_is_well_formed", gdn({{"data.data_path", "[0.5, a, b]"}}), contradiction, "data.data_path", "[\"0.5\", \"a\", \"b\"]"},
      {"data_path_is_well_formed", gdn({{"data.data_path", "[a, 0.5]"}}), contradiction, "data.data_path", "weight, prefix"},
      {"data_path_is_well_formed", gdn({{"data.data_path", "[0, a]"}}), contradiction, "data.data_path", "weights are numbers > 0"},
      {"data_path_names_are_unique", gdn({{"data.data_path", "[a, b, a]"}}), contradiction, "data.data_path", "names a prefix twice ('a')"},
      {"split_is_well_formed", gdn({{"data.data_path", "[a]"}, {"data.split", "\"90,10\""}}), contradiction, "data.split", "('90,10')"},
      {"split_is_well_formed", gdn({{"data.data_path", "[a]"}, {"data.split", "\"90,-10,0\""}}), contradiction, "data.split", "three numbers >= 0"},
      {"split_is_well_formed", gdn({{"data.data_path", "[a]"}, {"data.split", "\"0,0,0\""}}), contradiction, "data.split", "positive sum"},
      {"split_is_well_formed", gdn({{"data.data_path", "[a]"}, {"data.split", "\"0,10,0\""}}), contradiction, "data.split", "nothing to train on"},
      {"evaluation_has_data", gdn({{"data.data_path", "[a]"}, {"data.split", "\"100,0,0\""}, {"training.eval_interval", "5"}}), contradiction,
       "training.eval_interval", "no validation data"},
      {"one_source_of_data", mqar({{"data.data_path", "[a]"}}), contradiction, "data.data_path", "one source of data"},
      {"file_keys_need_files", gdn({{"data.split", "\"80,20,0\""}}), no_effect, "data.split", "read only with data_path"},
      {"file_keys_need_files", gdn({{"data.packing", "documents"}}), no_effect, "data.packing", "read only with data_path"},
      {"file_keys_need_files", mqar({{"data.path_to_cache", "cache"}}), no_effect, "data.path_to_cache", "(\"cache\")"},
      {"file_keys_need_files", mqar({{"data.tokenizer", "none"}}), no_effect, "data.tokenizer", "a synthetic task makes token ids itself"},
      {"byte_tokens_fit", gdn({{"data.data_path", "[a]"}, {"model.vocab_size", "256"}}), contradiction, "model.vocab_size", "the smallest legal value is 257"},
      {"mqar_keys_need_mqar", gdn({{"data.mqar_vocab_size", "32"}}), no_effect, "data.mqar_vocab_size", "synthetic: mqar"},
      {"mqar_keys_need_mqar", gdn({{"data.mqar_num_pairs", "3"}}), no_effect, "data.mqar_num_pairs", "synthetic: mqar"},
      {"mqar_keys_need_mqar", gdn({{"data.mqar_seed", "3"}}), no_effect, "data.mqar_seed", "synthetic: mqar"},
      {"mqar_fits_the_sequence", mqar({{"data.mqar_num_pairs", "17"}}), contradiction, "data.mqar_num_pairs", "the largest legal value is 16"},
      {"mqar_fits_the_vocabulary", mqar({{"data.mqar_vocab_size", "266"}}), contradiction, "data.mqar_vocab_size", "(266 and 264)"},
      {"mqar_fits_the_vocabulary", mqar({{"data.mqar_vocab_size", "63"}}), contradiction, "data.mqar_vocab_size", "62 or 64"},
      {"mqar_fits_the_vocabulary", mqar({{"data.mqar_vocab_size", "8"}}), contradiction, "data", "4 pairs, 3 keys"},
      {"profile_steps_need_profile", gdn({{"logging.profile_step_start", "5"}}), no_effect, "logging.profile_step_start", "read only with profile"},
      {"profile_steps_need_profile", gdn({{"logging.profile_step_end", "15"}}), no_effect, "logging.profile_step_end", "read only with profile"},
      {"profile_has_a_folder", gdn({{"logging.profile", "true"}}), missing, "logging.profile", "the trace is written into the run folder"},
      {"profile_steps_are_in_the_run", gdn({{"logging.profile", "true"}, {"checkpoint.save", "x"}, {"logging.profile_step_start", "12"}}), contradiction,
       "logging.profile_step_start", "12 to 12"},
      {"profile_steps_are_in_the_run",
       gdn({{"logging.profile", "true"}, {"checkpoint.save", "x"}, {"training.train_iters", "500"}, {"logging.profile_step_start", "10"}, {"logging.profile_step_end", "111"}}), contradiction,
       "logging.profile_step_start", "the largest legal profile_step_end is 110"},
      {"profile_steps_are_in_the_run", gdn({{"logging.profile", "true"}, {"checkpoint.save", "x"}, {"logging.profile_step_end", "12"}, {"training.train_iters", "11"}}), contradiction,
       "logging.profile_step_end", "the largest legal value is 11"},
      {"checkpoint_keys_need_a_folder", gdn({{"checkpoint.save_interval", "5"}}), no_effect, "checkpoint.save_interval", "names a run folder"},
      {"checkpoint_keys_need_a_folder", gdn({{"checkpoint.keep_last", "5"}}), no_effect, "checkpoint.keep_last", "names a run folder"},
      {"checkpoint_keys_need_a_folder", gdn({{"checkpoint.keep_every", "5"}}), no_effect, "checkpoint.keep_every", "names a run folder"},
      {"checkpoint_keys_need_a_folder", gdn({{"checkpoint.resume", "never"}}), no_effect, "checkpoint.resume", "names a run folder"},
      {"checkpoint_keys_need_a_folder", gdn({{"logging.tensorboard", "true"}}), no_effect, "logging.tensorboard", "names a run folder"},
      {"checkpoint_keys_need_a_folder", gdn({{"logging.log_per_layer_grad_norm", "true"}}), no_effect, "logging.log_per_layer_grad_norm", "names a run folder"},
      {"keep_every_needs_keep_last", gdn({{"checkpoint.save", "r"}, {"checkpoint.keep_every", "5"}}), no_effect, "checkpoint.keep_every", "every checkpoint is kept"},
      {"keep_every_meets_saves",
       gdn({{"checkpoint.save", "r"}, {"checkpoint.keep_last", "2"}, {"checkpoint.save_interval", "20"}, {"checkpoint.keep_every", "50"}}), contradiction,
       "checkpoint.keep_every", "40 or 60"},
      {"resume_is_well_formed", gdn({{"checkpoint.save", "r"}, {"checkpoint.resume", "newest"}}), contradiction, "checkpoint.resume", "('newest')"},
      {"resume_is_well_formed", gdn({{"checkpoint.save", "r"}, {"checkpoint.resume", "-5"}}), contradiction, "checkpoint.resume", "('-5')"},
      {"dt_bias_init_needs_gdn", gdn({{"model.experimental_attention_variant", "gdn2"}, {"model.linear_dt_bias_init", "log_uniform"}}), no_effect,
       "model.linear_dt_bias_init", "gdn2 draws dt_bias"},
      {"fused_attention_needs_cuda", softmax({{"model.attention_backend", "fused"}}), contradiction, "model.attention_backend", "training.device: cpu"},
  };
  const std::vector<Edit> linear_keys = {{"linear_attention_freq", "4"}, {"linear_num_key_heads", "2"}, {"linear_num_value_heads", "2"},
                                         {"linear_key_head_dim", "16"}, {"linear_value_head_dim", "16"}, {"linear_conv_kernel_dim", "3"},
                                         {"allow_neg_eigval", "true"}, {"linear_output_norm_zero_centered_gamma", "true"},
                                         {"gdn_pre_gated_delta_rule_fusion", "true"}, {"gdn_gated_output_norm_fusion", "true"}};
  for (const Edit& edit : linear_keys) {
    const std::string name = "model." + edit.first;
    all.push_back({"linear_keys_need_a_variant", softmax({{name, edit.second}}), no_effect, name, "experimental_attention_variant is none"});
  }
  const std::vector<Edit> softmax_keys = {{"num_attention_heads", "4"}, {"num_query_groups", "2"}, {"kv_channels", "16"}, {"attention_output_gate", "true"},
                                          {"qk_layernorm", "true"}, {"position_embedding_type", "none"}, {"rotary_percent", "0.5"},
                                          {"rotary_base", "5000"}, {"attention_dropout", "0.1"}, {"attention_backend", "local"}};
  for (const Edit& edit : softmax_keys) {
    const std::string name = "model." + edit.first;
    all.push_back({"softmax_keys_need_a_softmax_layer", gdn({{name, edit.second}}), no_effect, name, "every layer is linear"});
  }
  const std::vector<Edit> run_features = {
      {"parallel.pipeline_model_parallel_size", "2"}};
  for (const Edit& edit : run_features) {
    all.push_back({"features_exist", gdn({edit}), not_yet, edit.first, "is not available in this version"});
  }
  for (const std::vector<Row>& rows_of_section : {testing::recompute_rows(), testing::offload_rows(), testing::parallel_rows()}) {
    all.insert(all.end(), rows_of_section.begin(), rows_of_section.end());
  }
  return all;
}

const Rule* rule_named(const std::string& id) {
  for (const std::vector<Rule>* table : {&model_rules(), &recompute_rules(), &offload_rules(), &parallel_rules(), &training_rules(), &data_rules(), &not_yet_rules()}) {
    for (const Rule& rule : *table) {
      if (rule.id == id) return &rule;
    }
  }
  return nullptr;
}

TEST(Rules, each_reports_its_code_place_and_message_once) {
  for (const Row& row : rows()) {
    const testing::Written written = testing::write_yaml(row.config);
    SCOPED_TRACE(row.rule + "\n" + written.yaml);
    const LoadedConfig loaded = read_config_text(written.yaml, "test.yaml", {});
    ASSERT_THAT(loaded.faults, ::testing::IsEmpty());
    const Rule* rule = rule_named(row.rule);
    ASSERT_NE(rule, nullptr);
    RuleContext context(loaded.config, loaded.sources, 1);
    rule->check(context);
    ASSERT_EQ(context.faults.size(), 1u) << ::testing::PrintToString(context.faults);
    ASSERT_EQ(written.places.count(row.at), 1u);
    const std::string start = "E" + std::to_string(static_cast<int>(row.code)) + " test.yaml:" + written.places.at(row.at) + ": ";
    EXPECT_EQ(context.faults.front().substr(0, start.size()), start);
    EXPECT_THAT(context.faults.front(), HasSubstr(row.part));
    EXPECT_THAT(validate(loaded.config, loaded.sources), ::testing::Contains(context.faults.front()));
  }
}

TEST(Rules, every_rule_has_a_row) {
  std::set<std::string> covered = {"single_values"};  // tested below
  for (const Row& row : rows()) covered.insert(row.rule);
  for (const RuleInfo& rule : validation_rules()) {
    EXPECT_EQ(covered.count(rule.id), 1u) << rule.id;
    EXPECT_FALSE(rule.description.empty());
  }
}

TEST(Rules, single_values_are_checked_in_configurations_made_in_code) {
  RunConfig config = read_config_text(testing::write_yaml(testing::gdn_base()).yaml, "test.yaml", {}).config;
  config.optimizer.adam_beta1 = 1.5;
  config.model.hidden_size = -1;
  const std::vector<std::string> faults = validate(config);
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_THAT(faults[0], HasSubstr("E105 model.hidden_size is out of range (-1)"));
  EXPECT_THAT(faults[1], HasSubstr("E105 optimizer.adam_beta1 is out of range (1.5)"));
}

TEST(Rules, legal_configurations_pass) {
  const std::vector<std::vector<Edit>> legal = {
      testing::gdn_base(),
      testing::hybrid_base(),
      testing::softmax_base(),
      testing::mqar_base(),
      testing::edited(testing::gdn_base(), {{"model.linear_attention_freq", "[1, 1, 1, 1]"}}),
      testing::edited(testing::hybrid_base(), {{"model.linear_attention_freq", "[1, 0, 1, 0]"}, {"model.num_query_groups", "2"}, {"model.kv_channels", "32"},
                                               {"model.rotary_percent", "0.25"}}),
      testing::edited(testing::gdn_base(), {{"optimizer.lr_decay_style", "WSD"}, {"optimizer.lr_warmup_iters", "30"}, {"optimizer.lr_wsd_decay_iters", "70"}}),
      testing::edited(testing::gdn_base(), {{"data.data_path", "[0.3, a, 0.7, b]"}, {"training.eval_interval", "5"}, {"training.eval_iters", "2"}}),
      testing::edited(testing::gdn_base(), {{"training.device", "meta"}, {"training.bf16", "true"}}),
      testing::edited(testing::gdn_base(), {{"model.gdn_pre_gated_delta_rule_fusion", "true"}, {"model.gdn_gated_output_norm_fusion", "true"}}),
      testing::edited(testing::hybrid_base(), {{"model.experimental_attention_variant", "gdn2"}, {"model.gdn_pre_gated_delta_rule_fusion", "true"},
                                               {"recompute.recompute_granularity", "selective"}, {"recompute.recompute_modules", "[gdn_in_proj, gdn_norm_out]"}}),
  };
  for (const std::vector<Edit>& edits : legal) {
    const std::string yaml = testing::write_yaml(edits).yaml;
    EXPECT_NO_THROW(load_config_text(yaml, "test.yaml")) << yaml;
  }
}

TEST(Rules, a_value_equal_to_its_default_is_always_legal) {
  for (const auto& base : {testing::gdn_base(), testing::softmax_base(), testing::mqar_base()}) {
    const RunConfig config = load_config_text(testing::write_yaml(base).yaml, "test.yaml").config;
    EXPECT_NO_THROW(load_config_text(to_yaml(config), "resolved.yaml"));
  }
}

TEST(Rules, data_parallel_ranks_enter_the_global_batch) {
  RunConfig config = load_config_text(testing::write_yaml(testing::gdn_base()).yaml, "test.yaml").config;
  config.training.global_batch_size = 6;
  EXPECT_THAT(validate(config, {}, 3), ::testing::IsEmpty());
  const std::vector<std::string> faults = validate(config, {}, 4);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_THAT(faults.front(), HasSubstr("(6; 1 x 4)"));
  EXPECT_THAT(faults.front(), HasSubstr("4 or 8"));
}

TEST(Rules, a_network_alone_can_be_validated) {
  RunConfig config = load_config_text(testing::write_yaml(testing::gdn_base()).yaml, "test.yaml").config;
  EXPECT_THAT(validate_model(config.model), ::testing::IsEmpty());
  config.model.linear_num_value_heads = 3;
  ASSERT_EQ(validate_model(config.model).size(), 1u);
}

TEST(Rules, violations_are_thrown_together) {
  RunConfig config;
  try {
    validate_or_throw(config);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::ConfigInvalid);
    EXPECT_EQ(error.exit_code(), ExitCode::Usage);
    for (const char* key : {"model.num_layers", "model.vocab_size", "training.seq_length", "optimizer.lr"}) EXPECT_THAT(error.what(), HasSubstr(key));
  }
}

}  // namespace
}  // namespace deltron
