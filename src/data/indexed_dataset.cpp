// See indexed_dataset.h. No array in the .idx is aligned: every element is fetched with memcpy.
#include "src/data/indexed_dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "src/base/check.h"
#include "src/base/hash.h"
#include "src/base/signals.h"

namespace deltron {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr std::int64_t kPollEvery = 1 << 20;

template <class T>
T fetch(const std::uint8_t* base, std::int64_t byte) {
  T value;
  std::memcpy(&value, base + byte, sizeof(value));
  return value;
}

[[noreturn]] void invalid(const std::string& path, const std::string& what, const std::string& values, const std::string& rule) {
  throw Error(ErrorCode::DataFileInvalid,
              ErrorText{what, path, values, rule, "copy the file again, or make it with 'deltron data prepare'"});
}

// Both files of a prefix, or an error that says what a prefix is and how it comes to be.
std::string existing_prefix(const std::string& prefix) {
  for (const char* ending : {".idx", ".bin"}) {
    if (file_exists(prefix + ending)) continue;
    throw Error(ErrorCode::DataEmpty, ErrorText{"no token files here", prefix, prefix + ending + " does not exist",
                                                "a data set is PREFIX.idx and PREFIX.bin, named without the ending",
                                                "check the prefix, or make the files: deltron data prepare TEXT --output " + prefix});
  }
  return prefix;
}

template <class T>
TokenRange range_of(const std::uint8_t* data, std::int64_t count) {
  T smallest = std::numeric_limits<T>::max(), largest = std::numeric_limits<T>::lowest();
  for (std::int64_t i = 0; i < count; ++i) {
    if ((i & (kPollEvery - 1)) == 0) poll_stop("scanning token ids");
    const T value = fetch<T>(data, i * static_cast<std::int64_t>(sizeof(T)));
    smallest = std::min(smallest, value);
    largest = std::max(largest, value);
  }
  return TokenRange{static_cast<std::int64_t>(smallest), static_cast<std::int64_t>(largest)};
}

// Stops at the first id outside [0, vocab_size) and returns its place; `count` if there is none. vocab_size 0: none is looked for.
template <class T>
std::int64_t widen(const std::uint8_t* from, std::int64_t count, std::int64_t vocab_size, std::int32_t* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::int64_t>(fetch<T>(from, i * static_cast<std::int64_t>(sizeof(T))));
    if (vocab_size > 0 && static_cast<std::uint64_t>(id) >= static_cast<std::uint64_t>(vocab_size)) return i;
    out[i] = static_cast<std::int32_t>(id);
  }
  return count;
}

std::int64_t widen_as(TokenType type, const std::uint8_t* from, std::int64_t count, std::int64_t vocab_size, std::int32_t* out) {
  switch (type) {
    case TokenType::U8: return widen<std::uint8_t>(from, count, vocab_size, out);
    case TokenType::I8: return widen<std::int8_t>(from, count, vocab_size, out);
    case TokenType::I16: return widen<std::int16_t>(from, count, vocab_size, out);
    case TokenType::U16: return widen<std::uint16_t>(from, count, vocab_size, out);
    case TokenType::I32: return widen<std::int32_t>(from, count, vocab_size, out);
    case TokenType::I64: return widen<std::int64_t>(from, count, vocab_size, out);
    case TokenType::F32:
    case TokenType::F64: break;
  }
  DELTRON_CHECK(false, "floating-point tokens");
  return 0;
}

}  // namespace

int token_type_size(TokenType type) {
  switch (type) {
    case TokenType::U8:
    case TokenType::I8:
      return 1;
    case TokenType::I16:
    case TokenType::U16:
      return 2;
    case TokenType::I32:
    case TokenType::F32:
      return 4;
    case TokenType::I64:
    case TokenType::F64:
      return 8;
  }
  return 0;
}

const char* token_type_name(TokenType type) {
  switch (type) {
    case TokenType::U8:
      return "uint8";
    case TokenType::I8:
      return "int8";
    case TokenType::I16:
      return "int16";
    case TokenType::I32:
      return "int32";
    case TokenType::I64:
      return "int64";
    case TokenType::F64:
      return "float64";
    case TokenType::F32:
      return "float32";
    case TokenType::U16:
      return "uint16";
  }
  return "?";
}

TokenType token_type_for_vocabulary(std::int64_t vocab_size) { return vocab_size < 65500 ? TokenType::U16 : TokenType::I32; }

