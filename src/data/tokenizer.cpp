// See tokenizer.h: the byte tokenizer and the choice by name.
#include "src/data/tokenizer.h"

#include "src/base/error.h"
#include "src/base/suggest.h"

namespace deltron {
namespace {

constexpr std::int32_t kByteEod = 256;

class ByteTokenizer : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  std::int64_t vocab_size() const override { return kByteEod + 1; }
  std::int32_t eod_id() const override { return kByteEod; }
  bool requires_utf8() const override { return false; }

  void encode_into(std::string_view text, std::vector<std::int32_t>& tokens) const override {
    tokens.reserve(tokens.size() + text.size());
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  }

  std::string decode(const std::vector<std::int32_t>& tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (const std::int32_t token : tokens) {
      if (token == kByteEod) continue;
      if (token < 0 || token > kByteEod) {
        throw Error(ErrorCode::TokenOutOfVocabulary,
                    ErrorText{"token cannot be decoded", "tokenizer 'byte'", "id " + std::to_string(token), "0 <= id < 257",
                              "use the tokenizer the data was made with"});
      }
      text.push_back(static_cast<char>(token));
    }
    return text;
  }
};

}  // namespace

std::shared_ptr<const Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "byte") return std::make_shared<const ByteTokenizer>();
  throw Error(ErrorCode::DataOptionInvalid,
              ErrorText{"unknown tokenizer", "data.tokenizer", "'" + name + "'" + did_you_mean(name, {"byte"}), "known: byte",
                        "set data.tokenizer: byte"});
}

}  // namespace deltron
