// Documents as the model is trained and judged on them: the end-of-document token stands BEFORE its text as the first token of
// the segment and is the last label, so that every character and the end are predicted exactly once (docs/data_format.md).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/data/batch.h"
#include "src/data/indexed_dataset.h"
#include "src/data/split.h"

namespace deltron {

// A run of predictions inside one document.
struct DocumentPiece {
  std::int64_t sequence = 0;
  std::int32_t offset = 0;  // first prediction
  std::int32_t count = 0;   // predictions = tokens fed
};

class DocumentReader {
 public:
  // `eod_id` < 0: the data has no end-of-document token.
  DocumentReader(std::shared_ptr<const IndexedDataset> dataset, std::int32_t eod_id);
  const IndexedDataset& dataset() const { return *dataset_; }
  std::int32_t eod_id() const { return eod_id_; }
  // Stored text ends with EOD.
  bool ends_with_eod(std::int64_t sequence) const;
  // With EOD: text + 1 (tokens [EOD c1 .. cn], labels [c1 .. cn EOD]). Without: text - 1 (tokens [c1 .. cn-1], labels [c2 .. cn]).
  std::int64_t predictions(std::int64_t sequence) const;
  // Appends one segment.
  void append(const DocumentPiece& piece, Sample& out) const;
  // The documents of a range, each cut into pieces of at most `window` predictions, in order.
  std::vector<DocumentPiece> cut(const DocumentRange& range, std::int64_t window) const;

 private:
  std::shared_ptr<const IndexedDataset> dataset_;
  std::int32_t eod_id_;
};

}  // namespace deltron
