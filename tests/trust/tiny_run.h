// A tiny hybrid run on two small token files, made once a test: configuration, folders, and ways to look at what a run left behind.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/base/file.h"
#include "src/base/hash.h"
#include "src/base/signals.h"
#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"
#include "src/data/prepare.h"
#include "src/train/trainer.h"

namespace deltron::testing {

// A fresh folder that is removed with the object.
class Folder {
 public:
  explicit Folder(const std::string& name) {
    path_ = (std::filesystem::temp_directory_path() / ("deltron_" + name + "_" + std::to_string(::getpid()))).string();
    remove_tree(path_);
    make_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return join_path(path_, name); }

 private:
  std::string path_;
};

// A token file of `documents` documents of varying length.
inline void make_tokens(const std::string& prefix, int documents, int seed) {
  std::string text;
  for (int d = 0; d < documents; ++d) {
    for (int i = 0; i < 20 + (d * 37 + seed * 11) % 60; ++i) text += static_cast<char>('a' + (i * i + d * 7 + i * seed) % 26);
    text += "\n\n";
  }
  write_file_atomically(prefix + ".txt", text);
  PrepareOptions options;
  options.inputs = {prefix + ".txt"};
  options.output = prefix;
  options.overwrite = true;
  prepare_data(options);
}

// One GDN layer and one softmax layer, micro-batches of 2, global batch 4, sequences of 16; two token files blended 3:1.
inline RunConfig tiny_config(const Folder& folder) {
  RunConfig config;
  TransformerConfig& m = config.model;
  m.num_layers = 2;
  m.hidden_size = 16;
  m.ffn_hidden_size = 24;
  m.vocab_size = 264;
  m.experimental_attention_variant = ExperimentalAttentionVariant::Gdn;
  m.linear_attention_freq.interval = 2;
  m.linear_num_key_heads = m.linear_num_value_heads = 2;
  m.linear_key_head_dim = m.linear_value_head_dim = 8;
  m.num_attention_heads = 2;
  m.hidden_dropout = 0.1;
  config.training.micro_batch_size = 2;
  config.training.global_batch_size = 4;
  config.training.seq_length = 16;
  config.training.train_iters = 20;
  config.training.threads = 2;
  config.optimizer.lr = 1e-3;
  config.optimizer.lr_warmup_iters = 2;
  config.data.data_path = {"3", folder / "a", "1", folder / "b"};
  config.data.split = "80,20,0";
  config.checkpoint.save = folder / "run";
  config.logging.log_interval = 5;
  make_tokens(folder / "a", 12, 1);
  make_tokens(folder / "b", 9, 2);
  return config;
}

// Hash of everything in a checkpoint that a later update depends on.
inline std::string checkpoint_hash(const std::string& run, std::int64_t step) {
  const CheckpointReader reader(checkpoint_path(run, step));
  StreamingHash hash;
  for (const std::string& name : reader.names()) {
    const HostView view = reader.view(name);
    hash.update(name.data(), name.size());
    hash.update(view.data, view.bytes);
  }
  nlohmann::json state = reader.state();
  state.erase("fingerprint");
  const std::string text = state.dump();
  hash.update(text.data(), text.size());
  return hash_text(hash.digest());
}

inline std::vector<nlohmann::json> metrics_lines(const std::string& run, const std::string& event) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(read_file(join_path(run, "metrics.jsonl")));
  for (std::string line; std::getline(stream, line);) {
    const nlohmann::json entry = nlohmann::json::parse(line);
    if (entry.at("event") == event) lines.push_back(entry);
  }
  return lines;
}

}  // namespace deltron::testing
