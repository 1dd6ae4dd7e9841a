// Strict conversions; see convert.h.
#include "src/config/convert.h"

#include <charconv>
#include <cmath>

#include "src/base/human.h"

namespace deltron {
namespace {

std::string shown(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::Null: return "no value";
    case YamlNode::Kind::Scalar: return node.quoted ? "\"" + node.text + "\"" : "'" + node.text + "'";
    case YamlNode::Kind::List: return "a list";
    case YamlNode::Kind::Map: return "a map";
    case YamlNode::Kind::Refused: break;
  }
  return "?";
}

ConversionFault wrong_type(const Field& field, const YamlNode& node, const std::string& what, const std::string& rule, const std::string& fix) {
  if (node.kind == YamlNode::Kind::Null) {
    return {ErrorCode::ConfigWrongType,
            {field.name() + " has no value", "", "", "", "write a value, or remove the key for its default " + value_text(field, field.default_value)},
            &node};
  }
  return {ErrorCode::ConfigWrongType, {field.name() + " is not " + what, "", shown(node), rule, fix}, &node};
}

bool plain_scalar(const YamlNode& node) { return node.kind == YamlNode::Kind::Scalar && !node.quoted; }

bool decimal_number(const std::string& text, double& value) {
  const std::size_t digits = text.rfind('-', 0) == 0 ? 1 : 0;
  if (text.size() > digits + 1 && text[digits] == '0' && text[digits + 1] >= '0' && text[digits + 1] <= '9') return false;  // 010
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && std::isfinite(value);
}

// What the writer of a refused integer most likely meant.
std::string integer_fix(const std::string& text) {
  std::string plain;
  for (const char c : text) {
    if (c != '_' && c != ',') plain += c;
  }
  double value = 0.0;
  const bool decimal = decimal_number(plain, value) && value == std::floor(value) && std::fabs(value) < 9e15;
  if (decimal && std::to_string(static_cast<std::int64_t>(value)) != text) return "write " + std::to_string(static_cast<std::int64_t>(value));
  return "write plain decimal digits";
}

std::optional<ConversionFault> to_integer(const Field& field, const YamlNode& node, std::int64_t& value) {
  const auto fault = [&](const std::string& fix) {
    return wrong_type(field, node, "an integer", "plain decimal digits (no 1e3, 3.0, 0x10, 010, 1_000, quotes)", fix);
  };
  if (!plain_scalar(node)) return fault(node.kind == YamlNode::Kind::Scalar ? integer_fix(node.text) : "write one number");
  const std::string& text = node.text;
  const std::size_t first = text.rfind('-', 0) == 0 ? 1 : 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool leading_zero = text.size() > first + 1 && text[first] == '0';
  if (error == std::errc::result_out_of_range && stop == end && !leading_zero) {
    return ConversionFault{ErrorCode::ConfigOutOfRange, {field.name() + " is out of range", "", text, "integers have 64 bits", "choose a smaller number"}, &node};
  }
  if (error != std::errc() || stop != end || leading_zero) return fault(integer_fix(text));
  return std::nullopt;
}

std::optional<ConversionFault> to_number(const Field& field, const YamlNode& node, double& value) {
  if (plain_scalar(node) && decimal_number(node.text, value)) return std::nullopt;
  return wrong_type(field, node, "a number", "a finite decimal number such as 0.1, 3e-4 or 2", "write a plain decimal number");
}

std::optional<ConversionFault> to_flag(const Field& field, const YamlNode& node, bool& value) {
  value = node.text == "true";
  if (plain_scalar(node) && (node.text == "true" || node.text == "false")) return std::nullopt;
  std::string fix = "write true or false";
  for (const char* word : {"yes", "Yes", "YES", "on", "On", "ON", "1", "True", "TRUE", "y", "Y"}) {
    if (node.text == word) fix = "write true";
  }
  for (const char* word : {"no", "No", "NO", "off", "Off", "OFF", "0", "False", "FALSE", "n", "N"}) {
    if (node.text == word) fix = "write false";
  }
  return wrong_type(field, node, "true or false", "exactly true or false, without quotes", fix);
}

std::optional<ConversionFault> to_text(const Field& field, const YamlNode& node, std::string& value) {
  value = node.text;
  if (node.kind == YamlNode::Kind::Scalar) return std::nullopt;
  return wrong_type(field, node, field.type == FieldType::Word ? "a word" : "a text", "one value", "write one value");
}

std::optional<ConversionFault> to_list(const Field& field, const YamlNode& node, std::vector<std::string>& value) {
  value.clear();
  if (node.kind != YamlNode::Kind::List) return wrong_type(field, node, "a list", "values in brackets", "write [" + node.text + "]");
  for (const YamlNode& item : node.items) {
    if (auto fault = to_text(field, item, value.emplace_back())) return fault;
  }
  return std::nullopt;
}

std::optional<ConversionFault> to_freq(const Field& field, const YamlNode& node, LinearAttentionFreq& value) {
  value = {};
  if (node.kind != YamlNode::Kind::List) return to_integer(field, node, value.interval);
  if (node.items.empty()) return wrong_type(field, node, "an integer or a list of 0 and 1", "a list has one entry a layer", "remove the key or fill the list");
  for (const YamlNode& item : node.items) {
    if (auto fault = to_integer(field, item, value.pattern.emplace_back())) return fault;
  }
  return std::nullopt;
}

std::optional<ConversionFault> convert_type(const Field& field, const YamlNode& node, FieldValue& value) {
  switch (field.type) {
    case FieldType::Integer: return to_integer(field, node, value.emplace<std::int64_t>());
    case FieldType::Number: return to_number(field, node, value.emplace<double>());
    case FieldType::Flag: return to_flag(field, node, value.emplace<bool>());
    case FieldType::Text:
    case FieldType::Word: return to_text(field, node, value.emplace<std::string>());
    case FieldType::TextList:
    case FieldType::WordList: return to_list(field, node, value.emplace<std::vector<std::string>>());
    case FieldType::IntervalOrList: return to_freq(field, node, value.emplace<LinearAttentionFreq>());
  }
  return std::nullopt;
}

ConversionFault illegal(const Field& field, const YamlNode& node, const ValueFault& fault) {
  return {fault.code, {field.name() + " " + fault.what, "", fault.values, fault.rule, fault.fix}, &node};
}

// Replaces another spelling by the word that it stands for.
std::string read_alias(const Field& field, FieldValue& value) {
  for (const WordAlias& alias : field.aliases) {
    if (value != FieldValue(alias.alias)) continue;
    value = alias.word;
    return field.name() + ": '" + alias.alias + "' is an older spelling, read as '" + alias.word + "'";
  }
  return "";
}

}  // namespace

std::vector<ConversionFault> convert(const Field& field, const YamlNode& node, FieldValue& value, std::string& notice) {
  notice.clear();
  std::vector<ConversionFault> faults;
  if (auto fault = convert_type(field, node, value)) {
    faults.push_back(*fault);
    return faults;
  }
  if (field.type == FieldType::WordList) {  // every wrong entry, each at its place
    for (const YamlNode& item : node.items) {
      if (auto fault = check_word(field, item.text)) faults.push_back(illegal(field, item, *fault));
    }
    return faults;
  }
  notice = read_alias(field, value);
  if (auto fault = check_value(field, value)) faults.push_back(illegal(field, node, *fault));
  return faults;
}

}  // namespace deltron
