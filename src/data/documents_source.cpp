// See documents_source.h.
#include "src/data/documents_source.h"

#include <algorithm>
#include <numeric>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/human.h"
#include "src/base/rng.h"
#include "src/base/signals.h"

namespace deltron {

std::vector<std::vector<std::int32_t>> pack_first_fit_decreasing(const std::vector<std::int32_t>& lengths, std::int32_t capacity) {
  std::vector<std::int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)];
  });
  // A tournament tree over the free space of all bins (unopened ones are empty) finds the first that fits in log time.
  std::size_t leaves = 1;
  while (leaves < lengths.size()) leaves *= 2;
  std::vector<std::int32_t> space(2 * leaves, capacity);
  std::vector<std::vector<std::int32_t>> bins;
  for (std::size_t k = 0; k < order.size(); ++k) {
    if ((k & 0xffff) == 0) poll_stop("packing documents");
    const std::int32_t length = lengths[static_cast<std::size_t>(order[k])];
    DELTRON_CHECK(length > 0 && length <= capacity, "item of ", length, " for bins of ", capacity);
    std::size_t node = 1;
    while (node < leaves) {
      node *= 2;
      if (space[node] < length) ++node;
    }
    const std::size_t bin = node - leaves;
    if (bin == bins.size()) bins.emplace_back();
    DELTRON_CHECK_LT(bin, bins.size(), "first fit skipped a bin");
    bins[bin].push_back(order[k]);
    space[node] -= length;
    for (node /= 2; node >= 1; node /= 2) space[node] = std::max(space[2 * node], space[2 * node + 1]);
  }
  return bins;
}

DocumentsSource::DocumentsSource(std::shared_ptr<const IndexedDataset> dataset, std::int32_t eod_id, const DocumentRange& range,
                                 std::int64_t seq_length, std::uint64_t seed)
    : reader_(std::move(dataset), eod_id), seq_length_(seq_length), seed_(seed), pieces_(reader_.cut(range, seq_length)) {
  if (pieces_.empty()) {
    throw Error(ErrorCode::DataEmpty, ErrorText{"no document to pack", reader_.dataset().prefix(),
                                                "documents " + std::to_string(range.begin) + " to " + std::to_string(range.end),
                                                "at least one document with two tokens", "give more text or change data.split"});
  }
  std::vector<std::int32_t> lengths;
  lengths.reserve(pieces_.size());
  for (const DocumentPiece& piece : pieces_) lengths.push_back(piece.count);
  bins_ = pack_first_fit_decreasing(lengths, static_cast<std::int32_t>(seq_length));
}

std::shared_ptr<const std::vector<std::int32_t>> DocumentsSource::order(std::int64_t epoch) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::size_t slot = static_cast<std::size_t>(epoch % 2);
  if (kept_epoch_[slot] != epoch) {
    auto fresh = std::make_shared<std::vector<std::int32_t>>(bins_.size());
    std::iota(fresh->begin(), fresh->end(), 0);
    RngStream random({seed_, 0, kRngSiteData}, static_cast<std::uint64_t>(epoch));
    for (std::size_t i = fresh->size(); i > 1; --i) std::swap((*fresh)[i - 1], (*fresh)[random.below(i)]);
    kept_order_[slot] = std::move(fresh);
    kept_epoch_[slot] = epoch;
  }
  return kept_order_[slot];
}

void DocumentsSource::read(std::int64_t sample, Sample& out) const {
  DELTRON_CHECK_GE(sample, 0, "sample number");
  out.clear();
  const auto shuffled = order(sample / samples_per_epoch());
  const std::size_t place = static_cast<std::size_t>(sample % samples_per_epoch());
  for (const std::int32_t piece : bins_[static_cast<std::size_t>((*shuffled)[place])]) {
    reader_.append(pieces_[static_cast<std::size_t>(piece)], out);
  }
  out.tokens.resize(static_cast<std::size_t>(seq_length_), std::max(reader_.eod_id(), 0));
  out.labels.resize(static_cast<std::size_t>(seq_length_), kIgnoreLabel);
  out.segment_ends.back() = seq_length_;
}

double DocumentsSource::fill() const {
  std::int64_t predictions = 0;
  for (const DocumentPiece& piece : pieces_) predictions += piece.count;
  return static_cast<double>(predictions) / static_cast<double>(samples_per_epoch() * seq_length_);
}

std::string DocumentsSource::describe() const {
  return "documents of " + reader_.dataset().prefix() + ", " + thousands(samples_per_epoch()) + " bins of " +
         std::to_string(seq_length_) + " an epoch, " + fixed(100 * fill(), 1) + " % filled";
}

}  // namespace deltron
