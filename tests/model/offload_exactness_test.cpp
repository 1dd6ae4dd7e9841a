// Recompute and offload through the real layers change no bit: the whole matrix of regions and offload modules against a run without
// either, with the counts of what was freed, replayed and moved, and with device memory that falls by what moved. test_gpu runs the same on
// the GPU.
#include "tests/model/offload_run.h"

namespace deltron::test {
namespace {

using Modules = std::vector<std::string>;
const Modules kAllModules = {"gdn_qkv", "gdn_core_attn", "core_attn", "attn_proj"};

std::vector<Fusions> fusion_axis() { return {{false, false}, {false, true}, {true, false}, {true, true}}; }

std::vector<Modules> region_sets() {
  const Modules parts = {"gdn_in_proj", "gdn_qkv", "gdn_norm_out", "gdn_core_attn"};
  std::vector<Modules> sets;
  for (unsigned mask = 0; mask < 16; ++mask) {
    Modules set;
    for (unsigned i = 0; i < 4; ++i) {
      if ((mask >> i & 1u) != 0) set.push_back(parts[i]);
    }
    sets.push_back(set);
  }
  for (const Modules& set : {Modules{"gdn"}, Modules{"gdn_qkv_block"}, Modules{"gdn_qkv_block", "gdn_norm_out"}}) sets.push_back(set);
  return sets;
}

void expect_counts(const OffloadKind& kind, const OffloadCase& what, const OffloadRecord& record) {
  // The wide block's: q, k, v and the projection's gates; fused, the gates of the rule as well.
  const std::int64_t block = kind.fused.pre_rule ? (kind.variant == ExperimentalAttentionVariant::Gdn2 ? 5 : 4) : 2;
  for (const auto& [region, count] : record.counters) {
    const std::int64_t forwards = what.steps * 2 * (region == "full" ? 4 / what.full_layers : 2);
    const bool discards = region == "gdn_in_proj" || region == "gdn_qkv" || region == "gdn_norm_out" || region == "gdn_qkv_block";
    const std::int64_t storages = region == "gdn_qkv_block" ? block : (region == "gdn_in_proj" ? 2 : 1);
    EXPECT_EQ(count.forward, forwards) << what.name() << "; " << region;
    EXPECT_EQ(count.replayed, forwards) << what.name() << "; " << region;
    EXPECT_EQ(count.discarded, discards ? forwards * storages : 0) << what.name() << "; " << region;
    EXPECT_EQ(count.restored, count.discarded) << what.name() << "; " << region;
  }
}

// `kept` is the same run without offload.
void expect_moves(const OffloadCase& what, const OffloadRecord& record, const OffloadRecord& kept) {
  EXPECT_EQ(record.pool.in_use, 0);
  if (what.offload.empty()) {
    EXPECT_TRUE(record.table.empty());
    EXPECT_EQ(record.pool.buffers, 0);
    return;
  }
  const std::int64_t per_module = what.full() ? 4 / what.full_layers : 2;
  EXPECT_EQ(static_cast<std::int64_t>(record.table.size()), 2 * per_module * static_cast<std::int64_t>(what.offload.size())) << what.name();
  for (const OffloadRow& row : record.table) EXPECT_GT(row.bytes, 0) << what.name() << "; " << row.name << " of layer " << row.layer;
  for (int step = 0; step < what.steps; ++step) {
    const OffloadStats& stats = record.iterations[static_cast<std::size_t>(step)];
    const bool warm = step > 0;
    EXPECT_EQ(stats.bytes_out, record.bytes(0, warm) + record.bytes(1, warm)) << what.name() << "; step " << step;
    EXPECT_EQ(stats.bytes_in, stats.bytes_out) << what.name() << "; step " << step;
    EXPECT_EQ(stats.kept_while_draining, 0) << what.name() << "; step " << step;
    // Hooks lie behind the waits of the groups whose storages they read.
    EXPECT_EQ(stats.read_before_wait, 0) << what.name() << "; step " << step;
    // In the warm-up the first group of each backward comes late; later it stays on the device.
    if (warm) {
      EXPECT_EQ(stats.reloads_at_once, 0) << what.name() << "; step " << step;
    }
    for (int micro = 0; micro < 2; ++micro) {
      const auto i = static_cast<std::size_t>(2 * step + micro);
      const std::int64_t fell = kept.behind_forward[i] - record.behind_forward[i];
      EXPECT_GE(fell, record.bytes(micro, warm)) << what.name() << "; step " << step;
      EXPECT_GT(fell, 0) << what.name() << "; step " << step << ": the device holds as much as without";
    }
  }
}

class OffloadMatrix : public testing::TestWithParam<OffloadKind> {};

TEST_P(OffloadMatrix, every_legal_set_of_regions_and_modules_repeats_the_bits_and_moves_what_it_says) {
  const OffloadKind kind = GetParam();
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(kind.batch), 66);
  const OffloadRecord plain = run_offload_case(kind, lengths, {});
  ASSERT_EQ(run_offload_case(kind, lengths, {}).bits, plain.bits) << "run twice";
  int with_offload = 0;
  for (const Modules& regions : region_sets()) {
    if (!OffloadCase{regions, {}}.legal(kind.fused)) continue;
    std::set<Modules> module_sets = {Modules{}, legal_modules(regions, kAllModules, kind.fused)};
    if (!kContextOnCuda) module_sets.insert(legal_modules(regions, {"gdn_qkv"}, kind.fused));
    OffloadRecord kept;
    for (const Modules& modules : module_sets) {  // the empty set comes first
      const OffloadCase what{regions, modules};
      const OffloadRecord record = run_offload_case(kind, lengths, what);
      EXPECT_EQ(record.bits, plain.bits) << what.name();
      expect_counts(kind, what, record);
      if (modules.empty()) kept = record;
      expect_moves(what, record, kept);
      with_offload += modules.empty() ? 0 : 1;
    }
  }
  const int least = kind.fused.pre_rule ? 11 : kContextOnCuda ? 17 : 20;  // gdn_qkv goes without the fused preparation
  EXPECT_GE(with_offload, least);
}

TEST_P(OffloadMatrix, full_recompute_with_its_inputs_on_the_host_repeats_the_bits) {
  const OffloadKind kind = GetParam();
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(kind.batch), 66);
  const OffloadRecord plain = run_offload_case(kind, lengths, {});
  for (std::int64_t layers : {1, 2}) {
    OffloadRecord kept;
    for (const Modules& modules : {Modules{}, Modules{"layer_input"}}) {
      const OffloadCase what{{"full"}, modules, layers};
      ASSERT_TRUE(what.legal(kind.fused));
      const OffloadRecord record = run_offload_case(kind, lengths, what);
      EXPECT_EQ(record.bits, plain.bits) << what.name();
      expect_counts(kind, what, record);
      if (modules.empty()) kept = record;
      expect_moves(what, record, kept);
    }
  }
}

