// Shared by the training tests: generated text as token files, tiny configurations, and the hashes of all that a checkpoint holds.
#pragma once

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "src/base/file.h"
#include "src/base/log.h"
#include "src/base/rng.h"
#include "src/checkpoint/catalog.h"
#include "src/config/loader.h"
#include "src/data/prepare.h"
#include "src/train/trainer.h"
#include "tests/checkpoint/temp_folder.h"

namespace deltron::test {

// Documents of made-up words, between a half and one and a half times `characters` long.
inline std::string made_text(int documents, int characters, std::uint64_t seed = 1) {
  RngStream random({seed, 0, kRngSiteData}, 0);
  std::string text;
  for (int d = 0; d < documents; ++d) {
    const std::size_t end = text.size() + static_cast<std::size_t>(characters / 2) + random.below(static_cast<std::uint64_t>(characters));
    while (text.size() < end) {
      const std::uint64_t letters = 2 + random.below(6);
      for (std::uint64_t i = 0; i < letters; ++i) text += static_cast<char>('a' + random.below(26));
      text += ' ';
    }
    text += "\n\n";
  }
  return text;
}

// Token files of `text`; returns their prefix.
inline std::string prepare_text(const TempFolder& folder, const std::string& name, const std::string& text) {
  write_file_atomically(folder / (name + ".txt"), text);
  PrepareOptions options;
  options.inputs = {folder / (name + ".txt")};
  options.output = folder / name;
  options.overwrite = true;
  prepare_data(options);
  return options.output;
}

// A hybrid with everything that can hide state: a GDN and a softmax layer, dropout in both, two micro-batches a step.
inline RunConfig tiny_config(const std::string& prefix, const std::vector<std::string>& overrides = {}) {
  static const char* const kText = R"(
model:
  num_layers: 2
  hidden_size: 32
  ffn_hidden_size: 48
  vocab_size: 264
  experimental_attention_variant: gdn
  linear_attention_freq: [1, 0]
  linear_num_key_heads: 2
  linear_num_value_heads: 4
  linear_key_head_dim: 8
  linear_value_head_dim: 8
  num_attention_heads: 4
  num_query_groups: 2
  kv_channels: 8
  attention_output_gate: true
  qk_layernorm: true
  rotary_percent: 0.5
  hidden_dropout: 0.1
  attention_dropout: 0.1
training: { device: cpu, micro_batch_size: 2, global_batch_size: 4, seq_length: 32, train_iters: 20, seed: 7, threads: 1 }
optimizer: { lr: 3.0e-3, min_lr: 1.0e-4, lr_warmup_iters: 4, weight_decay: 0.1, clip_grad: 1.0 }
logging: { log_interval: 5 }
)";
  std::vector<std::string> all = overrides;
  all.push_back("data.data_path=[" + prefix + "]");
  return load_config_text(kText, "tiny.yaml", all).config;
}

inline TrainOutcome run_training(const RunConfig& config, const TrainOptions& options = {}) {
  set_log_level(LogLevel::Error);
  TrainOutcome outcome = train(config, options);
  set_log_file("");
  return outcome;
}

// Every tensor of a checkpoint, weights and optimizer state, with its content hash.
inline std::map<std::string, std::string> tensor_hashes(const std::string& run, std::int64_t step) {
  std::map<std::string, std::string> hashes;
  for (const ManifestTensor& tensor : read_manifest(checkpoint_path(run, step)).tensors) hashes[tensor.name] = tensor.hash;
  return hashes;
}

// metrics.jsonl, every line parsed; `event` empty: all.
inline std::vector<nlohmann::json> metrics_lines(const std::string& run, const std::string& event = "") {
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_file(join_path(run, "metrics.jsonl")));
  for (std::string line; std::getline(text, line);) {
    nlohmann::json parsed = nlohmann::json::parse(line);
    if (event.empty() || parsed.at("event") == event) lines.push_back(std::move(parsed));
  }
  return lines;
}

}  // namespace deltron::test
