// What the rules of recompute and offload share: reports read off the table of region_table.h.
#include <algorithm>

#include "src/config/rules.h"

namespace deltron {
namespace {

constexpr const char* kModules = "recompute.recompute_modules";
constexpr const char* kOffloadModules = "offload.offload_modules";

std::string key_of(const MemoryModule& module) {
  switch (module.use) {
    case ModuleUse::Recompute:
      return kModules;
    case ModuleUse::FullRecompute:
      return "recompute.recompute_granularity";
    case ModuleUse::Offload:
      return kOffloadModules;
    case ModuleUse::Fusion:
      return "model." + module.name;
  }
  return "";
}

std::string removal(const MemoryModule& module) {
  if (module.use == ModuleUse::Fusion) return "set " + key_of(module) + ": false";
  if (module.use == ModuleUse::FullRecompute) return "choose another " + key_of(module);
  return "remove " + module.name + " from " + key_of(module);
}

// Every key that decides whether the module is on; the one that names it comes first.
std::vector<std::string> keys_of(const MemoryModule& module) {
  std::vector<std::string> keys = {key_of(module)};
  if (module.use == ModuleUse::Recompute) keys.push_back("recompute.recompute_granularity");
  if (module.use == ModuleUse::Offload) keys.push_back("offload.fine_grained_activation_offloading");
  return keys;
}

const MemoryModule* active_one(const std::vector<MemoryModule>& active, ModuleUse use, const std::string& name) {
  for (const MemoryModule& module : active) {
    if (module.use == use && module.name == name) return &module;
  }
  return nullptr;
}

}  // namespace

void refuse_pairs(RuleContext& context, const std::vector<int>& numbers) {
  const std::vector<MemoryModule> active = active_modules(context.config);
  for (const ForbiddenPair& pair : forbidden_pairs()) {
    if (std::find(numbers.begin(), numbers.end(), pair.number) == numbers.end()) continue;
    const MemoryModule* first = active_one(active, pair.first_use, pair.first);
    const MemoryModule* second = active_one(active, pair.second_use, pair.second);
    if (first == nullptr || second == nullptr) continue;
    std::vector<std::string> keys = keys_of(*first);
    for (const std::string& key : keys_of(*second)) keys.push_back(key);
    context.report(ErrorCode::ConfigInconsistent, keys,
                   {module_text(*first) + " with " + module_text(*second), "", "",
                    "rule " + std::to_string(pair.number) + ": " + pair.why, removal(*first) + ", or " + removal(*second)});
  }
}

void refuse_without_layers(RuleContext& context, ModuleUse use, LayerNeed need) {
  const TransformerConfig& model = context.config.model;
  if (!layers_known(model)) return;
  const bool there = need == LayerNeed::Linear ? has_linear_layers(model) : has_softmax_layers(model);
  if (there) return;
  const std::string lacking = need == LayerNeed::Linear ? "Gated DeltaNet" : "softmax attention";
  for (const MemoryModule& module : active_modules(context.config)) {
    if (module.use != use || module.needs != need) continue;
    std::vector<std::string> keys = keys_of(module);
    for (const char* key : {"model.num_layers", "model.experimental_attention_variant", "model.linear_attention_freq"})
      keys.push_back(key);
    context.report(ErrorCode::ConfigInconsistent, keys,
                   {module_text(module) + " on a model without " + lacking + " layers", "", "",
                    "rule " + std::to_string(module.needs_number) + ": it is a part of them", removal(module)});
  }
}

void refuse_repetitions(RuleContext& context, const std::string& name) {
  const FieldValue value = field_of(name).get(context.config);
  const auto& words = std::get<std::vector<std::string>>(value);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto here = words.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::count(words.begin(), here, words[i]) != 1) continue;  // once for a word, however often it is repeated
    context.report(
        ErrorCode::ConfigInconsistent, {name},
        {name + " names a module twice", "", "'" + words[i] + "'", "rule 104: each module stands once", "remove the repetition"});
  }
}

}  // namespace deltron
