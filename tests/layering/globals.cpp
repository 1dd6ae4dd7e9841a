// mutable_globals: walks the braces of a source, keeps what kind of scope each opens, and judges every statement in it.
#include <algorithm>
#include <array>
#include <cctype>
#include <sstream>

#include "tests/layering/lexer.h"

namespace deltron::layering {
namespace {

// Nested is an initializer or a lambda: its closing brace does not end the statement around it.
enum class Scope { Namespace, Class, Enumeration, Function, Nested };

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> found;
  std::string word;
  for (const char c : text + " ") {
    if (is_word(c)) {
      word += c;
    } else if (!word.empty()) {
      found.push_back(word);
      word.clear();
    }
  }
  return found;
}

bool has_word(const std::string& text, const std::string& word) {
  const std::vector<std::string> all = words(text);
  return std::find(all.begin(), all.end(), word) != all.end();
}

std::string last_word(const std::string& text) {
  std::size_t start = text.size();
  while (start > 0 && is_word(text[start - 1])) --start;
  return text.substr(start);
}

bool is_macro_name(const std::string& word) {
  const auto lower = [](char c) { return std::islower(static_cast<unsigned char>(c)) != 0; };
  return word.size() > 1 && std::isalpha(static_cast<unsigned char>(word[0])) != 0 && std::none_of(word.begin(), word.end(), lower);
}

// Place of the bracket that matches the closing one at `close`; npos if there is none.
std::size_t matching_open(const std::string& text, std::size_t close) {
  const char shut = text[close], open = shut == ')' ? '(' : shut == ']' ? '[' : '<';
  int depth = 0;
  for (std::size_t place = close + 1; place-- > 0;) {
    if (text[place] == shut) ++depth;
    if (text[place] == open && --depth == 0) return place;
  }
  return std::string::npos;
}

// Everything inside <> () [] {} removed, template heads and attributes with it: what is left is the bare declaration.
std::string outermost(const std::string& text) {
  std::string out;
  int depth = 0;
  for (std::size_t place = 0; place < text.size(); ++place) {
    const char c = text[place];
    const bool arrow = c == '>' && place > 0 && text[place - 1] == '-';
    const bool closes = c == ')' || c == ']' || c == '}' || (c == '>' && !arrow && depth > 0);
    if (closes && --depth == 0)
      out += c;
    else if (depth == 0)
      out += c;
    if (c == '(' || c == '[' || c == '{' || (c == '<' && place > 0)) ++depth;
  }
  return out;
}

// Qualifiers, macros and a trailing return type between a function's parameters and its brace are taken off.
std::string without_function_tail(std::string text) {
  while (true) {
    text = trimmed(text);
    const std::string word = last_word(text);
    const bool tail = word == "const" || word == "noexcept" || word == "override" || word == "final" || word == "mutable" ||
                      (is_macro_name(word) && trimmed(text.substr(0, text.size() - word.size())).find(')') != std::string::npos);
    if (!tail || word.empty()) break;
    text.resize(text.size() - word.size());
  }
  const std::size_t arrow = text.rfind("->");
  if (arrow != std::string::npos) {
    const std::string before = trimmed(text.substr(0, arrow));
    const std::string after = text.substr(arrow + 2);
    if (!before.empty() && before.back() == ')' && after.find('(') == std::string::npos && after.find('=') == std::string::npos)
      return before;
  }
  return text;
}

Scope scope_opened_by(const std::string& pending, Scope around, int parentheses) {
  const std::string text = trimmed(pending);
  const std::vector<std::string> all = words(outermost(text));
  const auto starts_with = [&](const char* word) { return !all.empty() && all[0] == word; };
  if (parentheses > 0) return Scope::Nested;
  if (starts_with("namespace") || (all.size() > 1 && all[0] == "inline" && all[1] == "namespace")) return Scope::Namespace;
  if (starts_with("extern") && all.size() == 1 && text.find('(') == std::string::npos) return Scope::Namespace;  // extern "C" {
  if (text.empty()) return around == Scope::Class || around == Scope::Namespace ? Scope::Nested : Scope::Function;
  const std::string bare = without_function_tail(text);
  const bool closes_parameters = !bare.empty() && bare.back() == ')';
  const bool assigned = outermost(text).find('=') != std::string::npos;
  if (!closes_parameters && !assigned) {
    if (has_word(outermost(text), "enum")) return Scope::Enumeration;
    for (const char* keyword : {"class", "struct", "union"}) {
      const std::size_t index = static_cast<std::size_t>(std::find(all.begin(), all.end(), keyword) - all.begin());
      if (index == all.size()) continue;
      const std::string head = outermost(text).substr(0, std::min(outermost(text).find(" :"), outermost(text).size()));
      std::vector<std::string> names = words(head);
      names.erase(names.begin(), std::find(names.begin(), names.end(), keyword) + 1);
      const auto is_decoration = [](const std::string& name) {
        return name == "final" || name == "alignas" || is_macro_name(name);
      };
      names.erase(std::remove_if(names.begin(), names.end(), is_decoration), names.end());
      return names.size() > 1 && head.find("::") == std::string::npos ? Scope::Nested : Scope::Class;  // struct stat info{...}
    }
  }
  if (closes_parameters) {
    const std::size_t open = matching_open(bare, bare.size() - 1);
    const std::string before = open == std::string::npos ? "" : trimmed(bare.substr(0, open));
    const bool lambda = !before.empty() && before.back() == ']' && before.find("operator[]") == std::string::npos;
    return lambda ? Scope::Nested : Scope::Function;
  }
  if (bare.back() == '}' && bare.find(')') != std::string::npos && around != Scope::Function)
    return Scope::Function;                                              // : member_{1} {
  if (bare.back() == ':' || bare.back() == '}') return Scope::Function;  // case 1: {
  const std::string word = last_word(bare);
  if (word == "else" || word == "do" || word == "try") return Scope::Function;
  return Scope::Nested;
}

// Is the variable itself const? A pointer is only if const stands after its last star.
bool is_constant(const std::string& declaration) {
  const std::string bare = outermost(declaration);
  if (has_word(bare, "constexpr")) return true;
  const std::size_t star = bare.rfind('*');
  return has_word(star == std::string::npos ? bare : bare.substr(star), "const");
}

// Place of the first '(' outside template arguments.
std::size_t first_parenthesis(const std::string& text) {
  int depth = 0;
  for (std::size_t place = 0; place < text.size(); ++place) {
    if (text[place] == '<') ++depth;
    if (text[place] == '>' && depth > 0) --depth;
    if (text[place] == '(' && depth == 0) return place;
  }
  return std::string::npos;
}

// Parentheses after the name: literals inside make a variable, anything else a function.
bool declares_function(const std::string& statement) {
  const std::size_t open = first_parenthesis(statement);
  const std::size_t cut = std::min(statement.find('='), statement.find('{'));
  if (open == std::string::npos || (cut != std::string::npos && cut < open)) return statement.find("operator") != std::string::npos;
  const std::string inside = trimmed(statement.substr(open + 1));
  if (inside.empty()) return true;
  if (inside[0] == '*') return false;  // int (*hook)(int)
  const bool literal =
      std::isdigit(static_cast<unsigned char>(inside[0])) != 0 || inside[0] == '"' || inside[0] == '\'' || inside[0] == '-';
  return !literal;
}

// Attributes and template heads are taken off the front of a statement.
std::string without_template_head(const std::string& statement) {
  std::string text = trimmed(statement);
  while (text.compare(0, 2, "[[") == 0 && text.find("]]") != std::string::npos) text = trimmed(text.substr(text.find("]]") + 2));
  while (text.compare(0, 8, "template") == 0) {
    int depth = 0;
    std::size_t place = text.find('<');
    if (place == std::string::npos) return text;
    for (; place < text.size(); ++place) {
      if (text[place] == '<') ++depth;
      if (text[place] == '>' && --depth == 0) break;
    }
    text = place < text.size() ? trimmed(text.substr(place + 1)) : "";
  }
  return text;
}

bool never_a_variable(const std::string& first) {
  static constexpr std::array<const char*, 9> kWords = {"using",  "typedef", "namespace", "friend", "static_assert",
                                                        "return", "goto",    "template",  "concept"};
  return std::any_of(kWords.begin(), kWords.end(), [&](const char* word) { return first == word; });
}

bool forward_declaration(const std::vector<std::string>& all) {
  if (all[0] != "class" && all[0] != "struct" && all[0] != "union" && all[0] != "enum") return false;
  return all.size() <= 2 || (all.size() == 3 && (all[1] == "class" || all[1] == "struct")) || all[0] == "enum";
}

bool is_mutable_global(const std::string& statement, Scope scope) {
  const std::string text = without_template_head(statement);
  const std::vector<std::string> all = words(text);
  if (all.empty() || never_a_variable(all[0])) return false;
  const std::string declaration = text.substr(0, std::min(text.find('='), text.find('{')));
  const std::string bare = outermost(declaration);
  const bool lasting = has_word(bare, "static") || has_word(bare, "thread_local");
  if (scope == Scope::Class || scope == Scope::Function || scope == Scope::Nested) {
    if (!lasting) return false;
    return !is_constant(declaration) && (scope != Scope::Class || !declares_function(text));
  }
  if (scope != Scope::Namespace || forward_declaration(all)) return false;
  if (words(bare).size() < 2 && declaration.find("(*") == std::string::npos) return false;  // a macro call
  return !declares_function(text) && !is_constant(declaration);
}

std::string variable_name(const std::string& statement) {
  const std::string text = without_template_head(statement);
  const std::string declaration = text.substr(0, std::min({text.find('='), text.find('{'), text.size()}));
  const std::size_t hook = declaration.find("(*");
  if (hook != std::string::npos) return words(declaration.substr(hook))[0];
  std::string bare = outermost(declaration);
  bare = bare.substr(0, std::min(bare.find_first_of("[("), bare.size()));
  const std::vector<std::string> all = words(bare);
  return all.empty() ? "" : all.back();
}

std::string without_preprocessor(const std::string& text) {
  std::string out, line;
  std::istringstream lines(text);
  bool continued = false;
  while (std::getline(lines, line)) {
    const std::size_t first = line.find_first_not_of(" \t");
    const bool directive = continued || (first != std::string::npos && line[first] == '#');
    continued = directive && !line.empty() && line.back() == '\\';
    out += (directive ? "" : line) + "\n";
  }
  return out;
}

bool is_access(const std::string& word) { return word == "public" || word == "private" || word == "protected"; }

struct Frame {
  Scope scope;
  std::string pending;
  int parentheses;
  int line;
};

}  // namespace

