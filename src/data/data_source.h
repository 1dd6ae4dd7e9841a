// From data options to the sources that training and evaluation read: the one place that knows all kinds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/data/batch.h"
#include "src/data/dataset_meta.h"
#include "src/data/evaluation_source.h"
#include "src/data/split.h"
#include "src/data/split_text.h"

namespace deltron {

struct DataOptions {
  std::vector<std::string> data_path;  // [PREFIX], [weight, PREFIX, weight, PREFIX ...] or [mqar:...]
  std::string split = "90,10,0";
  std::string tokenizer = "byte";   // empty: not checked (synthetic tasks, foreign files)
  std::string packing = "windows";  // windows | documents
  std::int64_t vocab_size = 0;      // the model's; every id must be below it
  std::int64_t seq_length = 0;
  std::uint64_t seed = 1234;
  std::string cache_folder;  // of sample indices; empty: 'cache' beside the data
};

// A token file that was opened and checked against vocabulary and tokenizer.
struct OpenedDataset {
  std::shared_ptr<const IndexedDataset> dataset;
  DatasetMeta meta;
  std::int32_t eod_id = -1;
};
OpenedDataset open_dataset(const std::string& prefix, const std::string& tokenizer, std::int64_t vocab_size);

// A source of at least `samples` samples (training: train_iters * global_batch_size). Blends give exactly `samples`.
std::shared_ptr<const SampleSource> make_sample_source(const DataOptions& options, Split split, std::int64_t samples);

struct NamedEvaluation {
  std::string name;  // the prefix
  std::shared_ptr<const EvaluationSource> source;
  SplitText text;  // divisor of bits per character and per byte; zero characters where no tokenizer is known
};
// One for every data set of data_path. Windows of options.seq_length, batches of at most `max_tokens`.
std::vector<NamedEvaluation> make_evaluation_sources(const DataOptions& options, Split split, std::int64_t max_tokens);

// `deltron data index`: builds (or finds) the sample indices that training with these options reads.
struct IndexReport {
  struct Entry {
    std::string prefix;
    std::string split;
    DocumentRange documents;
    std::int64_t tokens_per_epoch = 0;
    std::int64_t epochs = 0;
    std::int64_t samples = 0;
    std::string key;
    std::string path;
    bool was_cached = false;
    double seconds = 0;
  };
  std::vector<Entry> entries;
};
IndexReport build_sample_index(const DataOptions& options, Split split, std::int64_t samples);
std::string to_text(const IndexReport& report);
std::string to_json(const IndexReport& report);

}  // namespace deltron
