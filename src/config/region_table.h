// The one table of recompute regions, offload modules and fusions: what each covers, which layers it needs, and which two of them
// exclude each other, by which rule. Read by the schema (its words), the validator, docs/config_rules.md and tests.
// Must not know tensors, nor how a region runs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/config/run_config.h"

namespace deltron {

// Recompute: a word of recompute_modules. FullRecompute: recompute_granularity full. Offload: a word of offload_modules.
// Fusion: a flag of section `model`.
enum class ModuleUse { Recompute, FullRecompute, Offload, Fusion };
enum class LayerNeed { Any, Linear, Softmax };

struct MemoryModule {
  ModuleUse use;
  std::string name;
  std::string kind;
  std::string covers;
  LayerNeed needs;
  int needs_number;  // of the rule that holds it up; 0 with Any
};

// Two entries that exclude each other; what is not listed may be combined.
struct ForbiddenPair {
  ModuleUse first_use;
  std::string first;
  ModuleUse second_use;
  std::string second;
  int number;  // of the rule
  std::string why;
};

// An entry that works only with another one.
struct ModuleRequirement {
  ModuleUse use;
  std::string name;
  ModuleUse needed_use;
  std::string needed;
  int number;
  std::string why;
};

// A word that other frameworks have and that would free nothing here.
struct RefusedModule {
  ModuleUse use;
  std::string name;
  int number;
  std::string why;
};

const std::vector<MemoryModule>& memory_modules();
const std::vector<ForbiddenPair>& forbidden_pairs();
const std::vector<ModuleRequirement>& module_requirements();
const std::vector<RefusedModule>& refused_modules();

const MemoryModule* find_module(ModuleUse use, const std::string& name);  // null where there is none
std::vector<std::string> module_words(ModuleUse use);
std::string use_text(ModuleUse use);  // "recompute", "offload", "fusion"
// "gdn_qkv recompute", "full recompute", "gdn_qkv offload", "gdn_..._fusion".
std::string module_text(const MemoryModule& module);

// The number of the rule that forbids both together, with whatever each of them requires; empty where they may be combined.
std::optional<int> excluding_rule(const MemoryModule& a, const MemoryModule& b);

// What a configuration switches on: regions only with granularity selective, offload modules only with offloading on. Unknown words
// and repetitions are left out.
std::vector<MemoryModule> active_modules(const RunConfig& config);

}  // namespace deltron
