// See text_reader.h.
#include "src/data/text_reader.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/file.h"
#include "src/base/signals.h"
#include "src/base/suggest.h"

namespace deltron {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

std::string_view view_of(const MappedFile& file, TextStats& stats) {
  std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
    text.remove_prefix(kByteOrderMark.size());
    ++stats.byte_order_marks;
  }
  return text;
}

[[noreturn]] void bad_separator(const std::string& text, const std::string& rule) {
  throw Error(ErrorCode::DataOptionInvalid,
              ErrorText{"document separator is invalid", "", "'" + text + "'", rule, "write for example '\\n\\n' or '\\f'"});
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

[[noreturn]] void bad_line(const std::string& path, std::int64_t line, std::size_t column, const std::string& what,
                           const std::string& values, const std::string& fix) {
  throw Error(ErrorCode::TextInvalid, ErrorText{what, path + ":" + std::to_string(line) + ":" + std::to_string(column), values,
                                                "every line is a JSON object that holds the text as a string", fix});
}

// The library's text without its own prefix and line number.
std::string parse_reason(const std::string& message) {
  const std::size_t column = message.find("column ");
  const std::size_t colon = column == std::string::npos ? column : message.find(": ", column);
  return colon == std::string::npos ? message : message.substr(colon + 2);
}

std::string keys_of(const nlohmann::json& object) {
  std::string text;
  for (const auto& item : object.items()) text += (text.empty() ? "'" : ", '") + item.key() + "'";
  return text.empty() ? "no keys" : "keys: " + text;
}

}  // namespace

std::string unescape_separator(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      result.push_back(text[i]);
      continue;
    }
    if (++i == text.size()) bad_separator(text, "a backslash is followed by n, r, t, f, 0, xHH or a backslash");
    switch (text[i]) {
      case 'n':
        result.push_back('\n');
        break;
      case 'r':
        result.push_back('\r');
        break;
      case 't':
        result.push_back('\t');
        break;
      case 'f':
        result.push_back('\f');
        break;
      case '0':
        result.push_back('\0');
        break;
      case '\\':
        result.push_back('\\');
        break;
      case 'x': {
        const int high = i + 1 < text.size() ? hex_digit(text[i + 1]) : -1;
        const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
        if (high < 0 || low < 0) bad_separator(text, "\\x is followed by two hexadecimal digits");
        result.push_back(static_cast<char>(high * 16 + low));
        i += 2;
        break;
      }
      default:
        bad_separator(text, "a backslash is followed by n, r, t, f, 0, xHH or a backslash");
    }
  }
  return result;
}

void read_text_documents(const std::string& path, const std::string& separator, TextStats& stats,
                         const DocumentCallback& callback) {
  const MappedFile file(path, ErrorCode::DataFileNotReadable);
  std::string_view text = view_of(file, stats);
  std::string converted;
  if (text.find("\r\n") != std::string_view::npos) {
    converted.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') {
        ++stats.crlf_lines;
      } else {
        converted.push_back(text[i]);
      }
    }
    text = converted;
  }
  const bool blank_lines = !separator.empty() && separator.find_first_not_of('\n') == std::string::npos;
  std::int64_t line = 1;
  for (std::size_t at = 0; at < text.size();) {
    poll_stop("reading text");
    std::size_t end = separator.empty() ? std::string_view::npos : text.find(separator, at);
    if (end == std::string_view::npos) end = text.size();
    std::string_view document = text.substr(at, end - at);
    std::int64_t first_line = line;
    if (blank_lines) {
      while (!document.empty() && document.front() == '\n') {
        document.remove_prefix(1);
        ++first_line;
      }
      while (!document.empty() && document.back() == '\n') document.remove_suffix(1);
    }
    if (document.empty()) {
      ++stats.empty_documents;
    } else {
      ++stats.documents;
      callback(document, first_line);
    }
    const std::size_t next = std::min(end + separator.size(), text.size());
    line += std::count(text.begin() + static_cast<std::ptrdiff_t>(at), text.begin() + static_cast<std::ptrdiff_t>(next), '\n');
    at = next;
    if (end == text.size()) break;
  }
}

void read_jsonl_documents(const std::string& path, const std::string& key, TextStats& stats, const DocumentCallback& callback) {
  const MappedFile file(path, ErrorCode::DataFileNotReadable);
  const std::string_view text = view_of(file, stats);
  std::int64_t line = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (line % 1024 == 0) poll_stop("reading JSONL");
    std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) end = text.size();
    std::string_view row = text.substr(at, end - at);
    at = end + 1;
    ++line;
    if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) {
      ++stats.blank_lines;
      continue;
    }
    nlohmann::json object;
    try {
      object = nlohmann::json::parse(row);
    } catch (const nlohmann::json::parse_error& error) {
      bad_line(path, line, std::clamp<std::size_t>(error.byte, 1, row.size() + 1), "no valid JSON", parse_reason(error.what()),
               "mend this line; one whole JSON object stands on each");
    } catch (const nlohmann::json::exception& error) {  // a number beyond the range of a double
      bad_line(path, line, 1, "JSON that cannot be held", parse_reason(error.what()), "mend this line");
    }
    const std::size_t start = row.find_first_not_of(" \t") + 1;
    if (!object.is_object()) bad_line(path, line, start, "no JSON object", object.type_name(), "write {\"" + key + "\": \"...\"}");
    const auto found = object.find(key);
    if (found == object.end()) {
      std::vector<std::string> keys;
      for (const auto& item : object.items()) keys.push_back(item.key());
      bad_line(path, line, start, "no key '" + key + "'" + did_you_mean(key, keys), keys_of(object),
               "name the key with --json-key");
    }
    if (!found->is_string()) {
      const std::size_t place = row.find("\"" + key + "\"");
      bad_line(path, line, place == std::string_view::npos ? start : place + 1, "the value of '" + key + "' is not a string",
               found->type_name(), "store the text as a string, or name another key with --json-key");
    }
    const std::string& document = found->get_ref<const std::string&>();
    if (document.empty()) {
      ++stats.empty_documents;
    } else {
      ++stats.documents;
      callback(document, line);
    }
  }
}

}  // namespace deltron
