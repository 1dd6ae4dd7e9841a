// Shared by the data tests: a scratch folder, small data sets, and the code and message of an expected error.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "src/base/error.h"
#include "src/base/file.h"
#include "src/data/indexed_dataset_builder.h"

namespace deltron {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = ::testing::TempDir() + "deltron_data_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no scratch folder: " + name);
    path_ = name;
  }
  ~ScratchFolder() { remove_tree(path_); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string file(const std::string& name) const { return join_path(path_, name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_plain(const std::string& path, std::string_view content) {
  FileWriter writer(path);
  writer.write(content);
  writer.close(false);
}

inline std::shared_ptr<const IndexedDataset> build_dataset(const std::string& prefix,
                                                           const std::vector<std::vector<std::int32_t>>& documents,
                                                           std::int64_t vocab_size = 257, std::int32_t eod_id = -1) {
  IndexedDatasetBuilder builder(prefix, vocab_size, eod_id);
  for (const auto& document : documents) builder.add_document(document);
  builder.finish(DatasetMeta{});
  return std::make_shared<const IndexedDataset>(prefix);
}

// Documents of the given lengths; every token differs: document * 1000 + place.
inline std::vector<std::vector<std::int32_t>> numbered_documents(const std::vector<int>& lengths) {
  std::vector<std::vector<std::int32_t>> documents;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    documents.emplace_back();
    for (int i = 0; i < lengths[d]; ++i) documents.back().push_back(static_cast<std::int32_t>(d) * 1000 + i);
  }
  return documents;
}

inline void expect_error(ErrorCode code, const std::string& part, const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error; expected one with: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "'" << part << "' is not in: " << error.what();
  }
}

}  // namespace deltron
