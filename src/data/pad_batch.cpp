// See pad_batch.h.
#include "src/data/pad_batch.h"

#include "src/base/check.h"

namespace deltron {

void pad_documents(HostBatch& batch, std::int64_t document_multiple, std::int64_t total_multiple) {
  DELTRON_CHECK(document_multiple >= 1 && total_multiple >= 1, "multiples ", document_multiple, " and ", total_multiple);
  const auto rounded = [](std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; };
  std::vector<std::int64_t> lengths;
  std::int64_t total = 0;
  bool fits = true;
  for (std::size_t n = 0; n + 1 < batch.cu_seqlens.size(); ++n) {
    const std::int64_t length = batch.cu_seqlens[n + 1] - batch.cu_seqlens[n];
    lengths.push_back(rounded(length, document_multiple));
    total += lengths.back();
    fits = fits && length > 0 && length == lengths.back();
  }
  if (lengths.empty() || total == 0 || (fits && total % total_multiple == 0)) return;
  std::size_t last = lengths.size() - 1;
  while (lengths[last] == 0) --last;
  while (total % total_multiple != 0) lengths[last] += document_multiple, total += document_multiple;

  HostBatch padded;
  padded.sample_ids = batch.sample_ids;
  padded.cu_seqlens = {0};
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    const std::int64_t begin = batch.cu_seqlens[n], end = batch.cu_seqlens[n + 1];
    if (begin == end) continue;
    const auto copy = [&](const auto& from, auto& to) { to.insert(to.end(), from.begin() + begin, from.begin() + end); };
    copy(batch.tokens, padded.tokens);
    copy(batch.labels, padded.labels);
    copy(batch.positions, padded.positions);
    copy(batch.token_sample, padded.token_sample);
    copy(batch.token_offset, padded.token_offset);
    // Offsets of the last token of this sample are the largest; documents of one sample share them, so padding goes far beyond.
    constexpr std::int32_t kPaddingOffsets = 1 << 30;
    for (std::int64_t i = end - begin; i < lengths[n]; ++i) {
      padded.tokens.push_back(0);
      padded.labels.push_back(kIgnoreLabel);
      padded.positions.push_back(padded.positions.back() + 1);
      padded.token_sample.push_back(batch.token_sample[static_cast<std::size_t>(end - 1)]);
      padded.token_offset.push_back(kPaddingOffsets + static_cast<std::int32_t>(begin + i));
    }
    padded.cu_seqlens.push_back(padded.num_tokens());
  }
  batch = std::move(padded);
}

}  // namespace deltron
