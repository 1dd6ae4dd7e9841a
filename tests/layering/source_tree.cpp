// See source_tree.h.
#include "tests/layering/source_tree.h"

#include <algorithm>
#include <filesystem>

#include "src/base/file.h"

namespace deltron::layering {
namespace {

bool ends_with(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

}  // namespace

std::vector<SourceFile> files_below(const std::vector<std::string>& folders, const std::vector<std::string>& endings) {
  const std::filesystem::path root(DELTRON_SOURCE_DIR);
  std::vector<SourceFile> found;
  for (const std::string& folder : folders) {
    if (!directory_exists((root / folder).string())) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string path = std::filesystem::relative(entry.path(), root).generic_string();
      const bool wanted =
          std::any_of(endings.begin(), endings.end(), [&](const std::string& ending) { return ends_with(path, ending); });
      if (entry.is_regular_file() && wanted) found.push_back({path, read_file(entry.path().string())});
    }
  }
  std::sort(found.begin(), found.end(), [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return found;
}

const std::vector<SourceFile>& program_files() {
  static const std::vector<SourceFile> files =
      files_below({"src", "kernels", "distributed", "tools"}, {".h", ".cpp", ".cu", ".cuh", ".def", ".inc"});
  return files;
}

std::string layer_of(const std::string& path) {
  const std::size_t first = path.find('/');
  if (first == std::string::npos) return "";
  const std::string top = path.substr(0, first);
  if (top == "kernels" || top == "distributed" || top == "tools") return top;
  if (top != "src") return "";
  const std::size_t second = path.find('/', first + 1);
  return second == std::string::npos ? "" : path.substr(0, second);
}

}  // namespace deltron::layering
