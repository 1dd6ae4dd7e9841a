// See prepare.h.
#include "src/data/prepare.h"

#include <algorithm>
#include <chrono>

#include <nlohmann/json.hpp>

#include "src/base/human.h"
#include "src/base/log.h"
#include "src/data/indexed_dataset_builder.h"
#include "src/data/tokenizer.h"
#include "src/data/utf8.h"

namespace deltron {
namespace {

bool ends_with(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

bool is_jsonl(const PrepareOptions& options, const std::string& path) {
  if (options.format == "jsonl") return true;
  if (options.format == "text") return false;
  if (options.format != "auto") {
    throw Error(ErrorCode::DataOptionInvalid, ErrorText{"unknown input format", "--format", "'" + options.format + "'",
                                                        "auto, text or jsonl", "choose one of these"});
  }
  return ends_with(path, ".jsonl") || ends_with(path, ".ndjson");
}

// Nothing accepted is ignored: an option of the one format needs an input of that format.
void require_use(const PrepareOptions& options) {
  const PrepareOptions defaults;
  const auto count = std::count_if(options.inputs.begin(), options.inputs.end(), [&](const std::string& path) { return is_jsonl(options, path); });
  if (options.document_separator != defaults.document_separator && count == static_cast<std::ptrdiff_t>(options.inputs.size())) {
    throw Error(ErrorCode::DataOptionInvalid, ErrorText{"the document separator has no effect", "--document-separator", "every input is JSONL",
                                                        "a JSONL document is a line", "leave it out, or say --format text"});
  }
  if (options.json_key != defaults.json_key && count == 0) {
    throw Error(ErrorCode::DataOptionInvalid, ErrorText{"the key of the text has no effect", "--json-key", "no input is JSONL",
                                                        "it is read in JSONL only", "leave it out, or say --format jsonl"});
  }
}

void require_free_prefix(const std::string& prefix, bool overwrite) {
  if (overwrite) return;
  for (const char* ending : {".bin", ".idx"}) {
    if (!file_exists(prefix + ending)) continue;
    throw Error(ErrorCode::DataOptionInvalid, ErrorText{"token files are there already", prefix, prefix + ending + " exists",
                                                        "token files are not overwritten unasked", "choose another --output, or give --overwrite"});
  }
}

std::string joined(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

}  // namespace

PrepareReport prepare_data(const PrepareOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  if (options.inputs.empty()) {
    throw Error(ErrorCode::DataOptionInvalid,
                ErrorText{"no input file", "data prepare", "", "at least one", "name a text or JSONL file"});
  }
  if (options.output.empty()) {
    throw Error(ErrorCode::DataOptionInvalid,
                ErrorText{"no output prefix", "data prepare", "", "", "name one, for example data/corpus"});
  }
  require_use(options);
  require_free_prefix(dataset_prefix(options.output), options.overwrite);
  const std::string separator = unescape_separator(options.document_separator);
  const auto tokenizer = make_tokenizer(options.tokenizer);
  PrepareReport report;
  report.prefix = dataset_prefix(options.output);
  IndexedDatasetBuilder builder(report.prefix, tokenizer->vocab_size(), options.append_eod ? tokenizer->eod_id() : -1);
  report.token_type = builder.token_type();
  report.meta.text_bytes = 0;
  report.meta.text_characters = 0;
  std::vector<std::int32_t> tokens;
  for (const std::string& path : options.inputs) {
    const DocumentCallback take = [&](std::string_view text, std::int64_t line) {
      const std::int64_t invalid = find_invalid_utf8(text);
      if (invalid >= 0) {
        const std::string where = path + ":" + std::to_string(line);
        if (tokenizer->requires_utf8()) {
          throw Error(ErrorCode::TextInvalid,
                      ErrorText{"document is not valid UTF-8", where, "at byte " + std::to_string(invalid) + " of the document",
                                "tokenizer '" + tokenizer->name() + "' reads UTF-8", "convert the file to UTF-8"});
        }
        if (report.invalid_utf8_documents++ == 0) report.first_invalid_utf8 = where;
      }
      tokens.clear();
      tokenizer->encode_into(text, tokens);
      builder.add_document(tokens);
      report.meta.text_bytes += static_cast<std::int64_t>(text.size());
      report.meta.text_characters += count_characters(text);
    };
    if (is_jsonl(options, path)) {
      read_jsonl_documents(path, options.json_key, report.text, take);
    } else {
      read_text_documents(path, separator, report.text, take);
    }
  }
  if (builder.documents() == 0) {
    throw Error(ErrorCode::DataEmpty, ErrorText{"no document found", joined(options.inputs),
                                                thousands(report.text.empty_documents) + " empty ones skipped",
                                                "at least one document with text", "check the input and --document-separator"});
  }
  if (report.invalid_utf8_documents > 0) {
    log_warning(thousands(report.invalid_utf8_documents) + " documents are not valid UTF-8 (first: " + report.first_invalid_utf8 +
                "); their bytes are kept as they are");
  }
  report.meta.tokenizer = tokenizer->name();
  report.meta.eod_id = tokenizer->eod_id();
  report.meta.source = joined(options.inputs);
  report.meta = builder.finish(report.meta);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

std::string to_text(const PrepareReport& report) {
  const DatasetMeta& meta = report.meta;
  std::string text;
  text += "wrote       " + report.prefix + ".bin, .idx, .meta.json\n";
  text += "documents   " + thousands(meta.documents) + " (" + thousands(report.text.empty_documents) + " empty ones skipped)\n";
  text += "characters  " + thousands(meta.text_characters) + " in " + thousands(meta.text_bytes) + " bytes\n";
  text += "tokens      " + thousands(meta.tokens) + " " + token_type_name(report.token_type) + ", ids " +
          std::to_string(meta.token_range.smallest) + " to " + std::to_string(meta.token_range.largest) + ", tokenizer " +
          meta.tokenizer + (meta.documents_end_with_eod ? ", documents end with id " + std::to_string(meta.eod_id) : "") + "\n";
  if (report.text.crlf_lines > 0) text += "line ends   " + thousands(report.text.crlf_lines) + " CRLF became LF\n";
  if (report.text.blank_lines > 0) text += "blank lines " + thousands(report.text.blank_lines) + " skipped\n";
  if (report.invalid_utf8_documents > 0) {
    text += "not UTF-8   " + thousands(report.invalid_utf8_documents) + " documents, first at " + report.first_invalid_utf8 + "\n";
  }
  text += "time        " + human_seconds(report.seconds) + "\n";
  return text;
}

std::string to_json(const PrepareReport& report) {
  nlohmann::ordered_json value;
  value["prefix"] = report.prefix;
  value["documents"] = report.meta.documents;
  value["empty_documents"] = report.text.empty_documents;
  value["blank_lines"] = report.text.blank_lines;
  value["crlf_lines"] = report.text.crlf_lines;
  value["byte_order_marks"] = report.text.byte_order_marks;
  value["invalid_utf8_documents"] = report.invalid_utf8_documents;
  value["first_invalid_utf8"] = report.first_invalid_utf8;
  value["tokens"] = report.meta.tokens;
  value["bytes"] = report.meta.text_bytes;
  value["characters"] = report.meta.text_characters;
  value["dtype"] = token_type_name(report.token_type);
  value["smallest_token"] = report.meta.token_range.smallest;
  value["largest_token"] = report.meta.token_range.largest;
  value["tokenizer"] = report.meta.tokenizer;
  value["vocab_size"] = report.meta.vocab_size;
  value["eod_id"] = report.meta.eod_id;
  value["documents_end_with_eod"] = report.meta.documents_end_with_eod;
  value["index_hash"] = report.meta.index_hash;
  value["bin_hash"] = report.meta.bin_hash;
  value["seconds"] = report.seconds;
  return value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace deltron
