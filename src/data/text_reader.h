// Plain text and JSONL files as a series of documents. Owns separators, line ends and error positions; knows no tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace deltron {

struct TextStats {
  std::int64_t documents = 0;
  std::int64_t empty_documents = 0;   // skipped
  std::int64_t blank_lines = 0;       // JSONL: skipped
  std::int64_t crlf_lines = 0;        // text: "\r\n" became "\n"
  std::int64_t byte_order_marks = 0;  // dropped at the start of a file
};

// `line`: where the document starts, from 1.
using DocumentCallback = std::function<void(std::string_view text, std::int64_t line)>;

// "\n\n", "\f", "\t", "\0", "\xHH", "\\": escapes as typed on a command line. Throws DataOptionInvalid.
std::string unescape_separator(const std::string& text);

// Documents are what stands between separators; an empty separator makes the whole file one document. Where the separator consists
// of newlines only (blank lines), newlines around a document are dropped; otherwise every byte is kept.
void read_text_documents(const std::string& path, const std::string& separator, TextStats& stats, const DocumentCallback& callback);
// One JSON object a line; the text is the string under `key`. Throws TextInvalid with file:line:column.
void read_jsonl_documents(const std::string& path, const std::string& key, TextStats& stats, const DocumentCallback& callback);

}  // namespace deltron
