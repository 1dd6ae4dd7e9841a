// Held-out data for judging a model: the documents of a split in order, each cut into consecutive windows, every label exactly
// once. Bits per character = sum of nats / ln 2 / characters of the split (count_split_text in split_text.h).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/data/batch.h"
#include "src/data/document_reader.h"

namespace deltron {

class EvaluationSource {
 public:
  // Windows of at most `seq_length` tokens (the context), collected into ragged batches of at most `max_tokens` tokens without
  // padding; a batch holds at least one window. sample_ids are window numbers.
  EvaluationSource(std::shared_ptr<const IndexedDataset> dataset, std::int32_t eod_id, const DocumentRange& range,
                   std::int64_t seq_length, std::int64_t max_tokens);
  std::int64_t num_batches() const { return static_cast<std::int64_t>(batch_begin_.size()) - 1; }
  std::int64_t num_windows() const { return static_cast<std::int64_t>(pieces_.size()); }
  // All labels: characters plus one end-of-document a document, for byte tokens.
  std::int64_t num_predictions() const { return predictions_; }
  HostBatch batch(std::int64_t i) const;
  // Document (sequence number) that a window comes from.
  std::int64_t document_of_window(std::int64_t window) const { return pieces_[static_cast<std::size_t>(window)].sequence; }

 private:
  DocumentReader reader_;
  std::vector<DocumentPiece> pieces_;
  std::vector<std::size_t> batch_begin_;  // [batches+1] window numbers
  std::int64_t predictions_ = 0;
};

}  // namespace deltron
