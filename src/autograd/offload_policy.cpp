// See offload_policy.h.
#include "src/autograd/offload_policy.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>

#include "src/base/human.h"

namespace deltron {
namespace {

// The last row of each name in one chunk, latest first.
std::vector<OffloadRow*> last_of_each_name(std::vector<OffloadRow>& rows, int chunk) {
  std::vector<OffloadRow*> found;
  std::set<std::string> names;
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    if (row->chunk == chunk && names.insert(row->name).second) found.push_back(&*row);
  }
  return found;
}

// The chunks in the order of their backwards; those without one are left out.
std::vector<int> backward_order(const std::vector<OffloadChunkInfo>& chunks) {
  std::map<int, int> order;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if (chunks[chunk].backward_index >= 0) order[chunks[chunk].backward_index] = static_cast<int>(chunk);
  }
  std::vector<int> result;
  for (const auto& [index, chunk] : order) result.push_back(chunk);
  return result;
}

}  // namespace

const char* offload_decision_name(OffloadDecision decision) {
  switch (decision) {
    case OffloadDecision::Move: return "offloaded";
    case OffloadDecision::KeepMargin: return "kept: first needed in backward";
    case OffloadDecision::KeepNeededAtOnce: return "kept: needed at once";
    case OffloadDecision::KeepFraction: return "kept: activation_offload_fraction";
  }
  return "?";
}

void decide_offload(std::vector<OffloadRow>& rows, const std::vector<OffloadChunkInfo>& chunks, double fraction) {
  for (OffloadRow& row : rows) row.decision = OffloadDecision::Move;
  // 1. The margin: one group a name, in the first backward that has the name.
  std::set<std::string> kept;
  for (int chunk : backward_order(chunks)) {
    for (OffloadRow* row : last_of_each_name(rows, chunk)) {
      if (kept.insert(row->name).second) row->decision = OffloadDecision::KeepMargin;
    }
  }
  // 2. The same for every chunk whose backward follows its forward: its last groups would come back as soon as they had left.
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    if (!chunks[chunk].runs_backward_next()) continue;
    for (OffloadRow* row : last_of_each_name(rows, static_cast<int>(chunk))) {
      if (row->decision == OffloadDecision::Move) row->decision = OffloadDecision::KeepNeededAtOnce;
    }
  }
  // 3. The fraction counts groups, chunk by chunk; the latest stay, as early ones are away for longest.
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    std::vector<OffloadRow*> eligible;
    for (OffloadRow& row : rows) {
      if (row.chunk == static_cast<int>(chunk) && row.decision == OffloadDecision::Move && row.bytes > 0) eligible.push_back(&row);
    }
    // The small term makes up for fractions such as 0.9 that have no exact double.
    auto keep = static_cast<std::size_t>(std::floor(static_cast<double>(eligible.size()) * (1.0 - fraction) + 1e-9));
    for (; keep > 0; --keep, eligible.pop_back()) eligible.back()->decision = OffloadDecision::KeepFraction;
  }
}

OffloadTotals offload_totals(const std::vector<OffloadRow>& rows) {
  OffloadTotals totals;
  for (const OffloadRow& row : rows) {
    if (row.bytes == 0) continue;
    totals.found += row.bytes;
    totals.groups_found++;
    if (row.decision != OffloadDecision::Move) continue;
    totals.moved += row.bytes;
    totals.groups_moved++;
  }
  return totals;
}

std::vector<OffloadModuleTotals> offload_by_module(const std::vector<OffloadRow>& rows) {
  std::vector<OffloadModuleTotals> modules;
  for (const OffloadRow& row : rows) {
    auto module = std::find_if(modules.begin(), modules.end(), [&](const OffloadModuleTotals& m) { return m.name == row.name; });
    if (module == modules.end()) {
      modules.push_back({row.name});
      module = std::prev(modules.end());
    }
    module->groups++;
    module->bytes += row.bytes;
    if (row.bytes == 0) continue;
    switch (row.decision) {
      case OffloadDecision::Move:
        module->moved++;
        module->bytes_moved += row.bytes;
        break;
      case OffloadDecision::KeepMargin:
      case OffloadDecision::KeepNeededAtOnce: module->kept_at_once++; break;
      case OffloadDecision::KeepFraction: module->kept_fraction++; break;
    }
  }
  return modules;
}

std::string offload_summary_text(const std::vector<OffloadRow>& rows, int rank) {
  const auto size = [](std::int64_t bytes) { return human_bytes(static_cast<std::uint64_t>(bytes)); };
  std::ostringstream text;
  text << "activation offload, rank " << rank << ", an iteration:\n";
  text << std::left << std::setw(15) << "module" << std::right << std::setw(7) << "groups" << std::setw(12) << "bytes" << std::setw(10)
       << "offloaded" << std::setw(12) << "bytes" << std::setw(22) << "kept: needed at once" << std::setw(16) << "kept: fraction" << "\n";
  for (const OffloadModuleTotals& module : offload_by_module(rows)) {
    text << std::left << std::setw(15) << module.name << std::right << std::setw(7) << module.groups << std::setw(12) << size(module.bytes)
         << std::setw(10) << module.moved << std::setw(12) << size(module.bytes_moved) << std::setw(22) << module.kept_at_once
         << std::setw(16) << module.kept_fraction << (module.bytes == 0 ? "  nothing large enough" : "") << "\n";
  }
  const OffloadTotals totals = offload_totals(rows);
  text << "offloaded " << size(totals.moved) << " of " << size(totals.found) << " an iteration, " << totals.groups_moved << " of "
       << totals.groups_found << " groups\n";
  return text.str();
}

std::string offload_table_text(const std::vector<OffloadRow>& rows, int rank) {
  const auto size = [](std::int64_t bytes) { return human_bytes(static_cast<std::uint64_t>(bytes)); };
  std::ostringstream text;
  text << "activation offload, rank " << rank << "\n";
  text << std::left << std::setw(12) << "micro-batch" << std::setw(7) << "layer" << std::setw(15) << "module" << std::right << std::setw(12)
       << "bytes" << std::setw(10) << "storages" << std::setw(12) << "saved twice" << "  decision\n";
  for (const OffloadRow& row : rows) {
    text << std::left << std::setw(12) << row.chunk << std::setw(7) << row.layer << std::setw(15) << row.name << std::right << std::setw(12)
         << size(row.bytes) << std::setw(10) << row.storages << std::setw(12) << row.duplicates << "  "
         << (row.bytes == 0 ? "nothing large enough" : offload_decision_name(row.decision)) << "\n";
  }
  const OffloadTotals totals = offload_totals(rows);
  text << "offloaded " << size(totals.moved) << " of " << size(totals.found) << " an iteration, " << totals.groups_moved << " of "
       << totals.groups_found << " groups\n";
  return text.str();
}

}  // namespace deltron
