// See lexer.h.
#include "tests/layering/lexer.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace deltron::layering {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Position after the raw string literal that begins at `at` (on its quote), by its own delimiter.
std::size_t end_of_raw_string(const std::string& text, std::size_t at) {
  const std::size_t open = text.find('(', at);
  if (open == std::string::npos) return text.size();
  const std::string close = ")" + text.substr(at + 1, open - at - 1) + "\"";
  const std::size_t end = text.find(close, open);
  return end == std::string::npos ? text.size() : end + close.size();
}

std::size_t end_of_literal(const std::string& text, std::size_t at) {
  const char quote = text[at];
  std::size_t place = at + 1;
  while (place < text.size() && text[place] != quote && text[place] != '\n') place += text[place] == '\\' ? 2 : 1;
  return std::min(place + 1, text.size());
}

void blank(std::string& text, std::size_t from, std::size_t to) {
  for (std::size_t place = from; place < to && place < text.size(); ++place) {
    if (text[place] != '\n') text[place] = ' ';
  }
}

bool on_include_line(const std::string& text, std::size_t at) {
  const std::size_t line = text.rfind('\n', at) == std::string::npos ? 0 : text.rfind('\n', at) + 1;
  const std::size_t hash = text.find_first_not_of(" \t", line);
  if (hash == std::string::npos || text[hash] != '#') return false;
  const std::size_t word = text.find_first_not_of(" \t", hash + 1);
  return word != std::string::npos && text.compare(word, 7, "include") == 0;
}

}  // namespace

std::string blank_comments_and_literals(const std::string& text) {
  std::string out = text;
  std::size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    const char next = at + 1 < text.size() ? text[at + 1] : '\0';
    std::size_t end = at + 1;
    if (c == '/' && next == '/') {
      end = std::min(text.find('\n', at), text.size());
      blank(out, at, end);
    } else if (c == '/' && next == '*') {
      const std::size_t close = text.find("*/", at + 2);
      end = close == std::string::npos ? text.size() : close + 2;
      blank(out, at, end);
    } else if (c == '"' && at > 0 && text[at - 1] == 'R' && (at < 2 || !is_word(text[at - 2]))) {
      end = end_of_raw_string(text, at);
      blank(out, at + 1, end - 1);
    } else if (c == '"') {
      end = end_of_literal(text, at);
      if (!on_include_line(out, at)) blank(out, at + 1, end - 1);
    } else if (c == '\'' && (at == 0 || !is_word(text[at - 1]))) {  // not the separator of 1'000
      end = end_of_literal(text, at);
      blank(out, at + 1, end - 1);
    }
    at = end;
  }
  return out;
}

std::vector<Include> include_lines(const std::string& text) {
  std::vector<Include> found;
  std::istringstream lines(blank_comments_and_literals(text));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const std::size_t word = line.find_first_not_of(" \t", hash + 1);
    if (word == std::string::npos || line.compare(word, 7, "include") != 0) continue;
    const std::size_t open = line.find_first_of("\"<", word + 7);
    if (open == std::string::npos) continue;  // #include MACRO
    const std::size_t close = line.find(line[open] == '<' ? '>' : '"', open + 1);
    if (close == std::string::npos) continue;
    found.push_back({number, line[open] == '"', line.substr(open + 1, close - open - 1)});
  }
  return found;
}

}  // namespace deltron::layering
