// See dataset_meta.h.
#include "src/data/dataset_meta.h"

#include <chrono>

#include <nlohmann/json.hpp>

#include "src/base/hash.h"
#include "src/base/human.h"
#include "src/base/log.h"

namespace deltron {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "deltron dataset meta 1";

DatasetMeta from_json(const json& value) {
  DatasetMeta meta;
  if (value.at("format").get<std::string>() != kFormat) throw json::other_error::create(501, "unknown format", nullptr);
  meta.tokenizer = value.at("tokenizer").get<std::string>();
  meta.vocab_size = value.at("vocab_size").get<std::int64_t>();
  meta.eod_id = value.at("eod_id").get<std::int32_t>();
  meta.documents_end_with_eod = value.at("documents_end_with_eod").get<bool>();
  meta.token_range.smallest = value.at("smallest_token").get<std::int64_t>();
  meta.token_range.largest = value.at("largest_token").get<std::int64_t>();
  meta.documents = value.at("documents").get<std::int64_t>();
  meta.tokens = value.at("tokens").get<std::int64_t>();
  meta.text_bytes = value.at("text_bytes").get<std::int64_t>();
  meta.text_characters = value.at("text_characters").get<std::int64_t>();
  meta.index_hash = value.at("index_hash").get<std::string>();
  meta.bin_hash = value.at("bin_hash").get<std::string>();
  meta.source = value.at("source").get<std::string>();
  return meta;
}

DatasetMeta scan(const IndexedDataset& dataset) {
  const auto start = std::chrono::steady_clock::now();
  DatasetMeta meta;
  meta.token_range = dataset.scan_token_range();
  meta.documents = dataset.num_sequences();
  meta.tokens = dataset.num_tokens();
  meta.index_hash = hash_text(dataset.index_hash());
  meta.source = "scanned";
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info("scanned " + thousands(meta.tokens) + " tokens of " + dataset.prefix() + " in " + human_seconds(seconds) +
           ": largest id " + std::to_string(meta.token_range.largest));
  try {
    write_dataset_meta(dataset.prefix(), meta);
  } catch (const Error& error) {
    log_info("the scan is not kept: " + std::string(error.what()));
  }
  return meta;
}

}  // namespace

std::string dataset_meta_path(const std::string& prefix) { return prefix + ".meta.json"; }

void write_dataset_meta(const std::string& prefix, const DatasetMeta& meta) {
  nlohmann::ordered_json value;
  value["format"] = kFormat;
  value["tokenizer"] = meta.tokenizer;
  value["vocab_size"] = meta.vocab_size;
  value["eod_id"] = meta.eod_id;
  value["documents_end_with_eod"] = meta.documents_end_with_eod;
  value["smallest_token"] = meta.token_range.smallest;
  value["largest_token"] = meta.token_range.largest;
  value["documents"] = meta.documents;
  value["tokens"] = meta.tokens;
  value["text_bytes"] = meta.text_bytes;
  value["text_characters"] = meta.text_characters;
  value["index_hash"] = meta.index_hash;
  value["bin_hash"] = meta.bin_hash;
  value["source"] = meta.source;
  write_file_atomically(dataset_meta_path(prefix),
                        value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

DatasetMeta load_dataset_meta(const IndexedDataset& dataset) {
  const std::string path = dataset_meta_path(dataset.prefix());
  if (!file_exists(path)) return scan(dataset);
  try {
    const DatasetMeta meta = from_json(json::parse(read_file(path)));
    if (meta.index_hash == hash_text(dataset.index_hash()) && meta.tokens == dataset.num_tokens()) return meta;
    log_warning(path + ": belongs to another index; scanning the tokens");
  } catch (const json::exception& error) {
    log_warning(path + ": damaged (" + error.what() + "); scanning the tokens");
  }
  return scan(dataset);
}

void check_vocabulary(const IndexedDataset& dataset, const DatasetMeta& meta, std::int64_t vocab_size) {
  if (meta.token_range.largest < vocab_size && meta.token_range.smallest >= 0) return;
  throw Error(
      ErrorCode::TokenOutOfVocabulary,
      ErrorText{"token id outside the vocabulary", dataset.prefix(),
                "ids " + std::to_string(meta.token_range.smallest) + " to " + std::to_string(meta.token_range.largest) +
                    ", vocab_size " + std::to_string(vocab_size),
                "0 <= id < vocab_size",
                meta.token_range.smallest < 0 ? "prepare the data again: ids must not be negative"
                                              : "set model.vocab_size to at least " + std::to_string(meta.token_range.largest + 1) +
                                                    ", or prepare the data with the model's tokenizer"});
}

void check_tokenizer(const IndexedDataset& dataset, const DatasetMeta& meta, const std::string& tokenizer) {
  if (meta.tokenizer.empty() || meta.tokenizer == tokenizer) return;
  throw Error(ErrorCode::TokenizerMismatch,
              ErrorText{"prepared with another tokenizer", dataset.prefix(),
                        "data: '" + meta.tokenizer + "', configuration: '" + tokenizer + "'", "both must be the same",
                        "set data.tokenizer: " + meta.tokenizer + ", or prepare the text again"});
}

}  // namespace deltron
