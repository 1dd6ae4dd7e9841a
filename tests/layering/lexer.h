// A lexical look at C++ sources for the layering tests: comments and literals blanked, include lines, mutable globals.
// It is a heuristic that needs no compiler; globals_test.cpp shows on samples what it catches. Knows nothing of layers.
#pragma once

#include <string>
#include <vector>

namespace deltron::layering {

// The text with comments, string and character literals replaced by blanks (quotes and line breaks stay, as do include paths).
std::string blank_comments_and_literals(const std::string& text);

struct Include {
  int line = 0;
  bool quoted = false;  // "path" rather than <path>
  std::string path;
};
std::vector<Include> include_lines(const std::string& text);

struct Global {
  int line = 0;
  std::string name;
  std::string statement;
};
// Variables of static or thread storage that are not const: at namespace scope, in classes, in functions.
std::vector<Global> mutable_globals(const std::string& text);

}  // namespace deltron::layering
