// The arrows between layers, read off the include lines, against the table of docs/architecture.md. Also: which file may know which
// library, and that no .cu file reaches one that nvcc cannot compile.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/base/file.h"
#include "tests/layering/lexer.h"
#include "tests/layering/source_tree.h"

namespace deltron::layering {
namespace {

// layer -> layers whose headers it may include directly or through others (its own always). This is the table.
const std::map<std::string, std::set<std::string>>& allowed() {
  static const std::map<std::string, std::set<std::string>> table = [] {
    std::map<std::string, std::set<std::string>> arrows = {
        {"src/base", {}},
        {"kernels", {"src/base"}},
        {"src/config", {"src/base"}},
        {"src/tensor", {"kernels"}},
        {"src/autograd", {"src/tensor"}},
        {"distributed", {"src/autograd"}},
        {"src/nn", {"distributed", "src/config"}},
        {"src/model", {"src/nn"}},
        {"src/data", {"src/config"}},
        {"src/optim", {"distributed", "src/config"}},
        {"src/checkpoint", {"distributed", "src/config"}},
        {"src/train", {"src/model", "src/data", "src/optim", "src/checkpoint"}},
        {"tools", {"src/train"}},
    };
    for (std::size_t round = 0; round < arrows.size(); ++round) {
      for (auto& [layer, targets] : arrows) {
        std::set<std::string> wider = targets;
        for (const std::string& target : targets) wider.insert(arrows.at(target).begin(), arrows.at(target).end());
        targets = wider;
      }
    }
    arrows.at("src/train").erase("kernels");  // the training loop speaks to tensors, never to kernels
    return arrows;
  }();
  return table;
}

bool begins_with(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }

// Highway's own headers are quoted where its documentation quotes them (foreach_target.h is included once a target).
bool names_a_file_of_ours(const Include& include) { return include.quoted && !begins_with(include.path, "hwy/"); }

// One line per include that the table forbids.
std::vector<std::string> forbidden_arrows(const std::vector<SourceFile>& files) {
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    const std::string from = layer_of(file.path);
    for (const Include& include : include_lines(file.text)) {
      if (!names_a_file_of_ours(include)) continue;
      const std::string to = layer_of(include.path);
      const std::string place = file.path + ":" + std::to_string(include.line) + " includes " + include.path;
      if (allowed().count(from) == 0) {
        found.push_back(file.path + " lies in no layer of the table");
      } else if (to.empty()) {
        found.push_back(place + ": write the path from the repository's root");
      } else if (to != from && allowed().at(from).count(to) == 0) {
        found.push_back(place + ": " + from + " may not know " + to);
      }
    }
  }
  return found;
}

TEST(Layering, include_lines_follow_the_table) {
  ASSERT_GT(program_files().size(), 20u);
  for (const std::string& fault : forbidden_arrows(program_files())) ADD_FAILURE() << fault;
}

TEST(Layering, a_forbidden_arrow_is_seen) {
  EXPECT_EQ(forbidden_arrows({{"src/base/a.cpp", "#include \"src/tensor/tensor.h\"\n"}}).size(), 1u);
  EXPECT_EQ(forbidden_arrows({{"src/config/a.h", "#include \"src/tensor/tensor.h\"\n"}}).size(), 1u);
  EXPECT_EQ(forbidden_arrows({{"kernels/cpu/a.cpp", "  #  include \"src/nn/linear.h\"\n"}}).size(), 1u);
  EXPECT_EQ(forbidden_arrows({{"src/train/a.cpp", "#include \"kernels/matmul.h\"\n"}}).size(), 1u);
  EXPECT_EQ(forbidden_arrows({{"src/optim/a.cpp", "#include \"src/train/loop.h\"\n"}}).size(), 1u);
  EXPECT_EQ(forbidden_arrows({{"src/tensor/a.cpp", "#include \"tensor.h\"\n"}}).size(), 1u);
  EXPECT_EQ(forbidden_arrows({{"src/strange/a.cpp", "#include \"src/base/error.h\"\n"}}).size(), 1u);
}

TEST(Layering, an_allowed_arrow_is_accepted) {
  EXPECT_TRUE(forbidden_arrows({{"tools/a.cpp", "#include \"src/base/error.h\"\n#include \"kernels/matmul.h\"\n"}}).empty());
  EXPECT_TRUE(forbidden_arrows({{"src/nn/a.cpp", "#include \"src/config/config.h\"\n#include \"src/tensor/tensor.h\"\n"}}).empty());
  EXPECT_TRUE(forbidden_arrows({{"src/base/a.cpp", "// #include \"src/tensor/tensor.h\"\n#include <vector>\n"}}).empty());
}

TEST(Layering, quoted_includes_exist) {
  const std::string generated = join_path(DELTRON_BINARY_DIR, "generated");
  for (const SourceFile& file : program_files()) {
    for (const Include& include : include_lines(file.text)) {
      if (!names_a_file_of_ours(include)) continue;
      EXPECT_TRUE(file_exists(join_path(DELTRON_SOURCE_DIR, include.path)) || file_exists(join_path(generated, include.path)))
          << file.path << ":" << include.line << ": " << include.path;
    }
  }
}

TEST(Layering, formatting_and_command_line_libraries_stay_in_their_rooms) {
  for (const SourceFile& file : program_files()) {
    for (const Include& include : include_lines(file.text)) {
      const std::string place = file.path + ":" + std::to_string(include.line) + ": " + include.path;
      const bool formatting = begins_with(include.path, "fmt/") || begins_with(include.path, "spdlog/");
      EXPECT_TRUE(!formatting || file.path == "src/base/log.cpp") << place;
      EXPECT_TRUE(!begins_with(include.path, "CLI/") || layer_of(file.path) == "tools") << place;
    }
  }
}

// Every include path that compiling `start` would read, following quoted includes through `files`.
std::set<std::string> reachable(const std::string& start, const std::map<std::string, std::string>& files) {
  std::set<std::string> seen;
  std::vector<std::string> waiting = {start};
  while (!waiting.empty()) {
    const std::string path = waiting.back();
    waiting.pop_back();
    const auto file = files.find(path);
    if (!seen.insert(path).second || file == files.end()) continue;
    for (const Include& include : include_lines(file->second)) waiting.push_back(include.path);
  }
  return seen;
}

bool reaches_what_nvcc_cannot_compile(const std::string& start, const std::map<std::string, std::string>& files) {
  const std::set<std::string> paths = reachable(start, files);
  return std::any_of(paths.begin(), paths.end(), [](const std::string& path) {
    return begins_with(path, "fmt/") || begins_with(path, "spdlog/") || begins_with(path, "CLI/");
  });
}

TEST(Layering, cuda_sources_never_reach_fmt_or_spdlog) {
  std::map<std::string, std::string> files;
  for (const SourceFile& file : program_files()) files[file.path] = file.text;
  for (const auto& entry : files) {
    const bool cuda = entry.first.size() > 3 && entry.first.compare(entry.first.size() - 3, 3, ".cu") == 0;
    EXPECT_FALSE(cuda && reaches_what_nvcc_cannot_compile(entry.first, files)) << entry.first;
  }
  files["kernels/cuda/sample.cu"] = "#include \"kernels/sample.h\"\n";
  files["kernels/sample.h"] = "#include \"src/base/sample.h\"\n";
  files["src/base/sample.h"] = "#include <spdlog/spdlog.h>\n";
  EXPECT_TRUE(reaches_what_nvcc_cannot_compile("kernels/cuda/sample.cu", files));
}

}  // namespace
}  // namespace deltron::layering
