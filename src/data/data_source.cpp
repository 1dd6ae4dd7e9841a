// See data_source.h.
#include "src/data/data_source.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/base/human.h"
#include "src/base/suggest.h"
#include "src/data/blend.h"
#include "src/data/documents_source.h"
#include "src/data/gpt_index.h"
#include "src/data/mqar_source.h"
#include "src/data/windows_source.h"

namespace deltron {
namespace {

DocumentRange split_of(const OpenedDataset& opened, const DataOptions& options, Split split) {
  const DocumentRange range = split_range(options.split, split, opened.dataset->num_sequences());
  if (range.count() > 0) return range;
  throw Error(ErrorCode::DataEmpty,
              ErrorText{std::string("split '") + split_name(split) + "' is empty", opened.dataset->prefix(),
                        "split \"" + options.split + "\" of " + thousands(opened.dataset->num_sequences()) + " documents", "",
                        "change data.split or give more documents"});
}

std::uint32_t windows_seed(std::uint64_t seed) {
  if (seed <= std::numeric_limits<std::uint32_t>::max()) return static_cast<std::uint32_t>(seed);
  throw Error(ErrorCode::DataOptionInvalid,
              ErrorText{"seed is too large for packing: windows", "training.seed", std::to_string(seed),
                        "numpy's shuffle takes seeds below 2^32", "choose a smaller seed"});
}

GptIndexRequest index_request(const DataOptions& options, const std::string& prefix, const DocumentRange& range,
                              std::int64_t samples) {
  GptIndexRequest request;
  request.range = range;
  request.seq_length = options.seq_length;
  request.samples_wanted = samples;
  request.seed = windows_seed(options.seed);
  request.cache_folder = options.cache_folder.empty() ? join_path(parent_folder(prefix), "cache") : options.cache_folder;
  return request;
}

std::shared_ptr<const SampleSource> make_single(const DataOptions& options, const std::string& prefix, Split split,
                                                std::int64_t samples) {
  const OpenedDataset opened = open_dataset(prefix, options.tokenizer, options.vocab_size);
  const DocumentRange range = split_of(opened, options, split);
  if (options.packing == "windows") {
    return std::make_shared<WindowsSource>(opened.dataset, opened.eod_id, index_request(options, prefix, range, samples));
  }
  if (options.packing == "documents") {
    return std::make_shared<DocumentsSource>(opened.dataset, opened.eod_id, range, options.seq_length, options.seed);
  }
  throw Error(ErrorCode::DataOptionInvalid,
              ErrorText{"unknown packing", "data.packing",
                        "'" + options.packing + "'" + did_you_mean(options.packing, {"windows", "documents"}),
                        "windows or documents", "choose one of these"});
}

void refuse_mqar(const DataOptions& options, const char* what) {
  for (const std::string& item : options.data_path) {
    if (!is_mqar_spec(item)) continue;
    throw Error(ErrorCode::DataOptionInvalid,
                ErrorText{std::string(what) + " of a synthetic task", "data.data_path", "'" + item + "'",
                          "synthetic samples are made on the fly and stand alone", "name token files"});
  }
}

}  // namespace

OpenedDataset open_dataset(const std::string& prefix, const std::string& tokenizer, std::int64_t vocab_size) {
  OpenedDataset opened;
  const auto dataset = std::make_shared<IndexedDataset>(prefix);
  if (vocab_size > 0) dataset->set_vocabulary(vocab_size);
  opened.dataset = dataset;
  opened.meta = load_dataset_meta(*opened.dataset);
  if (!tokenizer.empty()) {
    check_tokenizer(*opened.dataset, opened.meta, tokenizer);
    opened.eod_id = make_tokenizer(tokenizer)->eod_id();
  } else {
    opened.eod_id = opened.meta.eod_id;
  }
  if (vocab_size > 0) check_vocabulary(*opened.dataset, opened.meta, vocab_size);
  return opened;
}

std::shared_ptr<const SampleSource> make_sample_source(const DataOptions& options, Split split, std::int64_t samples) {
  if (options.data_path.size() == 1 && is_mqar_spec(options.data_path[0])) {
    const MqarOptions mqar = parse_mqar_spec(options.data_path[0], options.seq_length, options.seed, split != Split::Train);
    if (options.vocab_size > 0 && mqar.vocab_size > options.vocab_size) {
      throw Error(ErrorCode::TokenOutOfVocabulary,
                  ErrorText{"the task's vocabulary exceeds the model's", "data.data_path",
                            "mqar " + std::to_string(mqar.vocab_size) + ", model " + std::to_string(options.vocab_size),
                            "0 <= id < vocab_size", "set model.vocab_size to at least " + std::to_string(mqar.vocab_size)});
    }
    return std::make_shared<MqarSource>(mqar);
  }
  refuse_mqar(options, "a blend");
  const std::vector<WeightedPath> paths = parse_data_path(options.data_path);
  if (paths.size() == 1) return make_single(options, paths[0].prefix, split, samples);
  std::vector<double> weights;
  for (const WeightedPath& path : paths) weights.push_back(path.weight);
  const std::vector<double> shares = normalise_weights(weights);
  std::vector<std::shared_ptr<const SampleSource>> sources;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    sources.push_back(make_single(options, paths[i].prefix, split, blend_source_samples(shares[i], samples)));
  }
  return std::make_shared<BlendedSource>(std::move(sources), weights, samples);
}