std::string dataset_prefix(const std::string& path) {
  if (path.size() > 4) {
    const std::string ending = path.substr(path.size() - 4);
    if (ending == ".bin" || ending == ".idx") return path.substr(0, path.size() - 4);
  }
  return path;
}

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(existing_prefix(dataset_prefix(prefix))), idx_(prefix_ + ".idx", ErrorCode::DataFileNotReadable), bin_(prefix_ + ".bin", ErrorCode::DataFileNotReadable) {
  check_header();
  type_ = static_cast<TokenType>(idx_.data()[17]);
  sequences_ = fetch<std::int64_t>(idx_.data(), 18);
  document_bounds_ = fetch<std::int64_t>(idx_.data(), 26);
  check_arrays();
  index_hash_ = hash64(idx_.data(), idx_.size());
}

void IndexedDataset::check_header() const {
  const std::string& path = idx_.path();
  const std::uint64_t size = idx_.size();
  const std::uint8_t* data = idx_.data();
  if (size < kHeaderBytes) {
    invalid(path, "the index is shorter than its header", std::to_string(size) + " bytes", "the header has 34 bytes");
  }
  if (std::memcmp(data, kMagic, sizeof(kMagic)) != 0) {
    invalid(path, "wrong magic number", "", "an index starts with 'MMIDIDX' and two zero bytes");
  }
  const std::uint64_t version = fetch<std::uint64_t>(data, 9);
  if (version != 1) invalid(path, "unknown index version", std::to_string(version), "the version is 1");
  const int code = data[17];
  if (code < 1 || code > 8) invalid(path, "unknown dtype code", std::to_string(code), "codes are 1 to 8");
  if (code == static_cast<int>(TokenType::F32) || code == static_cast<int>(TokenType::F64)) {
    invalid(path, "tokens are floating-point numbers", token_type_name(static_cast<TokenType>(code)), "token ids are integers");
  }
  const std::uint64_t sequences = fetch<std::uint64_t>(data, 18);
  const std::uint64_t bounds = fetch<std::uint64_t>(data, 26);
  if (sequences > (size - kHeaderBytes) / 12) {
    invalid(path, "more sequences announced than the index can hold",
            std::to_string(sequences) + " in " + std::to_string(size) + " bytes", "each sequence takes 12 bytes");
  }
  if (bounds < 1 || bounds > (size - kHeaderBytes) / 8) {
    invalid(path, "impossible number of document boundaries", std::to_string(bounds) + " in " + std::to_string(size) + " bytes",
            "there is one more boundary than documents, 8 bytes each");
  }
  const std::uint64_t expected = kHeaderBytes + 12 * sequences + 8 * bounds;
  if (size == expected + sequences && sequences > 0) {
    invalid(path, "this is a multimodal data set (one mode byte a sequence)", std::to_string(size) + " bytes",
            "text sets have " + std::to_string(expected) + " bytes");
  }
  if (size != expected) {
    invalid(
        path, "the size of the index contradicts its header", std::to_string(size) + " bytes",
        std::to_string(sequences) + " sequences and " + std::to_string(bounds) + " boundaries take " + std::to_string(expected));
  }
}

void IndexedDataset::check_arrays() {
  const std::string& path = idx_.path();
  const std::int64_t width = token_type_size(type_);
  std::int64_t expected_offset = 0;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    if ((i & (kPollEvery - 1)) == 0) poll_stop("checking a token index");
    const std::int64_t tokens = length(i);
    if (tokens < 0) {
      invalid(path, "negative length of sequence " + std::to_string(i), std::to_string(tokens), "lengths are at least 0");
    }
    const std::int64_t offset = byte_offset(i);
    if (offset != expected_offset) {
      invalid(path, "wrong byte offset of sequence " + std::to_string(i), std::to_string(offset),
              "it is the sum of the lengths before it: " + std::to_string(expected_offset));
    }
    expected_offset += tokens * width;
    if (expected_offset > bin_bytes()) break;  // reported below; going on could overflow
  }
  if (expected_offset != bin_bytes()) {
    invalid(bin_.path(), "the size of the token file contradicts the index", std::to_string(bin_bytes()) + " bytes",
            "the index counts " + std::string(expected_offset > bin_bytes() ? "at least " : "") + std::to_string(expected_offset));
  }
  tokens_ = expected_offset / width;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < document_bounds_; ++i) {
    const std::int64_t bound = document_bound(i);
    if (i == 0 && bound != 0) invalid(path, "the first document boundary is not 0", std::to_string(bound), "documents start at 0");
    if (bound < last || bound > sequences_) {
      invalid(path, "document boundary " + std::to_string(i) + " is out of order",
              std::to_string(bound) + " after " + std::to_string(last) + ", " + std::to_string(sequences_) + " sequences",
              "boundaries never fall and stay within the sequences");
    }
    last = bound;
  }
  if (last != sequences_) {
    invalid(path, "the last document boundary is not the number of sequences", std::to_string(last),
            "it is " + std::to_string(sequences_));
  }
}

