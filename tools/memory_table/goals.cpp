// See goals.h.
#include "tools/memory_table/goals.h"

namespace deltron::tools {
namespace {

struct Limit {
  const char* goal;
  const char* row;
  double gdn, gdn2;  // MiB kept
};
constexpr Limit kLimits[] = {
    {"kept", "baseline", 65.0, 84.5},
    {"kept without T (the aim)", "gdn_core_attn", 61.0, 76.5},
};

struct Difference {
  const char* row;
  const char* gdn;
  const char* gdn2;  // to one digit
};
constexpr Difference kDifferences[] = {
    {"gdn_in_proj", "-24.1", "-40.0"},
    {"gdn_qkv", "-16.1", "-16.1"},
    {"gdn_norm_out", "-8.1", "-8.1"},
    {"all three", "-48.4", "-64.3"},
    {"gdn_qkv offload", "-16.0", "-16.0"},
};
constexpr const char* kOffloadToHost = "+16.0";

GoalResult within(const Limit& limit, const MeasuredRow& row, bool second) {
  const double most = second ? limit.gdn2 : limit.gdn;
  return {limit.goal, "<= " + fixed(most, 1), mib_text(row.kept_bytes), mebibytes(row.kept_bytes) <= most};
}

GoalResult equals(const std::string& goal, const std::string& wanted, std::int64_t bytes) {
  return {goal, wanted, signed_mib(bytes), signed_mib(bytes, 1) == wanted};
}

}  // namespace

const MeasuredTable* judged_table(const std::vector<MeasuredTable>& tables) {
  const MeasuredTable* judged = nullptr;
  for (const MeasuredTable& table : tables) {
    if (table.refused.empty() && !table.fusion.pre_rule && (judged == nullptr || table.fusion.output_norm)) judged = &table;
  }
  return judged;
}

std::vector<GoalResult> goal_results(const MeasuredTable& table) {
  std::vector<GoalResult> results;
  if (!table.setting.is_the_published_one()) return results;
  const bool second = table.setting.second;
  for (const Limit& limit : kLimits) results.push_back(within(limit, *table.row(limit.row), second));
  for (const Difference& difference : kDifferences) {
    const MeasuredRow& row = *table.row(difference.row);
    const std::string wanted = second ? difference.gdn2 : difference.gdn, goal = std::string("`") + difference.row + "`";
    if (!row.refused.empty()) {
      results.push_back({goal, wanted, "", false});
      continue;
    }
    // Offload moves: what leaves the device is told by its memory, not by what the graph holds.
    const bool offload = !row.row.offload.empty();
    results.push_back(equals(goal + (offload ? ", device" : ""), wanted, row.device_bytes - table.baseline().device_bytes));
    if (offload) results.push_back(equals(goal + ", host", kOffloadToHost, row.host_bytes));
  }
  return results;
}

}  // namespace deltron::tools
