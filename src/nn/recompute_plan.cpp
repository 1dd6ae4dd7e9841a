// See recompute_plan.h.
#include "src/nn/recompute_plan.h"

#include "src/base/check.h"

namespace deltron {

RecomputePlan make_recompute_plan(const RecomputeConfig& config) {
  RecomputePlan plan;
  if (config.recompute_granularity == RecomputeGranularity::Full) {
    plan.full_uniform = config.recompute_method == RecomputeMethod::Uniform;
    plan.full_block = config.recompute_method == RecomputeMethod::Block;
    plan.full_layers = config.recompute_num_layers;
    return plan;
  }
  if (config.recompute_granularity == RecomputeGranularity::None) return plan;
  const struct {
    const char* name;
    bool* flag;
  } regions[] = {
      {"core_attn", &plan.core_attn},       {"mlp", &plan.mlp},
      {"gdn", &plan.gdn},                   {"gdn_in_proj", &plan.gdn_in_proj},
      {"gdn_qkv", &plan.gdn_qkv},           {"gdn_norm_out", &plan.gdn_norm_out},
      {"gdn_qkv_block", &plan.gdn_qkv_block}, {"gdn_core_attn", &plan.gdn_core_attn},
  };
  for (const std::string& module : config.recompute_modules) {
    bool known = false;
    for (const auto& region : regions) {
      if (module != region.name) continue;
      *region.flag = true;
      known = true;
    }
    DELTRON_CHECK(known, "recompute module '", module, "' passed validation and has no region");
  }
  return plan;
}

}  // namespace deltron
