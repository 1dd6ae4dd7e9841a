// How the table of schema.h is written down: binds a key to a member of a section's struct. For src/config/fields_*.cpp only.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/config/schema.h"

namespace deltron {

template <class Value>
constexpr FieldType plain_type() {
  if constexpr (std::is_same_v<Value, std::int64_t>) return FieldType::Integer;
  if constexpr (std::is_same_v<Value, double>) return FieldType::Number;
  if constexpr (std::is_same_v<Value, bool>) return FieldType::Flag;
  if constexpr (std::is_same_v<Value, std::string>) return FieldType::Text;
  if constexpr (std::is_same_v<Value, std::vector<std::string>>) return FieldType::TextList;
  if constexpr (std::is_same_v<Value, LinearAttentionFreq>) return FieldType::IntervalOrList;
}

template <class Struct>
class SectionFields {
 public:
  SectionFields(std::vector<Field>& table, std::string name, Struct RunConfig::* section)
      : table_(table), name_(std::move(name)), section_(section) {}

  template <class Value>
  Field& add(const char* key, Value Struct::* member, const char* help) {
    const auto section = section_;
    Field& field = start(key, plain_type<Value>(), help);
    field.get = [section, member](const RunConfig& config) -> FieldValue { return (config.*section).*member; };
    field.set = [section, member](RunConfig& config, const FieldValue& value) {
      (config.*section).*member = std::get<Value>(value);
    };
    field.default_value = field.get(RunConfig{});
    return field;
  }

  // `words` in the order of the enumerators.
  template <class Enum>
  Field& add_words(const char* key, Enum Struct::* member, std::vector<std::string> words, const char* help) {
    static_assert(std::is_enum_v<Enum>);
    const auto section = section_;
    Field& field = start(key, FieldType::Word, help);
    field.words = words;
    field.get = [section, member, words](const RunConfig& config) -> FieldValue {
      return words.at(static_cast<std::size_t>((config.*section).*member));
    };
    field.set = [section, member, words](RunConfig& config, const FieldValue& value) {
      for (std::size_t i = 0; i < words.size(); ++i) {
        if (words[i] == std::get<std::string>(value)) (config.*section).*member = static_cast<Enum>(i);
      }
    };
    field.default_value = field.get(RunConfig{});
    return field;
  }

  Field& add_word_list(const char* key, std::vector<std::string> Struct::* member, std::vector<std::string> words, const char* help) {
    Field& field = add(key, member, help);
    field.type = FieldType::WordList;
    field.words = std::move(words);
    return field;
  }

 private:
  Field& start(const char* key, FieldType type, const char* help) {
    Field& field = table_.emplace_back();
    field.section = name_;
    field.key = key;
    field.type = type;
    field.help = help;
    return field;
  }

  std::vector<Field>& table_;
  std::string name_;
  Struct RunConfig::* section_;
};

void add_model_fields(std::vector<Field>& table);
void add_memory_and_parallel_fields(std::vector<Field>& table);  // recompute, offload, parallel
void add_training_fields(std::vector<Field>& table);             // training, optimizer
void add_data_fields(std::vector<Field>& table);                 // data
void add_output_fields(std::vector<Field>& table);               // checkpoint, logging, plan

}  // namespace deltron
