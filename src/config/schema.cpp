// The assembled table and the faults of single values; see schema.h.
#include "src/config/schema.h"

#include <algorithm>
#include <cmath>

#include "src/base/human.h"
#include "src/base/suggest.h"
#include "src/config/section_fields.h"

namespace deltron {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

constexpr double kMostOfSizes = 2147483647.0;

std::optional<ValueFault> check_range(const Field& field, double value) {
  const bool low = field.minimum_excluded ? value > field.minimum : value >= field.minimum;
  const bool high = field.maximum_excluded ? value < field.maximum : value <= field.maximum;
  if (std::isfinite(value) && low && high) return std::nullopt;
  std::string fix = "choose a value in the range";
  if (!low && !field.minimum_excluded) fix = "the smallest legal value is " + shortest(field.minimum);
  if (!high && !field.maximum_excluded) fix = "the largest legal value is " + shortest(field.maximum);
  return ValueFault{ErrorCode::ConfigOutOfRange, "is out of range", "", field.name() + " " + range_text(field, true), fix};
}

std::optional<ValueFault> check_freq(const LinearAttentionFreq& freq) {
  if (freq.pattern.empty() && freq.interval < LinearAttentionFreq::kNotSet) {
    return ValueFault{ErrorCode::ConfigOutOfRange, "is out of range", std::to_string(freq.interval), "an integer >= 0 (-1 = not set) or a list of 0 and 1",
                      "0 makes every layer linear, 4 every 4th layer softmax"};
  }
  for (const std::int64_t entry : freq.pattern) {
    if (entry == 0 || entry == 1) continue;
    return ValueFault{ErrorCode::ConfigOutOfRange, "is out of range", std::to_string(entry), "list entries are 0 or 1", "1 = linear layer, 0 = softmax attention"};
  }
  return std::nullopt;
}

}  // namespace

const std::vector<Section>& config_sections() {
  static const std::vector<Section> sections = {
      {"model", "The network."},
      {"recompute", "Activations computed again in the backward pass instead of kept."},
      {"offload", "Activations kept in host memory until the backward pass."},
      {"parallel", "How the work is cut over ranks; data parallelism takes the ranks that remain."},
      {"training", "Device, batch, length of the run."},
      {"optimizer", "The update and its schedule."},
      {"data", "What is trained on."},
      {"checkpoint", "The run folder and what is kept in it."},
      {"logging", "What is reported."},
      {"plan", "What the machines reach, as measured: `deltron plan` predicts step times from it. Nothing else reads it."},
  };
  return sections;
}

const std::vector<Field>& config_fields() {
  static const std::vector<Field> table = [] {
    std::vector<Field> fields;
    add_model_fields(fields);
    add_memory_and_parallel_fields(fields);
    add_training_fields(fields);
    add_data_fields(fields);
    add_output_fields(fields);
    return fields;
  }();
  return table;
}

const Field* find_field(const std::string& section, const std::string& key) {
  for (const Field& field : config_fields()) {
    if (field.section == section && field.key == key) return &field;
  }
  return nullptr;
}

std::vector<std::string> section_names() {
  std::vector<std::string> names;
  for (const Section& section : config_sections()) names.push_back(section.name);
  return names;
}

std::vector<std::string> key_names(const std::string& section) {
  std::vector<std::string> names;
  for (const Field& field : config_fields()) {
    if (field.section == section) names.push_back(field.key);
  }
  return names;
}

std::optional<ValueFault> check_word(const Field& field, const std::string& word) {
  if (std::find(field.words.begin(), field.words.end(), word) != field.words.end()) return std::nullopt;
  for (const RefusedWord& refused : field.refused) {
    if (refused.word == word) return ValueFault{ErrorCode::ConfigNoEffect, "has a word that would have no effect", "'" + word + "'", refused.why, "remove it"};
  }
  const std::vector<std::string> near = nearest_words(word, field.words, 1);
  const std::string fix = near.empty() ? "use one of the words" : "did you mean '" + near.front() + "'?";
  return ValueFault{ErrorCode::ConfigUnknownWord, "has an unknown word", "'" + word + "'", "one of " + joined(field.words), fix};
}

std::optional<ValueFault> check_value(const Field& field, const FieldValue& value) {
  std::optional<ValueFault> fault;
  switch (field.type) {
    case FieldType::Integer: fault = check_range(field, static_cast<double>(std::get<std::int64_t>(value))); break;
    case FieldType::Number: fault = check_range(field, std::get<double>(value)); break;
    case FieldType::Word: fault = check_word(field, std::get<std::string>(value)); break;
    case FieldType::IntervalOrList: fault = check_freq(std::get<LinearAttentionFreq>(value)); break;
    case FieldType::WordList:
      for (const std::string& word : std::get<std::vector<std::string>>(value)) {
        if (!fault) fault = check_word(field, word);
      }
      break;
    case FieldType::Flag:
    case FieldType::Text:
    case FieldType::TextList: break;
  }
  if (fault && fault->values.empty()) fault->values = value_text(field, value);
  return fault;
}

std::string type_text(const Field& field) {
  switch (field.type) {
    case FieldType::Integer: return "integer";
    case FieldType::Number: return "number";
    case FieldType::Flag: return "true or false";
    case FieldType::Text: return "text";
    case FieldType::Word: return "word";
    case FieldType::TextList: return "list of texts";
    case FieldType::WordList: return "list of words";
    case FieldType::IntervalOrList: return "integer or list of 0/1";
  }
  return "";
}

std::string range_text(const Field& field, bool full) {
  if (!field.words.empty()) return joined(field.words);
  std::string text;
  if (std::isfinite(field.minimum)) text = (field.minimum_excluded ? "> " : ">= ") + shortest(field.minimum);
  if (!std::isfinite(field.maximum) || (!full && field.maximum == kMostOfSizes)) return text;
  const std::string most =
      field.type == FieldType::Integer ? std::to_string(static_cast<std::int64_t>(field.maximum)) : shortest(field.maximum);
  return text + (text.empty() ? "" : " and ") + (field.maximum_excluded ? "< " : "<= ") + most;
}

}  // namespace deltron
