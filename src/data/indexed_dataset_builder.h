// Writes Megatron indexed datasets: both files appear complete and under their final names, or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/data/dataset_meta.h"

namespace deltron {

class IndexedDatasetBuilder {
 public:
  // uint16 tokens below 65,500 ids, else int32. `eod_id` >= 0 is appended to every document.
  IndexedDatasetBuilder(const std::string& prefix, std::int64_t vocab_size, std::int32_t eod_id = -1);
  ~IndexedDatasetBuilder();  // removes unfinished files
  IndexedDatasetBuilder(const IndexedDatasetBuilder&) = delete;
  IndexedDatasetBuilder& operator=(const IndexedDatasetBuilder&) = delete;

  // One document of one sequence. Throws TokenOutOfVocabulary for ids outside [0, vocab_size).
  void add_document(const std::vector<std::int32_t>& tokens);
  // Flushes, renames, and writes the side file: counts, ids and hashes are filled in here, the rest is the caller's.
  DatasetMeta finish(DatasetMeta meta);

  std::int64_t documents() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t tokens() const { return tokens_; }
  TokenType token_type() const { return type_; }

 private:
  void append(const std::int32_t* tokens, std::size_t count);

  std::string prefix_;
  std::int64_t vocab_size_;
  std::int32_t eod_id_;
  TokenType type_;
  std::string temporary_bin_;
  std::string temporary_idx_;
  std::unique_ptr<FileWriter> bin_;
  StreamingHash bin_hash_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::uint16_t> narrow_;
  std::int64_t tokens_ = 0;
  TokenRange range_;
  bool finished_ = false;
};

}  // namespace deltron
