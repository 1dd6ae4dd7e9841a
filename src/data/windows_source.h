// packing: windows. Megatron's GPT samples: the shuffled documents form one stream that is cut into windows of seq_length.
// Segments start at every EOD token (and at document borders without one), so that documents stay apart.
#pragma once

#include <memory>
#include <string>

#include "src/data/batch.h"
#include "src/data/index_cache.h"

namespace deltron {

class WindowsSource : public SampleSource {
 public:
  // Throws DataEmpty where the range is too small for one sample.
  WindowsSource(std::shared_ptr<const IndexedDataset> dataset, std::int32_t eod_id, const GptIndexRequest& request);
  std::int64_t num_samples() const override { return index_.num_samples(); }
  std::int64_t seq_length() const override { return seq_length_; }
  void read(std::int64_t sample, Sample& out) const override;
  std::string describe() const override;
  const CachedGptIndex& index() const { return index_; }

 private:
  std::shared_ptr<const IndexedDataset> dataset_;
  std::int32_t eod_id_;
  std::int64_t seq_length_;
  CachedGptIndex index_;
};

}  // namespace deltron
