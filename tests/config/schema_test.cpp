// The table of keys: complete, self-consistent, and what is written from it reads back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "src/base/file.h"
#include "src/config/loader.h"
#include "src/config/schema.h"
#include "tests/support/generated_page.h"

namespace deltron {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A legal value other than the default, so that a key that is lost on the way shows.
FieldValue other_value(const Field& field) {
  switch (field.type) {
    case FieldType::Integer: return std::get<std::int64_t>(field.default_value) + 1;
    case FieldType::Number: {
      const double value = std::get<double>(field.default_value);
      return value == 0.0 ? 0.1 : value * (field.maximum <= 1.0 ? 0.7 : 1.0 / 0.7);
    }
    case FieldType::Flag: return !std::get<bool>(field.default_value);
    case FieldType::Text: return std::string("a \"quoted\"\\ text: #1\n\ttab \x01 \xc3\xa9 'x' ") + field.key;
    case FieldType::Word: return field.words.back() == std::get<std::string>(field.default_value) ? field.words.front() : field.words.back();
    case FieldType::TextList: return std::vector<std::string>{"0.5", "a, b]", "", "yes", "~", "- x: y"};
    case FieldType::WordList: return std::vector<std::string>{field.words.front(), field.words.back()};
    case FieldType::IntervalOrList: return LinearAttentionFreq{LinearAttentionFreq::kNotSet, {1, 0, 1}};
  }
  return {};
}

TEST(Schema, keys_are_unique_documented_and_legal_by_default) {
  std::set<std::string> names;
  std::set<std::string> sections;
  for (const Section& section : config_sections()) sections.insert(section.name);
  for (const Field& field : config_fields()) {
    EXPECT_TRUE(names.insert(field.name()).second) << field.name();
    EXPECT_EQ(sections.count(field.section), 1u) << field.name();
    EXPECT_GT(field.help.size(), 10u) << field.name();
    EXPECT_FALSE(check_value(field, field.default_value).has_value()) << field.name();
    EXPECT_EQ(find_field(field.section, field.key), &field);
  }
  for (const std::string& section : sections) EXPECT_THAT(key_names(section), ::testing::Not(IsEmpty())) << section;
}

TEST(Schema, every_key_is_bound_to_a_member_of_its_own) {
  for (const Field& field : config_fields()) {
    RunConfig config;
    field.set(config, other_value(field));
    EXPECT_EQ(field.get(config), other_value(field)) << field.name();
    for (const Field& other : config_fields()) {
      if (&other == &field) continue;
      EXPECT_EQ(other.get(config), other.default_value) << field.name() << " changed " << other.name();
    }
  }
}

TEST(Schema, resolved_yaml_reads_back_equal) {
  RunConfig config;
  for (const Field& field : config_fields()) field.set(config, other_value(field));
  for (const RunConfig& original : {RunConfig{}, config}) {
    for (const bool with_help : {false, true}) {
      const LoadedConfig loaded = read_config_text(to_yaml(original, with_help), "resolved.yaml", {});
      EXPECT_THAT(loaded.faults, IsEmpty());
      EXPECT_EQ(loaded.config, original);
      EXPECT_EQ(to_yaml(loaded.config), to_yaml(original));
    }
  }
}

TEST(Schema, numbers_survive_the_round_trip_to_the_bit) {
  for (const double value : {1.0 / 3.0, 3e-4, 5e-324, 0.1, 123456.789e-7, 999.0}) {
    RunConfig config;
    config.optimizer.lr = value;
    const RunConfig back = read_config_text(to_yaml(config), "resolved.yaml", {}).config;
    EXPECT_EQ(back.optimizer.lr, value);
  }
  RunConfig config;
  config.optimizer.lr = 3e-4;
  EXPECT_THAT(to_yaml(config), HasSubstr("  lr: 3e-04\n"));
  config.training.seed = 9223372036854775807;
  EXPECT_EQ(read_config_text(to_yaml(config), "resolved.yaml", {}).config, config);
}

TEST(Schema, every_key_can_be_overridden) {
  RunConfig config;
  std::vector<std::string> overrides;
  for (const Field& field : config_fields()) {
    field.set(config, other_value(field));
    overrides.push_back(field.name() + "=" + value_text(field, other_value(field)));
  }
  const LoadedConfig loaded = read_config_text("", "t.yaml", overrides);
  EXPECT_THAT(loaded.faults, IsEmpty());
  EXPECT_EQ(loaded.config, config);
}

TEST(Schema, help_and_reference_name_every_key) {
  const std::string help = config_help();
  const std::string reference = config_reference_markdown();
  for (const Field& field : config_fields()) {
    EXPECT_THAT(help, HasSubstr(field.name()));
    EXPECT_THAT(reference, HasSubstr("| `" + field.key + "` |"));
  }
  EXPECT_THAT(config_help("data"), ::testing::Not(HasSubstr("model.")));
}

TEST(Schema, the_reference_page_is_up_to_date) {
  test::expect_page("config_reference.md", config_reference_markdown());
}

}  // namespace
}  // namespace deltron
