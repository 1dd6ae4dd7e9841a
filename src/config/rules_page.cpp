// docs/config_rules.md, written from the tables: rules by number, what may be combined, rows that no rule carries.
#include <algorithm>

#include "src/config/region_table.h"
#include "src/config/validate.h"

namespace deltron {
namespace {

std::string code(const std::string& text) { return "`" + text + "`"; }

std::string need_text(LayerNeed need) {
  switch (need) {
    case LayerNeed::Any:
      return "any";
    case LayerNeed::Linear:
      return "linear";
    case LayerNeed::Softmax:
      return "softmax";
  }
  return "";
}

std::string rules_by_number() {
  std::vector<RuleInfo> rules = validation_rules();
  std::stable_sort(rules.begin(), rules.end(),
                   [](const RuleInfo& a, const RuleInfo& b) { return a.numbers.front() < b.numbers.front(); });
  std::string text = "| numbers | rule | holds up |\n|---|---|---|\n";
  for (const RuleInfo& rule : rules) {
    std::string numbers;
    for (const int number : rule.numbers) numbers += (numbers.empty() ? "" : ", ") + std::to_string(number);
    text += "| " + numbers + " | " + code(rule.id) + " | " + rule.description + " |\n";
  }
  return text;
}

std::string modules_table() {
  std::string text = "| name | use | kind | covers | layers |\n|---|---|---|---|---|\n";
  for (const MemoryModule& module : memory_modules()) {
    text += "| " + code(module.name) + " | " + use_text(module.use) + " | " + module.kind + " | " + module.covers + " | " +
            need_text(module.needs) + " |\n";
  }
  return text;
}

// Lower triangle: each pair stands once.
std::string matrix() {
  const std::vector<MemoryModule>& modules = memory_modules();
  std::string text = "| |";
  std::string dashes = "|---|";
  for (std::size_t column = 0; column + 1 < modules.size(); ++column) {
    text += " " + std::to_string(column + 1) + " |";
    dashes += "---|";
  }
  text += "\n" + dashes + "\n";
  for (std::size_t row = 0; row < modules.size(); ++row) {
    text += "| " + std::to_string(row + 1) + " " + module_text(modules[row]) + " |";
    for (std::size_t column = 0; column + 1 < modules.size(); ++column) {
      if (column >= row) {
        text += " |";
        continue;
      }
      const std::optional<int> number = excluding_rule(modules[row], modules[column]);
      text += " " + (number ? "**" + std::to_string(*number) + "**" : std::string("yes")) + " |";
    }
    text += "\n";
  }
  return text;
}

std::string reasons() {
  std::string text = "| rule | refused | why |\n|---|---|---|\n";
  const auto name = [](ModuleUse use, const std::string& module) { return code(module_text(*find_module(use, module))); };
  for (const ForbiddenPair& pair : forbidden_pairs()) {
    text += "| " + std::to_string(pair.number) + " | " + name(pair.first_use, pair.first) + " with " +
            name(pair.second_use, pair.second) + " | " + pair.why + " |\n";
  }
  for (const ModuleRequirement& requirement : module_requirements()) {
    text += "| " + std::to_string(requirement.number) + " | " + name(requirement.use, requirement.name) + " without " +
            name(requirement.needed_use, requirement.needed) + " | " + requirement.why + " |\n";
  }
  for (const RefusedModule& module : refused_modules()) {
    text +=
        "| " + std::to_string(module.number) + " | " + code(module.name + " " + use_text(module.use)) + " | " + module.why + " |\n";
  }
  return text;
}

std::string elsewhere(bool checked) {
  std::string text = std::string("| row | subject | ") + (checked ? "where it is checked" : "why") + " |\n|---|---|---|\n";
  for (const RowElsewhere& row : rows_elsewhere()) {
    if (row.checked != checked) continue;
    const std::string numbers = std::to_string(row.first) + (row.last > row.first ? "–" + std::to_string(row.last) : "");
    text += "| " + numbers + " | " + row.subject + " | " + row.answer + " |\n";
  }
  return text;
}

}  // namespace

std::string config_rules_markdown() {
  return "# Configuration rules\n\n"
         "Generated from the tables in `src/config`; do not edit. Every rule is one function; all violations are reported "
         "together, each with\n"
         "the file, line and column of the key. Numbers up to 105 are rows of the rules of Megatron's GDN configuration, where "
         "warnings have\n"
         "become errors; numbers from 200 are our own. The range and the words of a single key are in "
         "[config_reference.md](config_reference.md).\n\n"
         "## Rules by number\n\n" +
         rules_by_number() + "\n## Recompute regions, offload modules, fusions\n\n" + modules_table() +
         "\n## What may be combined\n\n"
         "`yes`, or the number of the rule that refuses the pair; a module that works only with another one is taken together with "
         "it. A set is\n"
         "legal where all of its pairs are.\n\n" +
         matrix() + "\n" + reasons() + "\n## Rows checked elsewhere\n\n" + elsewhere(true) + "\n## Rows that do not apply\n\n" +
         elsewhere(false);
}

}  // namespace deltron
