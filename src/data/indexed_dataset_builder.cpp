// See indexed_dataset_builder.h.
#include "src/data/indexed_dataset_builder.h"

#include <algorithm>
#include <limits>

#include <unistd.h>

#include "src/base/check.h"

namespace deltron {
namespace {

template <class T>
void put(FileWriter& writer, T value) {
  writer.write(&value, sizeof(value));
}

}  // namespace

IndexedDatasetBuilder::IndexedDatasetBuilder(const std::string& prefix, std::int64_t vocab_size, std::int32_t eod_id)
    : prefix_(dataset_prefix(prefix)), vocab_size_(vocab_size), eod_id_(eod_id), type_(token_type_for_vocabulary(vocab_size)) {
  DELTRON_CHECK(vocab_size > 0 && vocab_size <= std::numeric_limits<std::int32_t>::max(), "vocabulary of ", vocab_size);
  DELTRON_CHECK(eod_id < vocab_size, "end-of-document id ", eod_id, " outside a vocabulary of ", vocab_size);
  make_directories(parent_folder(prefix_));
  const std::string suffix = ".tmp." + std::to_string(getpid());
  temporary_bin_ = prefix_ + ".bin" + suffix;
  temporary_idx_ = prefix_ + ".idx" + suffix;
  bin_ = std::make_unique<FileWriter>(temporary_bin_);
}

IndexedDatasetBuilder::~IndexedDatasetBuilder() {
  if (finished_) return;
  bin_.reset();
  unlink(temporary_bin_.c_str());
  unlink(temporary_idx_.c_str());
}

void IndexedDatasetBuilder::append(const std::int32_t* tokens, std::size_t count) {
  const void* data = tokens;
  std::size_t bytes = count * sizeof(std::int32_t);
  if (type_ == TokenType::U16) {
    narrow_.assign(tokens, tokens + count);
    data = narrow_.data();
    bytes = count * sizeof(std::uint16_t);
  }
  bin_->write(data, bytes);
  bin_hash_.update(data, bytes);
  tokens_ += static_cast<std::int64_t>(count);
}

void IndexedDatasetBuilder::add_document(const std::vector<std::int32_t>& tokens) {
  DELTRON_CHECK(!finished_, "document added to a finished data set ", prefix_);
  const std::size_t total = tokens.size() + (eod_id_ >= 0 ? 1 : 0);
  if (total > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error(ErrorCode::DataFileInvalid,
                ErrorText{"document " + std::to_string(documents()) + " is too long", prefix_, std::to_string(total) + " tokens",
                          "the format stores lengths in 31 bits", "cut the document"});
  }
  auto widen_range = [this](std::int64_t low, std::int64_t high) {
    range_.smallest = range_.largest < 0 ? low : std::min(range_.smallest, low);
    range_.largest = std::max(range_.largest, high);
  };
  if (!tokens.empty()) {
    const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end());
    if (*low < 0 || *high >= vocab_size_) {
      throw Error(
          ErrorCode::TokenOutOfVocabulary,
          ErrorText{"token id outside the vocabulary in document " + std::to_string(documents()), prefix_,
                    "ids " + std::to_string(*low) + " to " + std::to_string(*high) + ", vocab_size " + std::to_string(vocab_size_),
                    "0 <= id < vocab_size", "use the tokenizer that belongs to this vocabulary"});
    }
    widen_range(*low, *high);
    append(tokens.data(), tokens.size());
  }
  if (eod_id_ >= 0) {
    widen_range(eod_id_, eod_id_);
    append(&eod_id_, 1);
  }
  lengths_.push_back(static_cast<std::int32_t>(total));
}

DatasetMeta IndexedDatasetBuilder::finish(DatasetMeta meta) {
  DELTRON_CHECK(!finished_, "data set finished twice: ", prefix_);
  bin_->close(true);
  {
    FileWriter idx(temporary_idx_);
    idx.write(std::string_view("MMIDIDX\0\0", 9));
    put<std::uint64_t>(idx, 1);
    put<std::uint8_t>(idx, static_cast<std::uint8_t>(type_));
    put<std::uint64_t>(idx, lengths_.size());
    put<std::uint64_t>(idx, lengths_.size() + 1);
    idx.write(lengths_.data(), lengths_.size() * sizeof(std::int32_t));
    std::int64_t offset = 0;
    for (const std::int32_t length : lengths_) {
      put<std::int64_t>(idx, offset);
      offset += static_cast<std::int64_t>(length) * token_type_size(type_);
    }
    for (std::size_t i = 0; i <= lengths_.size(); ++i) put<std::int64_t>(idx, static_cast<std::int64_t>(i));
    idx.close(true);
  }
  // Old companions go first: whatever moment a crash picks, no index stands beside tokens that are not its own.
  unlink(dataset_meta_path(prefix_).c_str());
  unlink((prefix_ + ".idx").c_str());
  rename_path(temporary_bin_, prefix_ + ".bin");
  rename_path(temporary_idx_, prefix_ + ".idx");
  finished_ = true;

  const IndexedDataset written(prefix_);
  meta.vocab_size = vocab_size_;
  meta.eod_id = eod_id_ >= 0 ? eod_id_ : meta.eod_id;
  meta.documents_end_with_eod = eod_id_ >= 0;
  meta.token_range = range_;
  meta.documents = documents();
  meta.tokens = tokens_;
  meta.index_hash = hash_text(written.index_hash());
  meta.bin_hash = hash_text(bin_hash_.digest());
  write_dataset_meta(prefix_, meta);
  return meta;
}

}  // namespace deltron
