// The files of this repository as the layering tests read them, each with the layer that its folder belongs to.
#pragma once

#include <string>
#include <vector>

namespace deltron::layering {

struct SourceFile {
  std::string path;  // relative to the root, "/" between folders
  std::string text;
};

// Files below the given folders of the source tree whose names end in one of the endings, sorted by path. Folders that do not
// exist count as empty.
std::vector<SourceFile> files_below(const std::vector<std::string>& folders, const std::vector<std::string>& endings);

// Every C++ and CUDA file of the program itself: src, kernels, distributed, tools.
const std::vector<SourceFile>& program_files();

// "src/base", "kernels", ... ; empty for what is no layer.
std::string layer_of(const std::string& path);

}  // namespace deltron::layering
