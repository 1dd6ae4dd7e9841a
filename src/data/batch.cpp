// See batch.h.
#include "src/data/batch.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/error.h"

namespace deltron {

std::int64_t HostBatch::valid_tokens() const {
  return std::count_if(labels.begin(), labels.end(), [](std::int32_t label) { return label != kIgnoreLabel; });
}

void Sample::clear() {
  tokens.clear();
  labels.clear();
  segment_ends.clear();
}

void append_sample(HostBatch& batch, std::int64_t sample_id, const Sample& sample) {
  const std::int64_t base = batch.num_tokens();
  const std::int64_t count = static_cast<std::int64_t>(sample.tokens.size());
  DELTRON_CHECK_EQ(sample.labels.size(), sample.tokens.size(), "sample ", sample_id);
  DELTRON_CHECK(!sample.segment_ends.empty() && sample.segment_ends.back() == count, "segments of sample ", sample_id);
  if (batch.cu_seqlens.empty()) batch.cu_seqlens.push_back(0);
  batch.tokens.insert(batch.tokens.end(), sample.tokens.begin(), sample.tokens.end());
  batch.labels.insert(batch.labels.end(), sample.labels.begin(), sample.labels.end());
  batch.sample_ids.push_back(sample_id);
  batch.token_sample.insert(batch.token_sample.end(), static_cast<std::size_t>(count), sample_id);
  for (std::int64_t i = 0; i < count; ++i) batch.token_offset.push_back(static_cast<std::int32_t>(i));
  std::int64_t start = 0;
  for (const std::int64_t end : sample.segment_ends) {
    DELTRON_CHECK_LT(start, end, "segments of sample ", sample_id);
    for (std::int64_t i = start; i < end; ++i) batch.positions.push_back(static_cast<std::int32_t>(i - start));
    batch.cu_seqlens.push_back(base + end);
    start = end;
  }
}

BatchLoader::BatchLoader(std::shared_ptr<const SampleSource> source, std::int64_t micro_batch_size)
    : source_(std::move(source)), micro_batch_size_(micro_batch_size) {
  DELTRON_CHECK(source_ != nullptr, "batch loader without a source");
  DELTRON_CHECK_GE(micro_batch_size_, 1, "micro-batch size");
}

HostBatch BatchLoader::batch(std::int64_t first_sample) const {
  DELTRON_CHECK_GE(first_sample, 0, "sample number");
  const std::int64_t available = source_->num_samples();
  if (available != SampleSource::kEndless && first_sample + micro_batch_size_ > available) {
    throw Error(ErrorCode::DataExhausted,
                ErrorText{"the data source has too few samples", source_->describe(),
                          "samples " + std::to_string(first_sample) + " to " +
                              std::to_string(first_sample + micro_batch_size_ - 1) + " of " + std::to_string(available),
                          "a source holds at least the samples it was built for",
                          "build it for more samples (training.train_iters) or ask for fewer (training.eval_iters)"});
  }
  HostBatch batch;
  const std::size_t tokens = static_cast<std::size_t>(micro_batch_size_ * source_->seq_length());
  batch.tokens.reserve(tokens);
  batch.labels.reserve(tokens);
  batch.positions.reserve(tokens);
  batch.token_sample.reserve(tokens);
  batch.token_offset.reserve(tokens);
  Sample sample;
  for (std::int64_t i = 0; i < micro_batch_size_; ++i) {
    sample.clear();
    source_->read(first_sample + i, sample);
    append_sample(batch, first_sample + i, sample);
  }
  return batch;
}

}  // namespace deltron
