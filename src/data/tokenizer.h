// Tokenizers: text to token ids and back. The byte tokenizer needs no files; others plug in behind the same interface.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace deltron {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string name() const = 0;
  virtual std::int64_t vocab_size() const = 0;
  // End of document, which is also the first token of every document.
  virtual std::int32_t eod_id() const = 0;
  // Appends to `tokens`. Never yields eod_id.
  virtual void encode_into(std::string_view text, std::vector<std::int32_t>& tokens) const = 0;
  // End-of-document tokens decode to nothing. Throws TokenOutOfVocabulary for unknown ids.
  virtual std::string decode(const std::vector<std::int32_t>& tokens) const = 0;
  // False where any byte sequence can be encoded.
  virtual bool requires_utf8() const = 0;

  std::vector<std::int32_t> encode(std::string_view text) const {
    std::vector<std::int32_t> tokens;
    encode_into(text, tokens);
    return tokens;
  }
};

// "byte": ids 0..255 are bytes, 256 ends a document; vocabulary 257. Throws DataOptionInvalid for unknown names.
std::shared_ptr<const Tokenizer> make_tokenizer(const std::string& name);

}  // namespace deltron
