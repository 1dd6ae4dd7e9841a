// The text of a split: counted (the divisor of bits per character) and written to a file (what compressors are given).
// Both are the decoded documents one after the other, without end-of-document tokens: the same characters that a model is charged
// for.
#pragma once

#include <cstdint>
#include <string>

#include "src/data/indexed_dataset.h"
#include "src/data/split.h"
#include "src/data/tokenizer.h"

namespace deltron {

struct SplitText {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;  // as stored, EOD included
  std::int64_t bytes = 0;
  std::int64_t characters = 0;
};

SplitText count_split_text(const IndexedDataset& dataset, const DocumentRange& range, const Tokenizer& tokenizer);
// Writes the text to `path` (temporary file, rename) and counts it.
SplitText dump_split_text(const IndexedDataset& dataset, const DocumentRange& range, const Tokenizer& tokenizer,
                          const std::string& path);

}  // namespace deltron
