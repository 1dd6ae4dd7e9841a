// What ours should show at the published setting, and whether it does. Judged with the output-norm fusion on, the pre-rule fusion off,
// or unfused where that fusion cannot run.
#pragma once

#include <string>
#include <vector>

#include "tools/memory_table/measure.h"

namespace deltron::tools {

struct GoalResult {
  std::string goal;
  std::string wanted;
  std::string ours;   // empty: the row cannot run in this version
  bool met = false;
};

// Empty at any other setting.
std::vector<GoalResult> goal_results(const MeasuredTable& table);
// The table that goals are judged by; null: none ran.
const MeasuredTable* judged_table(const std::vector<MeasuredTable>& tables);

}  // namespace deltron::tools
