// packing: documents. Bins of seq_length filled with whole documents: first fit, longest first; documents longer than a bin are
// cut into windows. The bins are shuffled anew each epoch; every prediction happens once an epoch. Endless.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/data/batch.h"
#include "src/data/document_reader.h"

namespace deltron {

// Bins as lists of item numbers; lengths are in (0, capacity]. First fit, longest first, earlier item first among equals.
std::vector<std::vector<std::int32_t>> pack_first_fit_decreasing(const std::vector<std::int32_t>& lengths, std::int32_t capacity);

class DocumentsSource : public SampleSource {
 public:
  DocumentsSource(std::shared_ptr<const IndexedDataset> dataset, std::int32_t eod_id, const DocumentRange& range,
                  std::int64_t seq_length, std::uint64_t seed);
  std::int64_t num_samples() const override { return kEndless; }
  std::int64_t samples_per_epoch() const { return static_cast<std::int64_t>(bins_.size()); }
  std::int64_t seq_length() const override { return seq_length_; }
  // Padding belongs to the bin's last document, with labels left out of the loss.
  void read(std::int64_t sample, Sample& out) const override;
  std::string describe() const override;
  double fill() const;  // share of token slots that hold a prediction

 private:
  std::shared_ptr<const std::vector<std::int32_t>> order(std::int64_t epoch) const;

  DocumentReader reader_;
  std::int64_t seq_length_;
  std::uint64_t seed_;
  std::vector<DocumentPiece> pieces_;
  std::vector<std::vector<std::int32_t>> bins_;
  mutable std::mutex mutex_;  // guards the two orders kept: reads around an epoch border touch both
  mutable std::int64_t kept_epoch_[2] = {-1, -1};
  mutable std::shared_ptr<const std::vector<std::int32_t>> kept_order_[2];
};

}  // namespace deltron
