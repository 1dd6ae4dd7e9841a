// See inspect.h.
#include "src/data/inspect.h"

#include <algorithm>
#include <memory>

#include <nlohmann/json.hpp>

#include "src/base/hash.h"
#include "src/base/human.h"
#include "src/data/document_reader.h"

namespace deltron {
namespace {

std::string preview_of(const IndexedDataset& dataset, std::int64_t document, std::int64_t characters, const Tokenizer* tokenizer) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(dataset.length(document), characters)));
  dataset.read(document, 0, static_cast<std::int64_t>(tokens.size()), tokens.data());
  if (tokenizer != nullptr) return tokenizer->decode(tokens);
  std::string text;
  for (const std::int32_t token : tokens) text += (text.empty() ? "" : " ") + std::to_string(token);
  return text;
}

void verify_hash(const IndexedDataset& dataset, const DatasetMeta& meta) {
  if (meta.bin_hash.empty()) {
    throw Error(ErrorCode::DataOptionInvalid,
                ErrorText{"nothing to verify against", dataset_meta_path(dataset.prefix()), "no bin_hash",
                          "the side file of 'deltron data prepare' holds the hash", "prepare the data again"});
  }
  const std::string found = hash_text(dataset.bin_hash());
  if (found == meta.bin_hash) return;
  throw Error(ErrorCode::DataFileInvalid, ErrorText{"the tokens differ from what was written", dataset.prefix() + ".bin",
                                                    "hash " + found + ", recorded " + meta.bin_hash, "both are equal",
                                                    "copy the file again, or prepare the data again"});
}

}  // namespace

DatasetReport inspect_data(const DatasetInspectOptions& options) {
  if (options.dump_split.empty() != options.dump_path.empty()) {
    throw Error(ErrorCode::DataOptionInvalid, ErrorText{"a dump needs a split and a file", "data inspect", "", "both or neither",
                                                        "name both the split and the file"});
  }
  const auto dataset = std::make_shared<IndexedDataset>(options.prefix);
  DatasetReport report;
  report.prefix = dataset->prefix();
  report.meta = load_dataset_meta(*dataset);
  report.token_type = dataset->token_type();
  report.sequences = dataset->num_sequences();
  report.documents = dataset->num_documents();
  report.tokens = dataset->num_tokens();
  report.bin_bytes = dataset->bin_bytes();
  report.idx_bytes = dataset->idx_bytes();
  const std::shared_ptr<const Tokenizer> tokenizer =
      report.meta.tokenizer.empty() ? nullptr : make_tokenizer(report.meta.tokenizer);
  if (tokenizer != nullptr) dataset->set_vocabulary(tokenizer->vocab_size());  // what is decoded below
  const DocumentReader reader(dataset, report.meta.eod_id);
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < report.sequences; ++i) {
    lengths.push_back(dataset->length(i));
    report.ending_with_eod += reader.ends_with_eod(i) ? 1 : 0;
  }
  std::sort(lengths.begin(), lengths.end());
  if (!lengths.empty()) {
    report.shortest = lengths.front();
    report.median = lengths[lengths.size() / 2];
    report.longest = lengths.back();
  }
  for (const Split split : {Split::Train, Split::Valid, Split::Test}) {
    DatasetReport::SplitEntry entry;
    entry.name = split_name(split);
    entry.documents = split_range(options.split, split, report.sequences);
    if (tokenizer != nullptr) {
      const bool dump = options.dump_split == entry.name;
      entry.text = dump ? dump_split_text(*dataset, entry.documents, *tokenizer, options.dump_path)
                        : count_split_text(*dataset, entry.documents, *tokenizer);
      if (dump) report.dumped_to = options.dump_path;
    } else {
      entry.text.documents = entry.documents.count();
      for (std::int64_t i = entry.documents.begin; i < entry.documents.end; ++i) entry.text.tokens += dataset->length(i);
    }
    report.splits.push_back(std::move(entry));
  }
  if (!options.dump_split.empty() && report.dumped_to.empty()) {
    parse_split_name(options.dump_split);  // names the legal values
    throw Error(ErrorCode::DataOptionInvalid,
                ErrorText{"the text cannot be written", report.prefix, "no tokenizer recorded", "a dump decodes the tokens",
                          "prepare the data with 'deltron data prepare'"});
  }
  const std::int64_t end = std::min(options.first_document + options.documents, report.sequences);
  for (std::int64_t i = std::max<std::int64_t>(options.first_document, 0); i < end; ++i) {
    report.previews.push_back({i, dataset->length(i), preview_of(*dataset, i, options.characters, tokenizer.get())});
  }
  if (options.verify) {
    verify_hash(*dataset, report.meta);
    report.verified = true;
  }
  return report;
}

