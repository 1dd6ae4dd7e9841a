// What stays on the device after the warm-up: published expectations, several modules, schedules, and the table's text.
#include <gtest/gtest.h>

#include "src/autograd/offload_policy.h"

namespace deltron {
namespace {

std::vector<OffloadRow> rows_of(const std::vector<std::vector<std::string>>& chunks) {
  std::vector<OffloadRow> rows;
  for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    for (std::size_t group = 0; group < chunks[chunk].size(); ++group) {
      OffloadRow row;
      row.chunk = static_cast<int>(chunk);
      row.ordinal = static_cast<int>(group);
      row.name = chunks[chunk][group];
      row.bytes = 1 << 20;
      row.storages = 1;
      rows.push_back(row);
    }
  }
  return rows;
}

// One letter a group: m(ove), r = kept as margin, n = needed at once, f = fraction; chunks apart by a blank.
std::string decided(std::vector<OffloadRow> rows, const std::vector<OffloadChunkInfo>& chunks, double fraction) {
  decide_offload(rows, chunks, fraction);
  std::string text;
  for (const OffloadRow& row : rows) {
    if (!text.empty() && row.ordinal == 0) text += ' ';
    text += "mrnf"[static_cast<int>(row.decision)];
  }
  return text;
}

// Forward and backward in turn; both forwards first, then the backwards in or against their order.
const std::vector<OffloadChunkInfo> kOne = {{0, 0}}, kInTurn = {{0, 0}, {1, 1}}, kFirstFirst = {{0, 0}, {1, 0}}, kLastFirst = {{1, 0}, {0, 0}};

TEST(OffloadPolicy, of_three_equal_groups_the_last_is_kept_and_the_fraction_counts_the_rest) {
  const std::vector<OffloadRow> rows = rows_of({{"q", "q", "q"}});
  EXPECT_EQ(decided(rows, kOne, 0.0), "ffr");
  EXPECT_EQ(decided(rows, kOne, 0.5), "mfr");
  EXPECT_EQ(decided(rows, kOne, 1.0), "mmr");
}

TEST(OffloadPolicy, every_module_keeps_its_last_group) {
  EXPECT_EQ(decided(rows_of({{"q", "c", "q", "c", "a", "q", "c"}}), kOne, 1.0), "mmmmrrr");
  EXPECT_EQ(decided(rows_of({{"q", "c", "q", "c", "a", "q", "c"}}), kOne, 0.5), "mmffrrr");
}

TEST(OffloadPolicy, micro_batches_in_turn_all_keep_what_is_needed_at_once) {
  EXPECT_EQ(decided(rows_of({{"q", "q", "q"}, {"q", "q", "q"}}), kInTurn, 1.0), "mmr mmn");
  EXPECT_EQ(decided(rows_of({{"q", "q", "q"}, {"q", "q", "q"}}), kInTurn, 0.5), "mfr mfn");
}

TEST(OffloadPolicy, the_margin_lies_where_backward_begins) {
  EXPECT_EQ(decided(rows_of({{"q", "q", "q"}, {"q", "q", "q"}}), kFirstFirst, 1.0), "mmr mmm");
  EXPECT_EQ(decided(rows_of({{"q", "q", "q"}, {"q", "q", "q"}}), kLastFirst, 1.0), "mmm mmr");
  EXPECT_EQ(decided(rows_of({{"q", "q"}, {"q", "c"}}), kFirstFirst, 1.0), "mr mr") << "c is met only in the second backward";
}

TEST(OffloadPolicy, groups_without_bytes_do_not_count_for_the_fraction) {
  std::vector<OffloadRow> rows = rows_of({{"q", "q", "q", "q", "q"}});
  rows[1].bytes = rows[3].bytes = 0;
  EXPECT_EQ(decided(rows, kOne, 0.5), "mmfmr") << "of two groups with bytes one is kept, the later one";
}

TEST(OffloadPolicy, fractions_without_an_exact_double_count_as_written) {
  const std::vector<OffloadRow> rows = rows_of({std::vector<std::string>(11, "q")});
  EXPECT_EQ(decided(rows, kOne, 0.9), "mmmmmmmmmfr");
  EXPECT_EQ(decided(rows, kOne, 0.7), "mmmmmmmfffr");
}

TEST(OffloadPolicy, the_table_names_every_group_and_adds_up) {
  std::vector<OffloadRow> rows = rows_of({{"gdn_qkv", "gdn_qkv", "gdn_qkv"}});
  rows[0].bytes = 0;
  rows[1].layer = 7;
  rows[1].duplicates = 2;
  decide_offload(rows, kOne, 1.0);
  const OffloadTotals totals = offload_totals(rows);
  EXPECT_EQ(totals.found, 2 << 20);
  EXPECT_EQ(totals.moved, 1 << 20);
  EXPECT_EQ(totals.groups_found, 2);
  EXPECT_EQ(totals.groups_moved, 1);
  const std::string text = offload_table_text(rows, 3);
  for (const char* part : {"rank 3", "nothing large enough", "7      gdn_qkv", "1.00 MiB", "kept: first needed in backward",
                           "offloaded 1.00 MiB of 2.00 MiB an iteration, 1 of 2 groups"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
  }
}

}  // namespace
}  // namespace deltron
