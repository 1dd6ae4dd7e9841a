// See document_reader.h.
#include "src/data/document_reader.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/signals.h"

namespace deltron {

DocumentReader::DocumentReader(std::shared_ptr<const IndexedDataset> dataset, std::int32_t eod_id)
    : dataset_(std::move(dataset)), eod_id_(eod_id) {}

bool DocumentReader::ends_with_eod(std::int64_t sequence) const {
  const std::int64_t length = dataset_->length(sequence);
  return eod_id_ >= 0 && length > 0 && dataset_->token(sequence, length - 1) == eod_id_;
}

std::int64_t DocumentReader::predictions(std::int64_t sequence) const {
  const std::int64_t length = dataset_->length(sequence);
  return ends_with_eod(sequence) ? length : std::max<std::int64_t>(length - 1, 0);
}

void DocumentReader::append(const DocumentPiece& piece, Sample& out) const {
  const std::size_t begin = out.tokens.size();
  const std::size_t count = static_cast<std::size_t>(piece.count);
  out.tokens.resize(begin + count);
  out.labels.resize(begin + count);
  if (ends_with_eod(piece.sequence)) {  // prediction i: token i-1 (EOD for i = 0) predicts token i
    dataset_->read(piece.sequence, piece.offset, piece.count, out.labels.data() + begin);
    out.tokens[begin] = piece.offset == 0 ? eod_id_ : dataset_->token(piece.sequence, piece.offset - 1);
    std::copy_n(out.labels.begin() + static_cast<std::ptrdiff_t>(begin), count - 1,
                out.tokens.begin() + static_cast<std::ptrdiff_t>(begin + 1));
  } else {  // prediction i: token i predicts token i+1
    dataset_->read(piece.sequence, piece.offset, piece.count, out.tokens.data() + begin);
    dataset_->read(piece.sequence, piece.offset + 1, piece.count, out.labels.data() + begin);
  }
  out.segment_ends.push_back(static_cast<std::int64_t>(out.tokens.size()));
}

std::vector<DocumentPiece> DocumentReader::cut(const DocumentRange& range, std::int64_t window) const {
  DELTRON_CHECK_GE(window, 1, "window");
  std::vector<DocumentPiece> pieces;
  for (std::int64_t sequence = range.begin; sequence < range.end; ++sequence) {
    if ((sequence & 0xffff) == 0) poll_stop("cutting documents into windows");
    const std::int64_t total = predictions(sequence);
    for (std::int64_t offset = 0; offset < total; offset += window) {
      pieces.push_back(
          DocumentPiece{sequence, static_cast<std::int32_t>(offset), static_cast<std::int32_t>(std::min(window, total - offset))});
    }
  }
  return pieces;
}

}  // namespace deltron
