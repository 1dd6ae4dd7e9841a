// See windows_source.h.
#include "src/data/windows_source.h"

#include <algorithm>
#include <vector>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/human.h"

namespace deltron {

WindowsSource::WindowsSource(std::shared_ptr<const IndexedDataset> dataset, std::int32_t eod_id, const GptIndexRequest& request)
    : dataset_(std::move(dataset)),
      eod_id_(eod_id),
      seq_length_(request.seq_length),
      index_(CachedGptIndex::open(*dataset_, request)) {
  if (index_.num_samples() > 0) return;
  std::int64_t tokens = 0;
  for (std::int64_t i = request.range.begin; i < request.range.end; ++i) tokens += dataset_->length(i);
  throw Error(ErrorCode::DataEmpty,
              ErrorText{"too few tokens for a single sample", dataset_->prefix(),
                        thousands(tokens) + " tokens in documents " + std::to_string(request.range.begin) + " to " +
                            std::to_string(request.range.end) + ", seq_length " + std::to_string(seq_length_),
                        "a sample takes seq_length + 1 tokens", "give more text, change data.split or lower training.seq_length"});
}

void WindowsSource::read(std::int64_t sample, Sample& out) const {
  DELTRON_CHECK(sample >= 0 && sample < num_samples(), "sample ", sample, " of ", describe());
  const std::int64_t window = index_.shuffled(sample);
  std::int64_t position = index_.start_position(window);
  std::int64_t offset = index_.start_offset(window);
  std::vector<std::int32_t> stream(static_cast<std::size_t>(seq_length_ + 1));
  std::vector<bool> border(stream.size(), false);  // a document starts here and no EOD announces it
  std::int64_t filled = 0;
  while (filled <= seq_length_) {
    DELTRON_CHECK_LT(position, index_.num_positions(), "sample ", sample, " of ", describe());
    const std::int64_t document = index_.document(position);
    const std::int64_t count = std::min(dataset_->length(document) - offset, seq_length_ + 1 - filled);
    dataset_->read(document, offset, count, stream.data() + filled);
    if (count > 0 && offset == 0 && filled > 0) {
      const std::int32_t before = stream[static_cast<std::size_t>(filled - 1)];
      border[static_cast<std::size_t>(filled)] = eod_id_ < 0 || before != eod_id_;
    }
    filled += count;
    ++position;
    offset = 0;
  }
  out.tokens.assign(stream.begin(), stream.end() - 1);
  out.labels.assign(stream.begin() + 1, stream.end());
  out.segment_ends.clear();
  for (std::size_t i = 0; i < out.tokens.size(); ++i) {
    if (i > 0 && (border[i] || (eod_id_ >= 0 && stream[i] == eod_id_))) out.segment_ends.push_back(static_cast<std::int64_t>(i));
    if (border[i + 1]) out.labels[i] = kIgnoreLabel;
  }
  out.segment_ends.push_back(seq_length_);
}

std::string WindowsSource::describe() const {
  return "windows of " + dataset_->prefix() + ", " + thousands(index_.num_samples()) + " samples of " + std::to_string(seq_length_);
}

}  // namespace deltron
