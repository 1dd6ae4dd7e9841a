// Which groups are offloaded once the warm-up iteration has shown what there is: a pure function of the table that it built.
// gdn_semantics: groups whose reload would stall the start of backward stay on the device, then a share of the rest does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltron {

enum class OffloadDecision : std::uint8_t {
  Move,
  KeepMargin,        // last of its name in the chunk that runs backward first
  KeepNeededAtOnce,  // last of its name in a chunk whose backward follows its own forward
  KeepFraction,      // left out by activation_offload_fraction
};
const char* offload_decision_name(OffloadDecision decision);

// One group: one occurrence of one module in one micro-batch.
struct OffloadRow {
  int chunk = 0;       // micro-batch, from 0
  int ordinal = 0;     // in the order of starting, within the chunk
  std::string name;    // module
  int layer = -1;
  std::int64_t bytes = 0;  // of the storages that are large enough
  int storages = 0;
  int duplicates = 0;      // captured again within the group; moved once
  OffloadDecision decision = OffloadDecision::Move;
};

struct OffloadChunkInfo {
  int backward_index = -1;          // place in the order in which backwards began; -1: it never did
  int backwards_begun_before = 0;   // when the chunk's forward began
  // No other chunk's backward lies between this chunk's forward and its own backward.
  bool runs_backward_next() const { return backward_index == backwards_begun_before; }
};

// Sets `decision` of every row. `rows` by chunk, then by ordinal. Balancing over pipeline ranks has no place here: there is one stage.
void decide_offload(std::vector<OffloadRow>& rows, const std::vector<OffloadChunkInfo>& chunks, double fraction);

struct OffloadTotals {
  std::int64_t found = 0;   // bytes that could move, an iteration
  std::int64_t moved = 0;   // bytes that do
  int groups_found = 0;     // with bytes
  int groups_moved = 0;
};
OffloadTotals offload_totals(const std::vector<OffloadRow>& rows);

// The same by module, in the order of the table.
struct OffloadModuleTotals {
  std::string name;
  int groups = 0;         // an iteration
  std::int64_t bytes = 0; // that could move
  int moved = 0;          // groups
  std::int64_t bytes_moved = 0;
  int kept_at_once = 0;   // by the margin, or needed at once
  int kept_fraction = 0;
};
std::vector<OffloadModuleTotals> offload_by_module(const std::vector<OffloadRow>& rows);
// One line a module and a sum.
std::string offload_summary_text(const std::vector<OffloadRow>& rows, int rank);

// One line a group and a sum, for the log of the first iteration.
std::string offload_table_text(const std::vector<OffloadRow>& rows, int rank);

}  // namespace deltron
