// Megatron's indexed dataset, PREFIX.bin and PREFIX.idx: a memory-mapped, validated reader.
// Owns the file layout (docs/data_format.md); knows nothing of samples or tokenizers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/file.h"

namespace deltron {

// dtype codes of the .idx header.
enum class TokenType : std::uint8_t { U8 = 1, I8 = 2, I16 = 3, I32 = 4, I64 = 5, F64 = 6, F32 = 7, U16 = 8 };

int token_type_size(TokenType type);
const char* token_type_name(TokenType type);
// What Megatron's writer takes: uint16 below 65,500 ids, else int32.
TokenType token_type_for_vocabulary(std::int64_t vocab_size);

struct TokenRange {
  std::int64_t smallest = 0;
  std::int64_t largest = -1;  // -1: no token at all
};

// Reads are const and thread-safe. A "sequence" is what training calls a document: one entry of the length table.
class IndexedDataset {
 public:
  static constexpr std::int64_t kHeaderBytes = 34;

  // `prefix` with or without ".bin" / ".idx". Checks everything in the index against itself and the size of the .bin.
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  std::int64_t num_sequences() const { return sequences_; }
  std::int64_t num_documents() const { return document_bounds_ - 1; }
  std::int64_t num_tokens() const { return tokens_; }
  std::int64_t bin_bytes() const { return static_cast<std::int64_t>(bin_.size()); }
  std::int64_t idx_bytes() const { return static_cast<std::int64_t>(idx_.size()); }

  std::int64_t length(std::int64_t sequence) const;       // tokens
  std::int64_t byte_offset(std::int64_t sequence) const;  // in the .bin
  std::int64_t document_bound(std::int64_t i) const;      // sequence number at which document i starts; i = documents: the end
  // From now on a read that meets an id outside [0, vocab_size) throws TokenOutOfVocabulary, whatever a side file says of the largest id.
  void set_vocabulary(std::int64_t vocab_size) { vocab_size_ = vocab_size; }
  // out[0..count) = tokens offset .. offset+count of the sequence
  void read(std::int64_t sequence, std::int64_t offset, std::int64_t count, std::int32_t* out) const;
  std::int32_t token(std::int64_t sequence, std::int64_t offset) const;
  std::vector<std::int32_t> read_all(std::int64_t sequence) const;

  // Walks every token; long for large files, polls stop requests.
  TokenRange scan_token_range() const;
  // Hash of the whole .idx: the data set's identity in cache keys.
  std::uint64_t index_hash() const { return index_hash_; }
  std::uint64_t bin_hash() const;

 private:
  void check_header() const;
  void check_arrays();
  [[noreturn]] void refuse_token(std::int64_t sequence, std::int64_t offset) const;

  std::string prefix_;
  MappedFile idx_;
  MappedFile bin_;
  TokenType type_ = TokenType::U16;
  std::int64_t sequences_ = 0;
  std::int64_t document_bounds_ = 0;
  std::int64_t tokens_ = 0;
  std::uint64_t index_hash_ = 0;
  std::int64_t vocab_size_ = 0;  // 0: not checked
};

// Strips a trailing ".bin" or ".idx".
std::string dataset_prefix(const std::string& path);

}  // namespace deltron
