// `deltron data prepare`: text or JSONL files to token files. Owns the options and the report; knows nothing of the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/data/dataset_meta.h"
#include "src/data/text_reader.h"

namespace deltron {

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output;                         // prefix
  std::string format = "auto";                // text | jsonl | auto (.jsonl and .ndjson are JSONL, the rest text)
  std::string document_separator = "\\n\\n";  // text; with escapes; empty: one document a file
  std::string json_key = "text";
  std::string tokenizer = "byte";
  bool append_eod = true;
  bool overwrite = false;                     // token files of that prefix may be there already
};

struct PrepareReport {
  std::string prefix;
  TextStats text;
  DatasetMeta meta;  // counts, ids, hashes
  TokenType token_type = TokenType::U16;
  std::int64_t invalid_utf8_documents = 0;
  std::string first_invalid_utf8;  // file:line
  double seconds = 0;
};

// Throws DataEmpty where no document is found, TextInvalid for bad lines, DataOptionInvalid for bad options.
PrepareReport prepare_data(const PrepareOptions& options);
std::string to_text(const PrepareReport& report);
std::string to_json(const PrepareReport& report);

}  // namespace deltron
