// See evaluation_source.h.
#include "src/data/evaluation_source.h"

#include "src/base/check.h"
#include "src/base/error.h"

namespace deltron {

EvaluationSource::EvaluationSource(std::shared_ptr<const IndexedDataset> dataset, std::int32_t eod_id, const DocumentRange& range,
                                   std::int64_t seq_length, std::int64_t max_tokens)
    : reader_(std::move(dataset), eod_id), pieces_(reader_.cut(range, seq_length)) {
  if (pieces_.empty()) {
    throw Error(ErrorCode::DataEmpty, ErrorText{"nothing to evaluate on", reader_.dataset().prefix(),
                                                "documents " + std::to_string(range.begin) + " to " + std::to_string(range.end),
                                                "at least one document", "give more text or change data.split"});
  }
  std::int64_t tokens = 0;
  batch_begin_.push_back(0);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    if (tokens > 0 && tokens + pieces_[i].count > max_tokens) {
      batch_begin_.push_back(i);
      tokens = 0;
    }
    tokens += pieces_[i].count;
    predictions_ += pieces_[i].count;
  }
  batch_begin_.push_back(pieces_.size());
}

HostBatch EvaluationSource::batch(std::int64_t i) const {
  DELTRON_CHECK(i >= 0 && i < num_batches(), "evaluation batch ", i, " of ", num_batches());
  HostBatch batch;
  Sample sample;
  const std::size_t begin = batch_begin_[static_cast<std::size_t>(i)], end = batch_begin_[static_cast<std::size_t>(i) + 1];
  for (std::size_t window = begin; window < end; ++window) {
    sample.clear();
    reader_.append(pieces_[window], sample);
    append_sample(batch, static_cast<std::int64_t>(window), sample);
  }
  return batch;
}

}  // namespace deltron
