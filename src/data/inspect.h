// `deltron data inspect`: what a token file holds, its splits, and the text of a split as a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/data/dataset_meta.h"
#include "src/data/split_text.h"

namespace deltron {

struct DatasetInspectOptions {
  std::string prefix;
  std::string split = "90,10,0";
  std::string dump_split;      // train | valid | test; empty: no dump
  std::string dump_path;       // file that receives the split's text
  std::int64_t documents = 1;  // how many documents to show ...
  std::int64_t first_document = 0;
  std::int64_t characters = 200;  // ... and how much of each
  bool verify = false;            // hash the .bin against the side file
};

struct DatasetReport {
  struct SplitEntry {
    std::string name;
    DocumentRange documents;
    SplitText text;  // bytes and characters are 0 where no tokenizer is known
  };
  struct Preview {
    std::int64_t document = 0;
    std::int64_t tokens = 0;
    std::string text;  // decoded, or the ids where no tokenizer is known
  };
  std::string prefix;
  TokenType token_type = TokenType::U16;
  DatasetMeta meta;
  std::int64_t sequences = 0;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t bin_bytes = 0;
  std::int64_t idx_bytes = 0;
  std::int64_t shortest = 0, median = 0, longest = 0;
  std::int64_t ending_with_eod = 0;
  std::vector<SplitEntry> splits;
  std::vector<Preview> previews;
  bool verified = false;
  std::string dumped_to;
};

// Throws DataFileInvalid where `verify` finds another hash.
DatasetReport inspect_data(const DatasetInspectOptions& options);
std::string to_text(const DatasetReport& report);
std::string to_json(const DatasetReport& report);

}  // namespace deltron