std::vector<NamedEvaluation> make_evaluation_sources(const DataOptions& options, Split split, std::int64_t max_tokens) {
  refuse_mqar(options, "an ordered evaluation");
  std::vector<NamedEvaluation> result;
  for (const WeightedPath& path : parse_data_path(options.data_path)) {
    const OpenedDataset opened = open_dataset(path.prefix, options.tokenizer, options.vocab_size);
    const DocumentRange range = split_of(opened, options, split);
    NamedEvaluation entry;
    entry.name = path.prefix;
    entry.source = std::make_shared<const EvaluationSource>(opened.dataset, opened.eod_id, range, options.seq_length, max_tokens);
    if (!options.tokenizer.empty()) entry.text = count_split_text(*opened.dataset, range, *make_tokenizer(options.tokenizer));
    result.push_back(std::move(entry));
  }
  return result;
}

IndexReport build_sample_index(const DataOptions& options, Split split, std::int64_t samples) {
  refuse_mqar(options, "a sample index");
  const std::vector<WeightedPath> paths = parse_data_path(options.data_path);
  std::vector<double> weights;
  for (const WeightedPath& path : paths) weights.push_back(path.weight);
  const std::vector<double> shares = normalise_weights(weights);
  IndexReport report;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const OpenedDataset opened = open_dataset(paths[i].prefix, options.tokenizer, options.vocab_size);
    const DocumentRange range = split_of(opened, options, split);
    const std::int64_t wanted = paths.size() == 1 || samples < 0 ? samples : blend_source_samples(shares[i], samples);
    const WindowsSource source(opened.dataset, opened.eod_id, index_request(options, paths[i].prefix, range, wanted));
    IndexReport::Entry entry;
    entry.prefix = paths[i].prefix;
    entry.split = split_name(split);
    entry.documents = range;
    for (std::int64_t k = range.begin; k < range.end; ++k) entry.tokens_per_epoch += opened.dataset->length(k);
    entry.epochs = plan_gpt_index(entry.tokens_per_epoch, options.seq_length, wanted).epochs;
    entry.samples = source.num_samples();
    entry.key = source.index().key();
    entry.path = source.index().path();
    entry.was_cached = source.index().was_cached();
    entry.seconds = source.index().seconds();
    report.entries.push_back(std::move(entry));
  }
  return report;
}

std::string to_text(const IndexReport& report) {
  std::string text;
  for (const IndexReport::Entry& entry : report.entries) {
    text += entry.prefix + ", split " + entry.split + "\n";
    text += "  documents  " + std::to_string(entry.documents.begin) + " to " + std::to_string(entry.documents.end) + "\n";
    text += "  tokens     " + thousands(entry.tokens_per_epoch) + " an epoch, " + thousands(entry.epochs) + " epochs\n";
    text += "  samples    " + thousands(entry.samples) + "\n";
    text += "  key        " + entry.key + "\n";
    text += "  file       " + (entry.path.empty() ? "none (memory only)" : entry.path) + "\n";
    text += std::string("  ") + (entry.was_cached ? "found in   " : "built in   ") + human_seconds(entry.seconds) + "\n";
  }
  return text;
}

std::string to_json(const IndexReport& report) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const IndexReport::Entry& entry : report.entries) {
    nlohmann::ordered_json value;
    value["prefix"] = entry.prefix;
    value["split"] = entry.split;
    value["first_document"] = entry.documents.begin;
    value["end_document"] = entry.documents.end;
    value["tokens_per_epoch"] = entry.tokens_per_epoch;
    value["epochs"] = entry.epochs;
    value["samples"] = entry.samples;
    value["key"] = entry.key;
    value["path"] = entry.path;
    value["was_cached"] = entry.was_cached;
    value["seconds"] = entry.seconds;
    list.push_back(std::move(value));
  }
  return list.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace deltron
