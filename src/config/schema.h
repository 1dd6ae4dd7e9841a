// The one table of configuration keys: section, key, type, default, range or words, unit, help, and the RunConfig member it stands for.
// From it come YAML loading, command-line overrides, --help, docs/config_reference.md and the resolved configuration.
// Owns what is true of one key alone; what ties keys together is in validate.h. Must not know YAML parsing.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "src/base/error.h"
#include "src/config/run_config.h"

namespace deltron {

enum class FieldType { Integer, Number, Flag, Text, Word, TextList, WordList, IntervalOrList };

// Word is held as its text. The alternatives follow FieldType.
using FieldValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::string>, LinearAttentionFreq>;

// A word that is refused with a reason of its own.
struct RefusedWord {
  std::string word;
  std::string why;
};

// Another spelling of a word, read with a notice.
struct WordAlias {
  std::string alias;
  std::string word;
};

struct Field {
  std::string section = {};
  std::string key = {};
  FieldType type = FieldType::Integer;
  std::string help = {};
  std::string unit = {};
  std::vector<std::string> words = {};  // Word, WordList
  std::vector<RefusedWord> refused = {};
  std::vector<WordAlias> aliases = {};  // Word
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool minimum_excluded = false;
  bool maximum_excluded = false;
  FieldValue default_value = {};
  std::function<FieldValue(const RunConfig&)> get = {};
  std::function<void(RunConfig&, const FieldValue&)> set = {};

  std::string name() const { return section + "." + key; }
  // Used while the table is written down.
  Field& at_least(double low) { return minimum = low, *this; }
  Field& above(double low) { return minimum = low, minimum_excluded = true, *this; }
  Field& at_most(double high) { return maximum = high, *this; }
  Field& below(double high) { return maximum = high, maximum_excluded = true, *this; }
  Field& in(const char* unit_name) { return unit = unit_name, *this; }
  Field& alias(const char* other, const char* word) { return aliases.push_back({other, word}), *this; }
  Field& one_of(std::vector<std::string> list) { return words = std::move(list), *this; }
};

struct Section {
  std::string name;
  std::string help;
};

// In the order of the files we write.
const std::vector<Section>& config_sections();
const std::vector<Field>& config_fields();
const Field* find_field(const std::string& section, const std::string& key);  // null where there is none
std::vector<std::string> section_names();
std::vector<std::string> key_names(const std::string& section);

// A fault of one value: range or words. Empty where the value is legal.
struct ValueFault {
  ErrorCode code;
  std::string what;  // behind the key's name: "is out of range"
  std::string values;
  std::string rule;
  std::string fix;
};
std::optional<ValueFault> check_word(const Field& field, const std::string& word);  // of a Word or a WordList
std::optional<ValueFault> check_value(const Field& field, const FieldValue& value);

std::string type_text(const Field& field);                            // "integer", "list of words", ...
// ">= 1", "none, gdn, gdn2"; may be empty. The bound that only keeps sizes within 32 bits is shown where `full`.
std::string range_text(const Field& field, bool full = false);
std::string value_text(const Field& field, const FieldValue& value);  // as it is written in YAML

// Every key of every section, in the order of the table; reading it back gives an equal RunConfig.
std::string to_yaml(const RunConfig& config, bool with_help = false);
// For --help: all sections, or one.
std::string config_help(const std::string& section = "");
// docs/config_reference.md
std::string config_reference_markdown();

}  // namespace deltron
