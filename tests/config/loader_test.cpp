// The loader: every fault of form and of single values with its place, overrides, and everything reported in one pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "src/base/file.h"
#include "src/config/loader.h"
#include "src/config/schema.h"
#include "src/config/validate.h"
#include "tests/config/config_text.h"

namespace deltron {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Row {
  const char* yaml;
  ErrorCode code;
  const char* place;
  const char* part;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      // form
      {"model:\n\tnum_layers: 4\n", ErrorCode::ConfigSyntax, "t.yaml:2:", "tab in the indentation); fix: indent with spaces"},
      {"model: {num_layers: 4\n", ErrorCode::ConfigSyntax, "t.yaml:", "not valid YAML"},
      {"model:\n  num_layers: 4\n    hidden_size: 8\n", ErrorCode::ConfigSyntax, "t.yaml:3:", "not valid YAML"},
      {"- model\n", ErrorCode::ConfigSyntax, "t.yaml:1:1", "a map of sections"},
      {"just text\n", ErrorCode::ConfigSyntax, "t.yaml:1:1", "a map of sections"},
      {"model: &m\n  num_layers: 4\n", ErrorCode::ConfigUnsupportedYaml, "t.yaml:", "anchors"},
      {"model:\n  num_layers: &n 4\n", ErrorCode::ConfigUnsupportedYaml, "t.yaml:2:", "anchors"},
      {"model:\n  <<: {num_layers: 4}\n", ErrorCode::ConfigUnsupportedYaml, "t.yaml:2:3", "merge keys"},
      {"model:\n  num_layers: !!int 4\n", ErrorCode::ConfigUnsupportedYaml, "t.yaml:2:", "explicit tags"},
      {"model: !!map\n  num_layers: 4\n", ErrorCode::ConfigUnsupportedYaml, "t.yaml:", "explicit tags"},
      {"model:\n  [a, b]: 4\n", ErrorCode::ConfigUnsupportedYaml, "t.yaml:2:3", "a key must be a word"},
      {"model:\n  num_layers: 4\n---\nmodel:\n  num_layers: 5\n", ErrorCode::ConfigUnsupportedYaml, "t.yaml:4:1", "a second document"},
      {"model:\n  num_layers: 4\nmodel:\n  hidden_size: 5\n", ErrorCode::ConfigDuplicateKey, "t.yaml:3:1", "model is given twice (first at t.yaml:1:1)"},
      {"model:\n  num_layers: 4\n  num_layers: 4\n", ErrorCode::ConfigDuplicateKey, "t.yaml:3:3", "model.num_layers is given twice (first at t.yaml:2:3)"},
      // names
      {"modle:\n  num_layers: 4\n", ErrorCode::ConfigUnknownKey, "t.yaml:1:1", "did you mean 'model'?"},
      {"zzz:\n  num_layers: 4\n", ErrorCode::ConfigUnknownKey, "t.yaml:1:1", "sections are model, recompute"},
      {"num_layers: 4\n", ErrorCode::ConfigUnknownKey, "t.yaml:1:1", "put it into section 'model'"},
      {"model:\n  num_layer: 4\n", ErrorCode::ConfigUnknownKey, "t.yaml:2:3", "unknown key 'num_layer' in section 'model'; fix: did you mean 'num_layers'?"},
      {"model:\n  num_layers: 4\n  hidden_size 8\n", ErrorCode::ConfigUnknownKey, "t.yaml:3:3", "a colon is missing: write 'hidden_size: 8'"},
      {"model:\n  lr: 4\n", ErrorCode::ConfigUnknownKey, "t.yaml:2:3", "it belongs to section 'optimizer'"},
      {"model:\n  qqqqqqqq: 4\n", ErrorCode::ConfigUnknownKey, "t.yaml:2:3", "docs/config_reference.md"},
      // types
      {"model: 4\n", ErrorCode::ConfigWrongType, "t.yaml:1:1", "section 'model' is not a map"},
      {"model:\n  num_layers: 1e3\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "('1e3')"},
      {"model:\n  num_layers: 1e3\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "fix: write 1000"},
      {"model:\n  num_layers: 3.0\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "fix: write 3"},
      {"model:\n  num_layers: 1_000\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "fix: write 1000"},
      {"model:\n  num_layers: 010\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "plain decimal digits"},
      {"model:\n  num_layers: 0x10\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "plain decimal digits"},
      {"model:\n  num_layers: +4\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "plain decimal digits"},
      {"model:\n  num_layers: \"4\"\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "(\"4\")"},
      {"model:\n  num_layers: 2.5\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "write plain decimal digits"},
      {"model:\n  num_layers: [4]\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "(a list)"},
      {"model:\n  num_layers: {a: 4}\n", ErrorCode::ConfigWrongType, "t.yaml:2:15", "(a map)"},
      {"model:\n  num_layers:\n", ErrorCode::ConfigWrongType, "t.yaml:2:3", "model.num_layers has no value"},
      {"checkpoint:\n  save: ~\n", ErrorCode::ConfigWrongType, "t.yaml:2:3", "checkpoint.save has no value"},
      {"training:\n  bf16: yes\n", ErrorCode::ConfigWrongType, "t.yaml:2:9", "fix: write true"},
      {"training:\n  bf16: Off\n", ErrorCode::ConfigWrongType, "t.yaml:2:9", "fix: write false"},
      {"training:\n  bf16: 1\n", ErrorCode::ConfigWrongType, "t.yaml:2:9", "fix: write true"},
      {"training:\n  bf16: maybe\n", ErrorCode::ConfigWrongType, "t.yaml:2:9", "write true or false"},
      {"optimizer:\n  lr: fast\n", ErrorCode::ConfigWrongType, "t.yaml:2:7", "optimizer.lr is not a number ('fast')"},
      {"optimizer:\n  lr: .inf\n", ErrorCode::ConfigWrongType, "t.yaml:2:7", "finite decimal number"},
      {"optimizer:\n  lr: nan\n", ErrorCode::ConfigWrongType, "t.yaml:2:7", "finite decimal number"},
      {"optimizer:\n  lr: 1e999\n", ErrorCode::ConfigWrongType, "t.yaml:2:7", "finite decimal number"},
      {"optimizer:\n  lr: 010\n", ErrorCode::ConfigWrongType, "t.yaml:2:7", "finite decimal number"},
      {"optimizer:\n  lr_decay_style: [cosine]\n", ErrorCode::ConfigWrongType, "t.yaml:2:19", "is not a word (a list)"},
      {"checkpoint:\n  save: [a]\n", ErrorCode::ConfigWrongType, "t.yaml:2:9", "is not a text (a list)"},
      {"data:\n  data_path: data/kjv\n", ErrorCode::ConfigWrongType, "t.yaml:2:14", "fix: write [data/kjv]"},
      {"data:\n  data_path: [a, [b]]\n", ErrorCode::ConfigWrongType, "t.yaml:2:18", "(a list)"},
      {"model:\n  linear_attention_freq: []\n", ErrorCode::ConfigWrongType, "t.yaml:2:26", "one entry a layer"},
      {"model:\n  linear_attention_freq: [1, x]\n", ErrorCode::ConfigWrongType, "t.yaml:2:30", "('x')"},
      // single values
      {"model:\n  num_layers: -1\n", ErrorCode::ConfigOutOfRange, "t.yaml:2:15", "the smallest legal value is 0"},
      {"model:\n  num_layers: 99999999999999999999\n", ErrorCode::ConfigOutOfRange, "t.yaml:2:15", "64 bits"},
      {"training:\n  micro_batch_size: 4294967296\n", ErrorCode::ConfigOutOfRange, "t.yaml:2:21", "<= 2147483647"},
      {"optimizer:\n  adam_beta1: 1\n", ErrorCode::ConfigOutOfRange, "t.yaml:2:15", "optimizer.adam_beta1 >= 0 and < 1"},
      {"model:\n  layernorm_epsilon: 0\n", ErrorCode::ConfigOutOfRange, "t.yaml:2:22", "> 0 and <= 1"},
      {"model:\n  linear_attention_freq: -2\n", ErrorCode::ConfigOutOfRange, "t.yaml:2:26", "0 makes every layer linear"},
      {"model:\n  linear_attention_freq: [1, 2]\n", ErrorCode::ConfigOutOfRange, "t.yaml:2:26", "list entries are 0 or 1"},
      {"optimizer:\n  lr_decay_style: cosin\n", ErrorCode::ConfigUnknownWord, "t.yaml:2:19", "did you mean 'cosine'?"},
      {"recompute:\n  recompute_modules: [mlp, gdn_qvk]\n", ErrorCode::ConfigUnknownWord, "t.yaml:2:28", "did you mean 'gdn_qkv'?"},
      {"training:\n  device: tpu9000x\n", ErrorCode::ConfigUnknownWord, "t.yaml:2:11", "one of cpu, cuda, meta"},
  };
  return table;
}

TEST(Loader, each_fault_has_its_code_place_and_message) {
  for (const Row& row : rows()) {
    SCOPED_TRACE(row.yaml);
    const LoadedConfig loaded = read_config_text(row.yaml, "t.yaml", {});
    ASSERT_EQ(loaded.faults.size(), 1u) << ::testing::PrintToString(loaded.faults);
    const std::string& fault = loaded.faults.front();
    EXPECT_THAT(fault, StartsWith("E" + std::to_string(static_cast<int>(row.code)) + " " + row.place));
    EXPECT_THAT(fault, HasSubstr(row.part));
    EXPECT_THROW(load_config_text(row.yaml, "t.yaml"), Error);
  }
}

struct OverrideRow {
  const char* text;
  ErrorCode code;
  const char* part;
};

const std::vector<OverrideRow>& override_rows() {
  static const std::vector<OverrideRow> table = {
      {"lr=1e-3", ErrorCode::ConfigBadOverride, "did you mean 'optimizer.lr=1e-3'?"},
      {"optimizer.lr", ErrorCode::ConfigBadOverride, "'optimizer.lr' is not of the form"},
      {".lr=1", ErrorCode::ConfigBadOverride, "write for example"},
      {"optimizer.=1", ErrorCode::ConfigBadOverride, "write for example"},
      {"optimizer.lrr=1", ErrorCode::ConfigUnknownKey, "command line: optimizer.lrr=1: unknown key 'lrr'"},
      {"optimiser.lr=1", ErrorCode::ConfigUnknownKey, "did you mean 'optimizer'?"},
      {"model.num_layers=four", ErrorCode::ConfigWrongType, "command line: model.num_layers=four: model.num_layers is not an integer"},
      {"model.num_layers=", ErrorCode::ConfigWrongType, "command line: model.num_layers=: model.num_layers has no value"},
      {"optimizer.adam_beta1=2", ErrorCode::ConfigOutOfRange, "command line: optimizer.adam_beta1=2"},
      {"training.device=gpu", ErrorCode::ConfigUnknownWord, "command line: training.device=gpu"},
      {"data.data_path=[a", ErrorCode::ConfigSyntax, "command line: data.data_path=[a"},
      {"data.data_path=&x [a]", ErrorCode::ConfigUnsupportedYaml, "command line: data.data_path=&x [a]"},
  };
  return table;
}

TEST(Loader, override_faults_name_the_command_line) {
  for (const OverrideRow& row : override_rows()) {
    SCOPED_TRACE(row.text);
    const LoadedConfig loaded = read_config_text("", "t.yaml", {row.text});
    ASSERT_EQ(loaded.faults.size(), 1u) << ::testing::PrintToString(loaded.faults);
    EXPECT_THAT(loaded.faults.front(), StartsWith("E" + std::to_string(static_cast<int>(row.code)) + " command line"));
    EXPECT_THAT(loaded.faults.front(), HasSubstr(row.part));
  }
}

TEST(Loader, every_code_of_the_loader_is_reached) {
  std::set<ErrorCode> reached;
  for (const Row& row : rows()) reached.insert(row.code);
  for (const OverrideRow& row : override_rows()) reached.insert(row.code);
  for (const ErrorEntry& entry : error_table()) {
    if (entry.code < ErrorCode::ConfigSyntax || entry.code > ErrorCode::ConfigBadOverride) continue;
    EXPECT_EQ(reached.count(entry.code), 1u) << entry.name;
  }
}

TEST(Loader, aliases_and_their_anchors_are_each_refused) {
  const LoadedConfig loaded = read_config_text("model:\n  num_layers: &n 4\n  hidden_size: *n\n", "t.yaml", {});
  ASSERT_EQ(loaded.faults.size(), 2u);
  EXPECT_THAT(loaded.faults[0], HasSubstr("E108 t.yaml:2:"));
  EXPECT_THAT(loaded.faults[1], HasSubstr("E108 t.yaml:3:"));
  EXPECT_THAT(loaded.faults[1], HasSubstr("aliases"));
}

TEST(Loader, an_override_given_twice_is_refused) {
  const LoadedConfig loaded = read_config_text("", "t.yaml", {"optimizer.lr=1", "optimizer.lr=2"});
  ASSERT_THAT(loaded.faults, ElementsAre(StartsWith("E107 command line: optimizer.lr=2: optimizer.lr is given twice on the command line")));
}

TEST(Loader, overrides_win_over_the_file_and_move_the_place) {
  const LoadedConfig loaded = read_config_text(
      "model: {num_layers: 4}\ncheckpoint: {save: a}\n", "t.yaml",
      {"model.num_layers=8", "checkpoint.save=runs/x: y", "data.data_path=[0.5, \"a b\", 1, c]", "model.linear_attention_freq=[1, 0]", "data.split=80,20,0",
       "data.path_to_cache='quoted'", "training.bf16=true", "optimizer.lr=3e-4"});
  ASSERT_THAT(loaded.faults, IsEmpty());
  EXPECT_EQ(loaded.config.model.num_layers, 8);
  EXPECT_EQ(loaded.config.checkpoint.save, "runs/x: y");
  EXPECT_THAT(loaded.config.data.data_path, ElementsAre("0.5", "a b", "1", "c"));
  EXPECT_THAT(loaded.config.model.linear_attention_freq.pattern, ElementsAre(1, 0));
  EXPECT_EQ(loaded.config.data.split, "80,20,0");
  EXPECT_EQ(loaded.config.data.path_to_cache, "quoted");
  EXPECT_TRUE(loaded.config.training.bf16);
  EXPECT_EQ(loaded.config.optimizer.lr, 3e-4);
  EXPECT_EQ(loaded.sources.where("model", "num_layers"), "command line: model.num_layers=8");
}

TEST(Loader, an_empty_text_can_be_given_on_the_command_line) {
  const LoadedConfig loaded = read_config_text("checkpoint: {save: a}\n", "t.yaml", {"checkpoint.save="});
  ASSERT_THAT(loaded.faults, IsEmpty());
  EXPECT_EQ(loaded.config.checkpoint.save, "");
}

TEST(Loader, places_fall_back_to_section_then_file) {
  const LoadedConfig loaded = read_config_text("# comment\nmodel:\n  num_layers: 4\n", "t.yaml", {});
  EXPECT_EQ(loaded.sources.where("model", "num_layers"), "t.yaml:3:3");
  EXPECT_EQ(loaded.sources.where("model", "hidden_size"), "t.yaml:2:1");
  EXPECT_EQ(loaded.sources.where("data", "split"), "t.yaml");
  EXPECT_TRUE(loaded.sources.given("model", "num_layers"));
  EXPECT_FALSE(loaded.sources.given("model", "hidden_size"));
}

TEST(Loader, block_and_flow_style_crlf_and_byte_order_mark_read_the_same) {
  const LoadedConfig flow = read_config_text("model: {num_layers: 4, linear_attention_freq: [1, 0, 1, 1]}", "t.yaml", {});
  const LoadedConfig block = read_config_text("\xef\xbb\xbfmodel:\r\n  num_layers: 4\r\n  linear_attention_freq:\r\n  - 1\r\n  - 0\r\n  - 1\r\n  - 1\r\n", "t.yaml", {});
  EXPECT_THAT(flow.faults, IsEmpty());
  EXPECT_THAT(block.faults, IsEmpty());
  EXPECT_EQ(flow.config, block.config);
}

TEST(Loader, faults_of_file_overrides_and_rules_come_together_without_follow_ups) {
  const std::string yaml =
      "model:\n  num_layers: four\n  hiden_size: 64\n  ffn_hidden_size: 128\n  vocab_size: 264\n  experimental_attention_variant: gdnn\n"
      "  linear_num_key_heads: 4\ntraining:\n  seq_length: 64\n  train_iters: 100\n  micro_batch_size: 2\n  global_batch_size: 3\noptimizer:\n  lr: 1e-3\n";
  try {
    load_config_text(yaml, "t.yaml", {"training.bf16=yes"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::ConfigInvalid);
    std::vector<std::string> starts;
    std::string rest = error.what();
    rest += "\n";
    for (std::size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
      starts.push_back(rest.substr(0, end));
      rest.erase(0, end + 1);
    }
    EXPECT_THAT(starts, ElementsAre(StartsWith("E104 t.yaml:2:15: model.num_layers"), StartsWith("E103 t.yaml:3:3: unknown key 'hiden_size'"),
                                    StartsWith("E106 t.yaml:6:35: model.experimental_attention_variant"),
                                    StartsWith("E104 command line: training.bf16=yes"), StartsWith("E121 t.yaml:12:3: training.global_batch_size")));
  }
}

TEST(Loader, a_syntax_error_is_not_followed_by_missing_keys) {
  try {
    load_config_text("model: {num_layers: 4\n", "t.yaml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("is not set")));
  }
}

TEST(Loader, faults_before_a_syntax_error_are_still_reported) {
  const LoadedConfig loaded = read_config_text("model:\n  hiden_size: 4\n  num_layers: x\n  vocab_size: {\n", "t.yaml", {});
  ASSERT_EQ(loaded.faults.size(), 3u) << ::testing::PrintToString(loaded.faults);
  EXPECT_THAT(loaded.faults[0], StartsWith("E102 t.yaml:"));
  EXPECT_THAT(loaded.faults[1], StartsWith("E103 t.yaml:2:3"));
  EXPECT_THAT(loaded.faults[2], StartsWith("E104 t.yaml:3:15"));
}

TEST(Loader, an_empty_file_is_all_defaults_and_lacks_required_keys) {
  const LoadedConfig loaded = read_config_text("", "t.yaml", {});
  EXPECT_THAT(loaded.faults, IsEmpty());
  EXPECT_EQ(loaded.config, RunConfig{});
  EXPECT_THROW(load_config_text("", "t.yaml"), Error);
}

TEST(Loader, nesting_without_end_is_an_error_not_a_crash) {
  const LoadedConfig loaded = read_config_text("model: " + std::string(20000, '['), "t.yaml", {});
  ASSERT_EQ(loaded.faults.size(), 1u);
  EXPECT_THAT(loaded.faults.front(), StartsWith("E102"));
}

TEST(Loader, a_missing_file_is_named) {
  try {
    load_run_config("/nonexistent/a.yaml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::FileNotReadable);
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/a.yaml"));
  }
}

TEST(Loader, the_older_spelling_of_the_variant_is_read_with_a_notice) {
  const testing::Written written =
      testing::write_yaml(testing::edited(testing::gdn_base(), {{"model.experimental_attention_variant", "gated_delta_net"}}));
  const LoadedConfig loaded = load_config_text(written.yaml, "t.yaml");
  EXPECT_EQ(loaded.config.model.experimental_attention_variant, ExperimentalAttentionVariant::Gdn);
  ASSERT_EQ(loaded.notices.size(), 1u);
  EXPECT_EQ(loaded.notices.front(), "t.yaml:" + written.places.at("model.experimental_attention_variant") +
                                        ": model.experimental_attention_variant: 'gated_delta_net' is an older spelling, read as 'gdn'");
  EXPECT_TRUE(load_config_text(to_yaml(loaded.config), "resolved.yaml").notices.empty());
}

}  // namespace
}  // namespace deltron
