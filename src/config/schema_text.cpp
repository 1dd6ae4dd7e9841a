// What is written from the table of schema.h: resolved YAML, --help, the reference page.
#include <cmath>

#include "src/base/human.h"
#include "src/config/schema.h"

namespace deltron {
namespace {

constexpr std::size_t kHelpWidth = 100;

std::string quoted(const std::string& text) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += "\\x";
      result += kHex[byte >> 4];
      result += kHex[byte & 15];
    } else {
      result += c;
    }
  }
  return result + "\"";
}

template <class Item, class ToText>
std::string flow_list(const std::vector<Item>& items, ToText to_text) {
  std::string text = "[";
  for (std::size_t i = 0; i < items.size(); ++i) text += (i == 0 ? "" : ", ") + to_text(items[i]);
  return text + "]";
}

std::string facts(const Field& field) {
  std::string text = type_text(field);
  if (!range_text(field).empty()) text += ": " + range_text(field);
  if (!field.unit.empty()) text += "; " + field.unit;
  return text + "; default " + value_text(field, field.default_value);
}

// Breaks at spaces; every line begins with `indent`.
std::string wrapped(const std::string& text, const std::string& indent) {
  std::string result;
  std::string line;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = text.find(' ', begin);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && indent.size() + line.size() + 1 + word.size() > kHelpWidth) {
      result += indent + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return result + indent + line + "\n";
}

std::string table_cell(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

}  // namespace

std::string value_text(const Field& field, const FieldValue& value) {
  switch (field.type) {
    case FieldType::Integer: return std::to_string(std::get<std::int64_t>(value));
    case FieldType::Number: return shortest(std::get<double>(value));
    case FieldType::Flag: return std::get<bool>(value) ? "true" : "false";
    case FieldType::Word: return std::get<std::string>(value);
    case FieldType::Text: return quoted(std::get<std::string>(value));
    case FieldType::TextList: return flow_list(std::get<std::vector<std::string>>(value), quoted);
    case FieldType::WordList: return flow_list(std::get<std::vector<std::string>>(value), [](const std::string& word) { return word; });
    case FieldType::IntervalOrList: {
      const auto& freq = std::get<LinearAttentionFreq>(value);
      if (freq.pattern.empty()) return std::to_string(freq.interval);
      return flow_list(freq.pattern, [](std::int64_t entry) { return std::to_string(entry); });
    }
  }
  return "";
}

std::string to_yaml(const RunConfig& config, bool with_help) {
  std::string text;
  for (const Section& section : config_sections()) {
    if (!text.empty()) text += "\n";
    if (with_help) text += "# " + section.help + "\n";
    text += section.name + ":\n";
    for (const Field& field : config_fields()) {
      if (field.section != section.name) continue;
      if (with_help) text += wrapped(field.help + " (" + facts(field) + ")", "  # ");
      text += "  " + field.key + ": " + value_text(field, field.get(config)) + "\n";
    }
  }
  return text;
}

std::string config_help(const std::string& section_name) {
  std::string text;
  for (const Section& section : config_sections()) {
    if (!section_name.empty() && section.name != section_name) continue;
    if (!text.empty()) text += "\n";
    text += section.name + ": " + section.help + "\n";
    for (const Field& field : config_fields()) {
      if (field.section != section.name) continue;
      text += "  " + field.name() + "  (" + facts(field) + ")\n" + wrapped(field.help, "      ");
    }
  }
  return text;
}

std::string config_reference_markdown() {
  std::string text =
      "# Configuration reference\n\n"
      "Generated from the table in `src/config/fields_*.cpp`; do not edit. A configuration is a YAML file of these sections. Every key can be\n"
      "set on the command line after the file, as `section.key=value`; a list is written `section.key=[a, b]`. Keys that are not written have\n"
      "the default. A key that is not known, written twice, of the wrong type, out of range or without effect is an error. Names follow\n"
      "Megatron's where it has the option.\n";
  for (const Section& section : config_sections()) {
    text += "\n## " + section.name + "\n\n" + section.help + "\n\n| key | type | default | legal | unit | meaning |\n|---|---|---|---|---|---|\n";
    for (const Field& field : config_fields()) {
      if (field.section != section.name) continue;
      text += "| `" + field.key + "` | " + type_text(field) + " | `" + value_text(field, field.default_value) + "` | " +
              table_cell(range_text(field)) + " | " + field.unit + " | " + table_cell(field.help) + " |\n";
    }
  }
  return text;
}

}  // namespace deltron
