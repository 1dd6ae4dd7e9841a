// Which recompute regions a model runs with, as flags that layers read. Names and kinds: DESIGN section 3, docs/recompute_and_offload.md.
#pragma once

#include "src/config/run_config.h"

namespace deltron {

struct RecomputePlan {
  // Selective regions.
  bool core_attn = false;      // ordinary: softmax attention core
  bool mlp = false;            // ordinary
  bool gdn = false;            // ordinary: in_proj to the normed core output
  bool gdn_in_proj = false;    // discard-output: both storages of in_proj
  bool gdn_qkv = false;        // discard-output: convolution and q/k/v preparation
  bool gdn_norm_out = false;   // discard-output: gated norm
  bool gdn_qkv_block = false;  // discard-output: in_proj, convolution and preparation together
  bool gdn_core_attn = false;  // ordinary: the delta rule
  // Full recompute: blocks of `full_layers` consecutive layers (uniform), or the first `full_layers` layers one by one (block).
  bool full_uniform = false;
  bool full_block = false;
  std::int64_t full_layers = 0;
};

RecomputePlan make_recompute_plan(const RecomputeConfig& config);

}  // namespace deltron