std::int64_t IndexedDataset::length(std::int64_t sequence) const {
  return fetch<std::int32_t>(idx_.data(), kHeaderBytes + 4 * sequence);
}

std::int64_t IndexedDataset::byte_offset(std::int64_t sequence) const {
  return fetch<std::int64_t>(idx_.data(), kHeaderBytes + 4 * sequences_ + 8 * sequence);
}

std::int64_t IndexedDataset::document_bound(std::int64_t i) const {
  return fetch<std::int64_t>(idx_.data(), kHeaderBytes + 12 * sequences_ + 8 * i);
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t offset, std::int64_t count, std::int32_t* out) const {
  DELTRON_CHECK(sequence >= 0 && sequence < sequences_, "sequence ", sequence, " of ", sequences_, " in ", prefix_);
  DELTRON_CHECK(offset >= 0 && count >= 0 && offset + count <= length(sequence), "tokens ", offset, "+", count, " of ",
                length(sequence), " in sequence ", sequence, " of ", prefix_);
  if (count == 0) return;
  const std::uint8_t* from = bin_.data() + byte_offset(sequence) + offset * token_type_size(type_);
  const std::int64_t sound = widen_as(type_, from, count, vocab_size_, out);
  if (sound < count) refuse_token(sequence, offset + sound);
}

void IndexedDataset::refuse_token(std::int64_t sequence, std::int64_t offset) const {
  const std::int64_t width = token_type_size(type_);
  const std::int64_t byte = byte_offset(sequence) + offset * width;
  std::int64_t id = 0;
  if (type_ == TokenType::I64) {
    id = fetch<std::int64_t>(bin_.data(), byte);
  } else {
    std::int32_t narrow = 0;
    widen_as(type_, bin_.data() + byte, 1, 0, &narrow);
    id = narrow;
  }
  throw Error(ErrorCode::TokenOutOfVocabulary,
              ErrorText{"token id outside the vocabulary", bin_.path() + ", token " + std::to_string(byte / width),
                        "id " + std::to_string(id) + " at token " + std::to_string(offset) + " of document " + std::to_string(sequence) + ", vocab_size " +
                            std::to_string(vocab_size_),
                        "0 <= id < vocab_size; " + prefix_ + ".meta.json, where there is one, does not describe these tokens",
                        "prepare the data again, or remove the .meta.json (the tokens are then scanned) and set model.vocab_size as it says"});
}

std::int32_t IndexedDataset::token(std::int64_t sequence, std::int64_t offset) const {
  std::int32_t value = 0;
  read(sequence, offset, 1, &value);
  return value;
}

std::vector<std::int32_t> IndexedDataset::read_all(std::int64_t sequence) const {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(length(sequence)));
  read(sequence, 0, static_cast<std::int64_t>(tokens.size()), tokens.data());
  return tokens;
}

TokenRange IndexedDataset::scan_token_range() const {
  if (tokens_ == 0) return TokenRange{};
  switch (type_) {
    case TokenType::U8:
      return range_of<std::uint8_t>(bin_.data(), tokens_);
    case TokenType::I8:
      return range_of<std::int8_t>(bin_.data(), tokens_);
    case TokenType::I16:
      return range_of<std::int16_t>(bin_.data(), tokens_);
    case TokenType::U16:
      return range_of<std::uint16_t>(bin_.data(), tokens_);
    case TokenType::I32:
      return range_of<std::int32_t>(bin_.data(), tokens_);
    case TokenType::I64:
      return range_of<std::int64_t>(bin_.data(), tokens_);
    case TokenType::F32:
    case TokenType::F64:
      break;
  }
  DELTRON_CHECK(false, "floating-point tokens in ", prefix_);
  return TokenRange{};
}

std::uint64_t IndexedDataset::bin_hash() const {
  StreamingHash hash;
  constexpr std::size_t kPiece = 16 << 20;
  for (std::size_t at = 0; at < bin_.size(); at += kPiece) {
    poll_stop("hashing a token file");
    hash.update(bin_.data() + at, std::min(kPiece, bin_.size() - at));
  }
  return hash.digest();
}

}  // namespace deltron
