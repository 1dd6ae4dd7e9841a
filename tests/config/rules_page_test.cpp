// The numbers of the rules: every row of Megatron's rules is answered once, and docs/config_rules.md is what the tables give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "src/config/region_table.h"
#include "src/config/validate.h"
#include "tests/support/generated_page.h"

namespace deltron {
namespace {

std::map<int, std::set<std::string>> rules_by_number() {
  std::map<int, std::set<std::string>> rules;
  for (const RuleInfo& rule : validation_rules()) {
    EXPECT_FALSE(rule.numbers.empty()) << rule.id;
    for (const int number : rule.numbers)
      EXPECT_TRUE(rules[number].insert(rule.id).second) << rule.id << " has " << number << " twice";
  }
  return rules;
}

TEST(RuleNumbers, every_row_of_megatrons_is_a_rule_or_answered_elsewhere_but_not_both) {
  const auto rules = rules_by_number();
  std::map<int, int> elsewhere;
  for (const RowElsewhere& row : rows_elsewhere()) {
    EXPECT_LE(row.first, row.last);
    EXPECT_FALSE(row.subject.empty());
    EXPECT_FALSE(row.answer.empty());
    for (int number = row.first; number <= row.last; ++number) ++elsewhere[number];
  }
  for (int number = 1; number <= kMegatronRows; ++number) {
    EXPECT_EQ(elsewhere[number] + (rules.count(number) != 0 ? 1 : 0), 1) << "row " << number;
  }
  EXPECT_EQ(elsewhere.rbegin()->first <= kMegatronRows, true);
}

TEST(RuleNumbers, our_own_numbers_name_one_rule_each) {
  for (const auto& [number, ids] : rules_by_number()) {
    if (number <= kMegatronRows) continue;
    EXPECT_GE(number, 200);
    EXPECT_EQ(ids.size(), 1u) << number;
  }
}

TEST(RuleNumbers, every_number_of_the_table_of_regions_is_a_rule) {
  const auto rules = rules_by_number();
  for (const ForbiddenPair& pair : forbidden_pairs()) {
    EXPECT_EQ(rules.count(pair.number), 1u) << pair.number;
    EXPECT_NE(find_module(pair.first_use, pair.first), nullptr) << pair.first;
    EXPECT_NE(find_module(pair.second_use, pair.second), nullptr) << pair.second;
  }
  for (const ModuleRequirement& requirement : module_requirements())
    EXPECT_EQ(rules.count(requirement.number), 1u) << requirement.number;
  for (const RefusedModule& module : refused_modules()) EXPECT_EQ(rules.count(module.number), 1u) << module.number;
  for (const MemoryModule& module : memory_modules()) {
    EXPECT_EQ(module.needs_number == 0 || rules.count(module.needs_number) == 1, true) << module.name;
    EXPECT_EQ(module.needs_number == 0, module.needs == LayerNeed::Any) << module.name;
  }
}

TEST(RuleNumbers, the_page_names_every_rule_and_module) {
  const std::string page = config_rules_markdown();
  for (const RuleInfo& rule : validation_rules()) EXPECT_THAT(page, ::testing::HasSubstr("| `" + rule.id + "` |"));
  for (const MemoryModule& module : memory_modules()) EXPECT_THAT(page, ::testing::HasSubstr(" " + module_text(module) + " |"));
}

TEST(RuleNumbers, the_rules_page_is_up_to_date) { test::expect_page("config_rules.md", config_rules_markdown()); }

}  // namespace
}  // namespace deltron
