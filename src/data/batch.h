// Micro-batches and sample sources as plain host data. Owns the form in which training data reaches the model;
// knows nothing of tensors, ranks or models.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace deltron {

// Label of a token that is left out of the loss.
constexpr std::int32_t kIgnoreLabel = -1;

// One micro-batch, flat: T = all tokens of its B samples, one sample after the other.
struct HostBatch {
  std::vector<std::int32_t> tokens;        // [T]
  std::vector<std::int32_t> labels;        // [T] what each token has to predict; kIgnoreLabel where masked out of the loss
  std::vector<std::int64_t> cu_seqlens;    // [N+1] document segments: starts at 0, non-decreasing, ends at T
  std::vector<std::int32_t> positions;     // [T] position inside the document segment
  std::vector<std::int64_t> sample_ids;    // [B] global sample numbers (for logs and error reports)
  std::vector<std::int64_t> token_sample;  // [T] address of random decisions: sample number ...
  std::vector<std::int32_t> token_offset;  // [T] ... and offset in the sample

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t num_segments() const { return cu_seqlens.empty() ? 0 : static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
  // Labels that count in the loss.
  std::int64_t valid_tokens() const;
};

// One sample. Segments are the documents (or pieces of documents) that must not see each other.
struct Sample {
  std::vector<std::int32_t> tokens;        // [T]
  std::vector<std::int32_t> labels;        // [T]
  std::vector<std::int64_t> segment_ends;  // [N] ascending; the last one is T
  void clear();
};

// Where samples come from. Reading is a pure function of the sample number, and may be called from several threads.
class SampleSource {
 public:
  static constexpr std::int64_t kEndless = -1;
  virtual ~SampleSource() = default;
  // Number of samples, or kEndless.
  virtual std::int64_t num_samples() const = 0;
  // Tokens of every sample.
  virtual std::int64_t seq_length() const = 0;
  virtual void read(std::int64_t sample, Sample& out) const = 0;
  // One line for the log.
  virtual std::string describe() const = 0;
};

// Appends one sample to a batch.
void append_sample(HostBatch& batch, std::int64_t sample_id, const Sample& sample);

// A source and a micro-batch size. batch() is a pure function of the global sample number, so that resuming needs nothing but
// the number of consumed samples: data-parallel rank r of R reads micro-batch m at consumed + (m*R + r) * micro_batch_size.
class BatchLoader {
 public:
  BatchLoader(std::shared_ptr<const SampleSource> source, std::int64_t micro_batch_size);
  // Samples first_sample ... first_sample + micro_batch_size - 1. Throws DataExhausted past the end of the source.
  HostBatch batch(std::int64_t first_sample) const;
  const SampleSource& source() const { return *source_; }
  std::int64_t micro_batch_size() const { return micro_batch_size_; }

 private:
  std::shared_ptr<const SampleSource> source_;
  std::int64_t micro_batch_size_;
};

}  // namespace deltron