std::string to_text(const DatasetReport& report) {
  std::string text;
  text += "data set    " + report.prefix + "\n";
  text += std::string("tokens      ") + thousands(report.tokens) + " " + token_type_name(report.token_type) + ", ids " +
          std::to_string(report.meta.token_range.smallest) + " to " + std::to_string(report.meta.token_range.largest) + "\n";
  text += "documents   " + thousands(report.documents) + " in " + thousands(report.sequences) + " sequences; lengths " +
          thousands(report.shortest) + " to " + thousands(report.longest) + ", median " + thousands(report.median) + "\n";
  text +=
      "tokenizer   " +
      (report.meta.tokenizer.empty() ? "unknown" : report.meta.tokenizer + ", vocabulary " + thousands(report.meta.vocab_size)) +
      "\n";
  if (report.meta.eod_id >= 0) {
    text +=
        "end         " + thousands(report.ending_with_eod) + " documents end with id " + std::to_string(report.meta.eod_id) + "\n";
  }
  text += "files       .bin " + human_bytes(static_cast<std::uint64_t>(report.bin_bytes)) + ", .idx " +
          human_bytes(static_cast<std::uint64_t>(report.idx_bytes)) + (report.verified ? ", hash verified" : "") + "\n";
  for (const DatasetReport::SplitEntry& entry : report.splits) {
    text += "split       " + entry.name + ": documents " + std::to_string(entry.documents.begin) + " to " +
            std::to_string(entry.documents.end) + ", " + thousands(entry.text.tokens) + " tokens";
    if (!report.meta.tokenizer.empty()) text += ", " + thousands(entry.text.characters) + " characters";
    text += "\n";
  }
  if (!report.dumped_to.empty()) text += "text        written to " + report.dumped_to + "\n";
  for (const DatasetReport::Preview& preview : report.previews) {
    text += "document " + std::to_string(preview.document) + " (" + thousands(preview.tokens) + " tokens): " + preview.text + "\n";
  }
  return text;
}

std::string to_json(const DatasetReport& report) {
  nlohmann::ordered_json value;
  value["prefix"] = report.prefix;
  value["dtype"] = token_type_name(report.token_type);
  value["tokens"] = report.tokens;
  value["sequences"] = report.sequences;
  value["documents"] = report.documents;
  value["shortest"] = report.shortest;
  value["median"] = report.median;
  value["longest"] = report.longest;
  value["smallest_token"] = report.meta.token_range.smallest;
  value["largest_token"] = report.meta.token_range.largest;
  value["tokenizer"] = report.meta.tokenizer;
  value["vocab_size"] = report.meta.vocab_size;
  value["eod_id"] = report.meta.eod_id;
  value["ending_with_eod"] = report.ending_with_eod;
  value["bin_bytes"] = report.bin_bytes;
  value["idx_bytes"] = report.idx_bytes;
  value["index_hash"] = report.meta.index_hash;
  value["bin_hash"] = report.meta.bin_hash;
  value["verified"] = report.verified;
  value["splits"] = nlohmann::ordered_json::array();
  for (const DatasetReport::SplitEntry& entry : report.splits) {
    nlohmann::ordered_json split;
    split["name"] = entry.name;
    split["first_document"] = entry.documents.begin;
    split["end_document"] = entry.documents.end;
    split["tokens"] = entry.text.tokens;
    split["bytes"] = entry.text.bytes;
    split["characters"] = entry.text.characters;
    value["splits"].push_back(std::move(split));
  }
  value["dumped_to"] = report.dumped_to;
  value["previews"] = nlohmann::ordered_json::array();
  for (const DatasetReport::Preview& preview : report.previews) {
    value["previews"].push_back({{"document", preview.document}, {"tokens", preview.tokens}, {"text", preview.text}});
  }
  return value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace deltron
