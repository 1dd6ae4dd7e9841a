// The rules of a readable tree: files of one job (at most 600 lines), an opening comment in each, nothing unfinished, nothing that
// only works on one machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "tests/layering/source_tree.h"

namespace deltron::layering {
namespace {

constexpr std::ptrdiff_t kMostLines = 600;

std::vector<SourceFile> cpp_files() {
  return files_below({"src", "kernels", "distributed", "tools", "tests"}, {".h", ".cpp", ".cu", ".cuh", ".def", ".inc"});
}

std::vector<SourceFile> text_files() {
  return files_below({"src", "kernels", "distributed", "tools", "tests", "cmake", "scripts", "configs", "docs"},
                     {".h", ".cpp", ".cu", ".cuh", ".def", ".inc", ".in", ".txt", ".cmake", ".sh", ".py", ".yaml", ".md"});
}

// The first line, or the second below a script's interpreter line, is a comment with words in it.
bool opens_with_comment(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  if (line.compare(0, 2, "#!") == 0) std::getline(lines, line);
  const bool comment = line.compare(0, 2, "//") == 0 || line.compare(0, 2, "# ") == 0 || line.compare(0, 2, "/*") == 0;
  return comment && line.size() > 12;
}

// Words that mark unfinished work; assembled here so that this file does not hold them.
std::vector<std::string> unfinished_words() {
  return {std::string("TO") + "DO", std::string("FIX") + "ME", std::string("XX") + "X:"};
}

// Folders that exist on one person's machine only.
std::vector<std::string> private_folders() {
  std::vector<std::string> folders;
  for (const char* name : {"home", "Users", "root", "work"}) folders.push_back("/" + std::string(name) + "/");
  return folders;
}

// Line of the first place where `word` stands as a word of its own (an absolute path: not inside a longer path); 0 if none.
std::ptrdiff_t line_with(const std::string& text, const std::string& word) {
  const auto joins = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '}' || c == '-';
  };
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    if (at > 0 && joins(text[at - 1])) continue;
    return std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1;
  }
  return 0;
}

TEST(Style, no_file_is_longer_than_600_lines) {
  for (const SourceFile& file : cpp_files())
    EXPECT_LE(std::count(file.text.begin(), file.text.end(), '\n'), kMostLines) << file.path;
}

TEST(Style, every_source_file_opens_with_a_comment) {
  for (const SourceFile& file : cpp_files()) EXPECT_TRUE(opens_with_comment(file.text)) << file.path;
  for (const SourceFile& file : files_below({"cmake", "scripts", "tools"}, {".cmake", ".sh", ".py"})) {
    EXPECT_TRUE(opens_with_comment(file.text)) << file.path;
  }
  EXPECT_FALSE(opens_with_comment("#pragma once\n"));
  EXPECT_FALSE(opens_with_comment("//\n#pragma once\n"));
}

TEST(Style, nothing_is_marked_as_unfinished) {
  ASSERT_GT(text_files().size(), 30u);
  for (const SourceFile& file : text_files()) {
    for (const std::string& word : unfinished_words()) EXPECT_EQ(line_with(file.text, word), 0) << file.path << " holds " << word;
  }
  EXPECT_EQ(line_with("int a;\n// " + unfinished_words()[0] + ": more", unfinished_words()[0]), 2);
}

TEST(Style, no_path_of_one_machine_is_written_down) {
  for (const SourceFile& file : text_files()) {
    for (const std::string& folder : private_folders())
      EXPECT_EQ(line_with(file.text, folder), 0) << file.path << " holds " << folder;
  }
  const std::string home = private_folders()[0];
  EXPECT_EQ(line_with("open(\"" + home + "me/a\")", home), 1);
  EXPECT_EQ(line_with("build" + home + "x", home), 0) << "part of a relative path";
}

}  // namespace
}  // namespace deltron::layering
