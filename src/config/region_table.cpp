// The table itself; see region_table.h. Rule numbers: docs/config_rules.md.
#include "src/config/region_table.h"

#include <algorithm>

namespace deltron {
namespace {

constexpr ModuleUse kRecompute = ModuleUse::Recompute;
constexpr ModuleUse kFull = ModuleUse::FullRecompute;
constexpr ModuleUse kOffload = ModuleUse::Offload;
constexpr ModuleUse kFusion = ModuleUse::Fusion;

constexpr const char* kPreRuleFusion = "gdn_pre_gated_delta_rule_fusion";
constexpr const char* kOutputNormFusion = "gdn_gated_output_norm_fusion";

std::vector<ForbiddenPair> write_forbidden_pairs() {
  std::vector<ForbiddenPair> pairs;
  for (const std::string& region : module_words(kRecompute)) {
    pairs.push_back({kFull, "full", kRecompute, region, 103, "full recompute repeats whole layers and reads no list of regions"});
  }
  const std::vector<ForbiddenPair> overlaps = {
      {kRecompute, "gdn", kRecompute, "gdn_norm_out", 46, "gdn covers the gated norm"},
      {kRecompute, "gdn", kRecompute, "gdn_in_proj", 50, "gdn covers in_proj"},
      {kRecompute, "gdn", kRecompute, "gdn_qkv", 50, "gdn covers the convolution and the q/k/v preparation"},
      {kRecompute, "gdn", kRecompute, "gdn_qkv_block", 304, "gdn covers in_proj, convolution and preparation"},
      {kRecompute, "gdn", kRecompute, "gdn_core_attn", 304, "gdn covers the delta rule"},
      {kRecompute, "gdn_qkv_block", kRecompute, "gdn_in_proj", 304, "gdn_qkv_block covers in_proj"},
      {kRecompute, "gdn_qkv_block", kRecompute, "gdn_qkv", 304, "gdn_qkv_block covers the convolution and the q/k/v preparation"},

      {kRecompute, "gdn_qkv", kFusion, kPreRuleFusion, 51,
       "the fused kernel joins convolution and preparation with the gates, so that gdn_qkv has no output of its own"},
      {kOffload, "gdn_qkv", kFusion, kPreRuleFusion, 52,
       "the fused kernel joins convolution and preparation with the gates and keeps no input of gdn_qkv apart"},

      {kOffload, "gdn_qkv", kRecompute, "gdn_in_proj", 53,
       "gdn_in_proj frees the qkv storage and computes it again: nothing is left to keep on the host"},
      {kOffload, "gdn_qkv", kRecompute, "gdn_qkv_block", 324,
       "gdn_qkv_block frees the qkv storage and computes it again: nothing is left to keep on the host"},
      {kOffload, "gdn_qkv", kRecompute, "gdn", 324, "gdn keeps no qkv storage: nothing is left to keep on the host"},
      {kOffload, "gdn_core_attn", kRecompute, "gdn_core_attn", 324,
       "the recomputed rule saves nothing that could be kept on the host"},
      {kOffload, "gdn_core_attn", kRecompute, "gdn", 324,
       "gdn covers the rule, which then saves nothing that could be kept on the host"},
      {kOffload, "gdn_core_attn", kRecompute, "gdn_qkv", 324,
       "gdn_qkv frees q, k and v, which are what the rule saved, and computes them again"},
      {kOffload, "gdn_core_attn", kRecompute, "gdn_qkv_block", 324,
       "gdn_qkv_block frees q, k and v, which are what the rule saved, and computes them again"},
      {kOffload, "core_attn", kRecompute, "core_attn", 324, "recomputed attention saves nothing that could be kept on the host"},

      {kFull, "full", kOffload, "gdn_qkv", 323, "a replayed layer keeps its input alone"},
      {kFull, "full", kOffload, "gdn_core_attn", 81, "a replayed layer keeps its input alone"},
      {kFull, "full", kOffload, "core_attn", 323, "a replayed layer keeps its input alone"},
      {kFull, "full", kOffload, "attn_proj", 323, "a replayed layer keeps its input alone"},
  };
  pairs.insert(pairs.end(), overlaps.begin(), overlaps.end());
  return pairs;
}

bool is(const MemoryModule& module, ModuleUse use, const std::string& name) { return module.use == use && module.name == name; }

std::optional<int> forbidden_number(const MemoryModule& a, const MemoryModule& b) {
  for (const ForbiddenPair& pair : forbidden_pairs()) {
    const bool this_way = is(a, pair.first_use, pair.first) && is(b, pair.second_use, pair.second);
    const bool that_way = is(b, pair.first_use, pair.first) && is(a, pair.second_use, pair.second);
    if (this_way || that_way) return pair.number;
  }
  return std::nullopt;
}

// `module` and what it requires.
std::vector<const MemoryModule*> with_requirements(const MemoryModule& module) {
  std::vector<const MemoryModule*> all = {&module};
  for (const ModuleRequirement& requirement : module_requirements()) {
    if (is(module, requirement.use, requirement.name)) all.push_back(find_module(requirement.needed_use, requirement.needed));
  }
  return all;
}

}  // namespace

const std::vector<MemoryModule>& memory_modules() {
  static const std::vector<MemoryModule> modules = {
      {kFull, "full", "ordinary", "whole layers: recompute_method uniform or block", LayerNeed::Any, 0},
      {kRecompute, "core_attn", "ordinary", "the core of softmax attention", LayerNeed::Softmax, 303},
      {kRecompute, "mlp", "ordinary", "the MLP", LayerNeed::Any, 0},
      {kRecompute, "gdn", "ordinary", "the linear mixer from in_proj to the normed core output", LayerNeed::Linear, 45},
      {kRecompute, "gdn_in_proj", "discard-output", "in_proj and its all-to-all: both storages", LayerNeed::Linear, 47},
      {kRecompute, "gdn_qkv", "discard-output", "convolution and q/k/v preparation", LayerNeed::Linear, 48},
      {kRecompute, "gdn_norm_out", "discard-output", "gated norm and its all-to-all", LayerNeed::Linear, 44},
      {kRecompute, "gdn_qkv_block", "discard-output, replayed before gdn_norm_out",
       "in_proj, its all-to-all, convolution, q/k/v preparation and gates", LayerNeed::Linear, 306},
      {kRecompute, "gdn_core_attn", "ordinary", "the delta rule", LayerNeed::Linear, 306},
      {kOffload, "gdn_qkv", "offload", "the qkv storage, which the convolution reads", LayerNeed::Linear, 49},
      {kOffload, "gdn_core_attn", "offload", "what the delta rule saved", LayerNeed::Linear, 81},
      {kOffload, "core_attn", "offload", "what the core of softmax attention saved", LayerNeed::Softmax, 326},
      {kOffload, "attn_proj", "offload", "the input of softmax attention's output projection", LayerNeed::Softmax, 326},
      {kOffload, "layer_input", "offload", "the inputs that full recompute keeps", LayerNeed::Any, 0},
      {kFusion, kPreRuleFusion, "fused kernel", "convolution, SiLU, L2 norm and gates before the rule", LayerNeed::Linear, 82},
      {kFusion, kOutputNormFusion, "fused kernel", "the gated output norm", LayerNeed::Linear, 82},
  };
  return modules;
}

const std::vector<ForbiddenPair>& forbidden_pairs() {
  static const std::vector<ForbiddenPair> pairs = write_forbidden_pairs();
  return pairs;
}

const std::vector<ModuleRequirement>& module_requirements() {
  static const std::vector<ModuleRequirement> requirements = {
      {kOffload, "attn_proj", kOffload, "core_attn", 68,
       "the projection's input is the core's saved output: one leaves the device only with the other"},
      {kOffload, "layer_input", kFull, "full", 322, "only full recompute keeps layer inputs"},
  };
  return requirements;
}

const std::vector<RefusedModule>& refused_modules() {
  static const std::vector<RefusedModule> refused = {
      {kRecompute, "layernorm", 305,
       "it would free nothing: normalised inputs are never kept, every projection computes them again from the residual stream"},
      {kOffload, "attn_norm", 325,
       "it would free nothing: normalised inputs are never kept, and the norm's own input is the residual stream"},
      {kOffload, "mlp_norm", 325,
       "it would free nothing: normalised inputs are never kept, and the norm's own input is the residual stream"},
  };
  return refused;
}

const MemoryModule* find_module(ModuleUse use, const std::string& name) {
  for (const MemoryModule& module : memory_modules()) {
    if (is(module, use, name)) return &module;
  }
  return nullptr;
}

std::vector<std::string> module_words(ModuleUse use) {
  std::vector<std::string> words;
  for (const MemoryModule& module : memory_modules()) {
    if (module.use == use) words.push_back(module.name);
  }
  return words;
}

std::string use_text(ModuleUse use) {
  switch (use) {
    case ModuleUse::Recompute:
    case ModuleUse::FullRecompute:
      return "recompute";
    case ModuleUse::Offload:
      return "offload";
    case ModuleUse::Fusion:
      return "fusion";
  }
  return "";
}

std::string module_text(const MemoryModule& module) {
  return module.use == ModuleUse::Fusion ? module.name : module.name + " " + use_text(module.use);
}

std::optional<int> excluding_rule(const MemoryModule& a, const MemoryModule& b) {
  for (const MemoryModule* one : with_requirements(a)) {
    for (const MemoryModule* other : with_requirements(b)) {
      if (const std::optional<int> number = forbidden_number(*one, *other)) return number;
    }
  }
  return std::nullopt;
}

std::vector<MemoryModule> active_modules(const RunConfig& config) {
  const auto among = [](const std::vector<std::string>& list, const std::string& word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  const RecomputeConfig& recompute = config.recompute;
  const OffloadConfig& offload = config.offload;
  std::vector<MemoryModule> active;
  for (const MemoryModule& module : memory_modules()) {
    bool on = false;
    switch (module.use) {
      case ModuleUse::FullRecompute:
        on = recompute.recompute_granularity == RecomputeGranularity::Full;
        break;
      case ModuleUse::Recompute:
        on = recompute.recompute_granularity == RecomputeGranularity::Selective && among(recompute.recompute_modules, module.name);
        break;
      case ModuleUse::Offload:
        on = offload.fine_grained_activation_offloading && among(offload.offload_modules, module.name);
        break;
      case ModuleUse::Fusion:
        on = module.name == kPreRuleFusion ? config.model.gdn_pre_gated_delta_rule_fusion
                                           : config.model.gdn_gated_output_norm_fusion;
        break;
    }
    if (on) active.push_back(module);
  }
  return active;
}

}  // namespace deltron
