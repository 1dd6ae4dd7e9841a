// The second published figure: recompute of the whole block before the rule (in_proj, convolution, preparation, gates) on a proxy of
// a 397B-A17B mixture-of-experts model, 85.9 -> 77.8 GB. Its text states neither the sequence length nor the number of GDN layers, so
// this gives bytes a layer from the model's sizes, what the planner says ours would free, and the layers that the figure then needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltron::tools {

struct WholeBlockSetting {
  std::int64_t hidden_size = 4096;
  std::int64_t key_heads = 16, value_heads = 64;
  std::int64_t key_dim = 128, value_dim = 128;
  std::int64_t seq_length = 4096;  // assumed
  std::int64_t micro_batch_size = 4;
  std::int64_t tokens() const { return seq_length * micro_batch_size; }
};

struct BytesPerToken {
  std::string name;
  std::string formula;
  std::int64_t bytes = 0;
  bool output = false;  // freed by a discard-output region only
};
// What the published wide block saves, in bytes a token and GDN layer.
std::vector<BytesPerToken> whole_block_tensors(const WholeBlockSetting& setting);

struct WholeBlockPlan {
  std::int64_t layers = 0;
  std::int64_t published_ordinary = 0;  // bytes that the published block frees as an ordinary region: its outputs stay
  std::int64_t published_discard = 0;   // as a discard-output region
  std::int64_t ours_kept = 0;           // by the planner: alive at the end of forward, without minus with gdn_qkv_block
  std::int64_t ours_peak = 0;           // peak of a training step, without minus with
};

struct WholeBlock {
  WholeBlockSetting setting;
  double published_before_gb = 85.9, published_after_gb = 77.8, published_slowdown = 0.03;
  std::vector<WholeBlockPlan> plans;
  double layers_ordinary = 0, layers_discard = 0, layers_ours = 0;  // that the published difference needs
  double extra_share_of_mixer = 0;  // operations of doing in_proj again over those of a GDN mixer's training step
};
WholeBlock whole_block(const WholeBlockSetting& setting = {});

}  // namespace deltron::tools