// A copy of a few kilobytes takes about a microsecond; here each takes at least a hundred times as long.
TEST_P(OffloadMatrix, slow_copies_and_poisoned_memory_change_no_bit_from_the_first_iteration_on) {
  const OffloadKind kind = GetParam();
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(kind.batch), 66);
  const OffloadRecord plain = run_offload_case(kind, lengths, {});
  for (const Modules& regions : {Modules{}, Modules{"gdn_qkv"}, Modules{"gdn_qkv", "gdn_norm_out"}, Modules{"gdn_in_proj"}, Modules{"full"}}) {
    if (!OffloadCase{regions, {}}.legal(kind.fused)) continue;
    OffloadCase what{regions, legal_modules(regions, regions == Modules{"full"} ? Modules{"layer_input"} : kAllModules, kind.fused)};
    what.faults.copy_delay_seconds = 2e-4;
    what.faults.poison = true;
    what.steps = 3;
    const OffloadRecord record = run_offload_case(kind, lengths, what);
    EXPECT_EQ(record.bits, plain.bits) << what.name();
    EXPECT_GT(record.iterations.back().bytes_in, 0) << what.name();
  }
}

std::vector<OffloadKind> kinds(DType dtype, std::int64_t batch) {
  std::vector<OffloadKind> all;
  for (const Fusions& fused : fusion_axis()) {
    for (ExperimentalAttentionVariant variant : {ExperimentalAttentionVariant::Gdn, ExperimentalAttentionVariant::Gdn2}) {
      all.push_back({variant, dtype, batch, fused});
    }
  }
  return all;
}
std::string kind_name(const testing::TestParamInfo<OffloadKind>& kind) {
  return std::string(kind.param.variant == ExperimentalAttentionVariant::Gdn2 ? "gdn2_" : "gdn_") + dtype_name(kind.param.dtype) + "_batch_" +
         std::to_string(kind.param.batch) + kind.param.fused.name();
}
std::vector<OffloadKind> all_kinds() {
  std::vector<OffloadKind> all;
  for (DType dtype : {DType::F32, DType::BF16}) {
    for (std::int64_t batch : {1, 2}) {
      if (kContextOnCuda && batch == 1) continue;
      for (const OffloadKind& kind : kinds(dtype, batch)) all.push_back(kind);
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kinds, OffloadMatrix, testing::ValuesIn(all_kinds()), kind_name);

Modules subset(const Modules& words, unsigned bits) {
  Modules chosen;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if ((bits >> i & 1u) != 0) chosen.push_back(words[i]);
  }
  return chosen;
}

// What the validator lets pass, the layers run: all sets, not pairs alone.
class OffloadCombinations : public testing::TestWithParam<OffloadKind> {};

TEST_P(OffloadCombinations, every_set_that_the_table_allows_runs_and_repeats_the_bits) {
  const OffloadKind kind = GetParam();
  const Modules regions = module_words(ModuleUse::Recompute);
  OffloadCase what;
  what.steps = 1;
  const OffloadRecord plain = run_offload_case(kind, {5}, what);
  int ran = 0;
  for (unsigned bits = 0; bits < 1u << (regions.size() + kAllModules.size()); ++bits) {
    what.recompute = subset(regions, bits);
    what.offload = subset(kAllModules, bits >> regions.size());
    if (what.offload.empty() || !what.legal(kind.fused)) continue;
    ran++;
    ASSERT_EQ(run_offload_case(kind, {5}, what).bits, plain.bits) << what.name();
  }
  EXPECT_GT(ran, kind.fused.pre_rule ? 80 : 100);
}
INSTANTIATE_TEST_SUITE_P(Kinds, OffloadCombinations, testing::ValuesIn(kinds(DType::F32, 1)), kind_name);

}  // namespace
}  // namespace deltron::test
