// PREFIX.meta.json: what Megatron's .idx has no room for (tokenizer, largest token id, counts, hashes).
// Owns that side file and the checks against vocabulary and tokenizer that rest on it.
#pragma once

#include <cstdint>
#include <string>

#include "src/data/indexed_dataset.h"

namespace deltron {

struct DatasetMeta {
  std::string tokenizer;        // empty: unknown (files of another program)
  std::int64_t vocab_size = 0;  // of the tokenizer; 0: unknown
  std::int32_t eod_id = -1;     // -1: unknown or none
  bool documents_end_with_eod = false;
  TokenRange token_range;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t text_bytes = -1;       // of the documents, without EOD; -1: unknown
  std::int64_t text_characters = -1;  // UTF-8 code points
  std::string index_hash;             // of the .idx: ties this file to it
  std::string bin_hash;               // of the .bin, empty where unknown
  std::string source;                 // where the text came from
};

std::string dataset_meta_path(const std::string& prefix);
void write_dataset_meta(const std::string& prefix, const DatasetMeta& meta);
// Reads the side file. Where it is missing, damaged or belongs to another .idx (said in a warning), the tokens are scanned once
// and the result is stored beside the data if the folder is writable.
DatasetMeta load_dataset_meta(const IndexedDataset& dataset);

// Throws TokenOutOfVocabulary unless every id is in [0, vocab_size).
void check_vocabulary(const IndexedDataset& dataset, const DatasetMeta& meta, std::int64_t vocab_size);
// Throws TokenizerMismatch if the data names another tokenizer.
void check_tokenizer(const IndexedDataset& dataset, const DatasetMeta& meta, const std::string& tokenizer);

}  // namespace deltron