std::vector<Global> mutable_globals(const std::string& source) {
  const std::string text = without_preprocessor(blank_comments_and_literals(source));
  std::vector<Global> found;
  std::vector<Frame> frames;
  Frame now{Scope::Namespace, "", 0, 1};
  int line = 1;
  for (const char c : text) {
    if (c == '\n') ++line;
    if (trimmed(now.pending).empty()) now.line = line;
    if (c == '(') ++now.parentheses;
    if (c == ')') --now.parentheses;
    if (c == '{') {
      const Scope inner = scope_opened_by(now.pending, now.scope, now.parentheses);
      frames.push_back(now);
      now = Frame{inner, "", 0, line};
    } else if (c == '}' && !frames.empty()) {
      const Scope closed = now.scope;
      now = frames.back();
      frames.pop_back();
      if (closed == Scope::Nested) {
        now.pending += "{}";
      } else if (closed == Scope::Class || closed == Scope::Enumeration) {
        const bool harmless = has_word(outermost(now.pending), "typedef") || has_word(outermost(now.pending), "const");
        now.pending = harmless ? "@const " : "@";  // `} name;` may follow
      } else {
        now.pending.clear();
        now.parentheses = 0;
      }
    } else if (c == ';' && now.parentheses <= 0) {
      const bool after_class = !now.pending.empty() && now.pending[0] == '@';
      const bool variable_after_class =
          after_class && now.scope == Scope::Namespace && !words(now.pending).empty() && !is_constant(now.pending);
      if (variable_after_class || (!after_class && is_mutable_global(now.pending, now.scope))) {
        found.push_back({now.line, variable_name(now.pending), trimmed(now.pending)});
      }
      now.pending.clear();
    } else if (c == ':' && now.scope == Scope::Class && is_access(trimmed(now.pending))) {
      now.pending.clear();
    } else {
      now.pending += c;
    }
  }
  return found;
}

}  // namespace deltron::layering
