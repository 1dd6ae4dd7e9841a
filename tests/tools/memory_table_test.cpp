// `deltron memory-table`: what our GDN layers keep, pinned storage by storage; the same on meta and on the CPU; every difference to the
// published tables a sum of named terms; the command and its page.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "src/base/file.h"
#include "tests/checkpoint/temp_folder.h"
#include "tests/support/generated_page.h"
#include "tests/tools/run_cli.h"
#include "tools/memory_table/goals.h"
#include "tools/memory_table/report.h"

namespace deltron::tools {
namespace {

using deltron::testing::CliResult;
using deltron::testing::run_cli;
using ::testing::HasSubstr;
using ::testing::Not;

const Fusion kUnfused{}, kOutputNorm{.pre_rule = false, .output_norm = true};

MemorySetting published_setting(bool second, std::int64_t length = 1024) {
  MemorySetting setting;
  setting.second = second;
  setting.seq_length = length;
  return setting;
}

MemorySetting small_setting(bool second, DType dtype) {
  MemorySetting setting;
  setting.second = second;
  setting.hidden_size = 24;
  setting.seq_length = 70;
  setting.micro_batch_size = 2;
  setting.key_heads = 2;
  setting.value_heads = 4;
  setting.key_dim = 8;
  setting.value_dim = 16;
  setting.dtype = dtype;
  setting.min_offloaded_tensor_size = 1;
  return setting;
}

// "region/storage [shape] dtype MiB"
std::vector<std::string> storages_of(const MeasuredTable& table) {
  std::vector<std::string> lines;
  for (const KeptStorage& one : table.baseline().kept)
    lines.push_back(one.key + " " + shape_text(one.shape) + " " + dtype_name(one.dtype) + " " + mib_text(one.bytes));
  return lines;
}

// Differences of every row that recomputes, to three digits.
std::vector<std::string> recompute_differences(const MeasuredTable& table) {
  std::vector<std::string> lines;
  for (const MeasuredRow& row : table.rows) {
    if (!row.row.offload.empty() || !row.refused.empty()) continue;
    lines.push_back(row.row.name() + " " + signed_mib(row.kept_bytes - (row.row.recompute.empty() ? 0 : table.baseline().kept_bytes)));
  }
  return lines;
}

// What every fusion keeps, and what it keeps beside that.
std::vector<std::string> pinned_storages(bool second, const Fusion& fusion) {
  std::vector<std::string> all = {"layer_input/hidden_states [1024,2048] bf16 4.000", "gdn_in_proj/rstd [1024] fp32 0.004",
                                  "gdn_in_proj/gdn.qkv [1024,8192] bf16 16.000",      "gdn_core_attn/gdn.rule [1024,4096] bf16 8.000",
                                  "gdn_norm_out/rstd [1024,32] fp32 0.125",           "gdn_norm_out/gdn.out_norm [1024,4096] bf16 8.000"};
  const auto add = [&](const std::vector<std::string>& more) { all.insert(all.end(), more.begin(), more.end()); };
  if (second) {
    add({"gdn_in_proj/gdn.gates [1024,12288] bf16 24.000"});
  } else {
    add({"gdn_in_proj/gdn.gates [1024,4160] bf16 8.125", "gdn_core_attn/t_inverse [1024,32,64] bf16 4.000"});
  }
  if (!fusion.output_norm) add({"gdn_gate_copy/gdn.gate_copy [1024,32,128] bf16 8.000"});
  if (!fusion.pre_rule) {
    add({"gdn_qkv/gdn.prep [1024,8192] bf16 16.000", "gdn_qkv/rstd [1024,32] fp32 0.125"});
  } else {
    add({"gdn_qkv/gdn.pre_rule [1024,8192] bf16 16.000"});
    if (second) {
      add({"gdn_qkv/gdn.decay [1024,16,128] fp32 8.000", "gdn_qkv/gdn.b [1024,16,128] bf16 4.000", "gdn_qkv/gdn.w [1024,32,128] bf16 8.000"});
    } else {
      add({"gdn_qkv/gdn.decay [1024,32] fp32 0.125", "gdn_qkv/gdn.beta [1024,32] bf16 0.062"});
    }
  }
  return all;
}

TEST(MemoryTable, these_storages_are_kept_at_the_published_setting) {
  const std::map<std::string, std::pair<std::string, std::string>> sums = {
      {"unfused", {"72.379", "84.254"}}, {"output-norm", {"64.379", "76.254"}}, {"pre-rule", {"72.441", "104.129"}}, {"both", {"64.441", "96.129"}}};
  for (const bool second : {false, true}) {
    for (const Fusion& fusion : all_fusions()) {
      const MeasuredTable table = measure(published_setting(second), fusion, DeviceKind::Meta);
      ASSERT_EQ(table.refused, "") << fusion.name();
      EXPECT_THAT(storages_of(table), ::testing::UnorderedElementsAreArray(pinned_storages(second, fusion))) << fusion.name();
      const auto& [gdn, gdn2] = sums.at(fusion.name());
      EXPECT_EQ(mib_text(table.baseline().kept_bytes), second ? gdn2 : gdn) << fusion.name();
    }
  }
}

TEST(MemoryTable, weights_that_nodes_hold_are_counted_apart) {
  // in_proj, convolution, out_proj and small ones.
  EXPECT_EQ(mib_text(measure(published_setting(false), kUnfused, DeviceKind::Meta).baseline().kept_weight_bytes), "64.317");
}

TEST(MemoryTable, every_region_frees_these_bytes_at_the_published_setting) {
  EXPECT_EQ(recompute_differences(measure(published_setting(false), kOutputNorm, DeviceKind::Meta)),
            (std::vector<std::string>{"baseline +64.379", "gdn_in_proj -24.129", "gdn_qkv -16.125", "gdn_norm_out -8.125", "all three -48.379",
                                      "gdn_in_proj + gdn_norm_out -32.254", "gdn_qkv_block -40.254", "gdn_qkv_block + gdn_norm_out -48.379",
                                      "gdn_core_attn -4.000", "gdn -52.379", "full -60.379"}));
  EXPECT_EQ(recompute_differences(measure(published_setting(true), kOutputNorm, DeviceKind::Meta)),
            (std::vector<std::string>{"baseline +76.254", "gdn_in_proj -40.004", "gdn_qkv -16.125", "gdn_norm_out -8.125", "all three -64.254",
                                      "gdn_in_proj + gdn_norm_out -48.129", "gdn_qkv_block -56.129", "gdn_qkv_block + gdn_norm_out -64.254",
                                      "gdn_core_attn 0.000", "gdn -64.254", "full -72.254"}));
}

TEST(MemoryTable, unfused_regions_free_the_same_but_for_the_copy_of_the_gate) {
  for (const bool second : {false, true}) {
    const MeasuredTable plain = measure(published_setting(second), kUnfused, DeviceKind::Meta),
                        fused = measure(published_setting(second), kOutputNorm, DeviceKind::Meta);
    // Offload of what the rule saved takes the gates with it only where the norm has a copy of z.
    const std::int64_t copy = 1024 * 4096 * 2, gates = 1024 * (second ? 12288 : 4160) * 2;
    for (std::size_t i = 0; i < plain.rows.size(); ++i) {
      const std::string name = plain.rows[i].row.name();
      const bool drops_it = name == "gdn" || name == "full";
      const std::int64_t expected = drops_it ? 0 : name == "gdn_core_attn offload" ? copy - gates : copy;
      EXPECT_EQ(plain.rows[i].kept_bytes - fused.rows[i].kept_bytes, expected) << name;
      EXPECT_EQ(plain.rows[i].host_bytes - fused.rows[i].host_bytes, name == "gdn_core_attn offload" ? gates : 0) << name;
    }
  }
}

TEST(MemoryTable, with_the_pre_rule_fusion_regions_free_what_it_made_and_its_parts_are_refused) {
  const std::map<std::string, std::string> rule = {
      {"gdn_qkv", "rule 51"}, {"all three", "rule 51"}, {"gdn_qkv offload", "rule 52"}, {"gdn_qkv + gdn_qkv offload", "rule 51"}};
  for (const bool second : {false, true}) {
    const MeasuredTable table = measure(published_setting(second), {.pre_rule = true, .output_norm = true}, DeviceKind::Meta);
    for (const MeasuredRow& row : table.rows) {
      const auto refused = rule.find(row.row.name());
      const std::string begin = refused == rule.end() ? "" : "refused: " + refused->second + ",";
      EXPECT_EQ(row.refused.substr(0, std::max<std::size_t>(begin.size(), 1)), begin) << row.row.name() << ": " << row.refused;
    }
    EXPECT_EQ(recompute_differences(table),
              (second ? std::vector<std::string>{"baseline +96.129", "gdn_in_proj -40.004", "gdn_norm_out -8.125", "gdn_in_proj + gdn_norm_out -48.129",
                                                 "gdn_qkv_block -76.004", "gdn_qkv_block + gdn_norm_out -84.129", "gdn_core_attn 0.000", "gdn -84.129",
                                                 "full -92.129"}
                      : std::vector<std::string>{"baseline +64.441", "gdn_in_proj -24.129", "gdn_norm_out -8.125", "gdn_in_proj + gdn_norm_out -32.254",
                                                 "gdn_qkv_block -40.316", "gdn_qkv_block + gdn_norm_out -48.441", "gdn_core_attn -4.000", "gdn -52.441",
                                                 "full -60.441"}));
  }
}

TEST(MemoryTable, offload_moves_the_storage_of_the_convolution_input_from_the_device_to_the_host) {
  constexpr std::int64_t kConvInput = 1024 * 8192 * 2;
  for (const bool second : {false, true}) {
    for (const Fusion& fusion : {kUnfused, kOutputNorm}) {
      for (const DeviceKind device : {DeviceKind::Meta, DeviceKind::Cpu}) {
        // A computed layer of full size takes its time: one is enough, as cpu and meta are compared at a small size.
        if (device == DeviceKind::Cpu && (second || !fusion.output_norm)) continue;
        const MeasuredTable table = measure_rows(published_setting(second), fusion, device, {{{}, {}}, {{}, {"gdn_qkv"}}});
        const MeasuredRow& row = *table.row("gdn_qkv offload");
        EXPECT_EQ(row.device_bytes - table.baseline().device_bytes, -kConvInput);
        EXPECT_EQ(row.host_bytes, kConvInput);
        ASSERT_EQ(table.freed(row).size(), 1u);
        EXPECT_EQ(table.freed(row)[0].key, "gdn_in_proj/gdn.qkv");
        EXPECT_TRUE(table.added(row).empty());
      }
    }
  }
}

TEST(MemoryTable, a_sequence_twice_as_long_keeps_twice_the_bytes_as_no_weight_is_counted) {
  for (const bool second : {false, true}) {
    const MeasuredTable once = measure(published_setting(second), kUnfused, DeviceKind::Meta),
                        twice = measure(published_setting(second, 2048), kUnfused, DeviceKind::Meta);
    ASSERT_EQ(once.rows.size(), twice.rows.size());
    for (std::size_t i = 0; i < once.rows.size(); ++i) EXPECT_EQ(2 * once.rows[i].kept_bytes, twice.rows[i].kept_bytes) << once.rows[i].row.name();
    EXPECT_EQ(once.baseline().kept_weight_bytes, twice.baseline().kept_weight_bytes);
  }
}

TEST(MemoryTable, each_storage_is_told_which_regions_free_it) {
  const MeasuredTable table = measure(published_setting(false), kUnfused, DeviceKind::Meta);
  std::map<std::string, std::vector<std::string>> freed_by;
  for (const KeptStorage& one : table.baseline().kept) {
    for (const std::string& row : table.freed_by(one)) {
      if (row.find("offload") == std::string::npos) freed_by[one.key].push_back(row);
    }
  }
  const std::vector<std::string> projected = {"gdn_in_proj", "gdn_qkv_block", "gdn", "full"}, prepared = {"gdn_qkv", "gdn_qkv_block", "gdn", "full"};
  EXPECT_EQ(freed_by["gdn_in_proj/gdn.qkv"], projected);
  EXPECT_EQ(freed_by["gdn_in_proj/gdn.gates"], projected);
  EXPECT_EQ(freed_by["gdn_qkv/gdn.prep"], prepared);
  EXPECT_EQ(freed_by["gdn_qkv/rstd"], prepared);
  EXPECT_EQ(freed_by["gdn_core_attn/t_inverse"], (std::vector<std::string>{"gdn_core_attn", "gdn", "full"}));
  EXPECT_EQ(freed_by["gdn_core_attn/gdn.rule"], (std::vector<std::string>{"gdn", "full"}));
  EXPECT_EQ(freed_by["gdn_norm_out/gdn.out_norm"], (std::vector<std::string>{"gdn_norm_out", "full"}));
  EXPECT_EQ(freed_by["layer_input/hidden_states"], std::vector<std::string>());
}

TEST(MemoryTable, every_goal_is_met) {
  for (const bool second : {false, true}) {
    std::vector<MeasuredTable> tables;
    for (const Fusion& fusion : all_fusions()) tables.push_back(measure(published_setting(second), fusion, DeviceKind::Meta));
    const MeasuredTable* judged = judged_table(tables);
    ASSERT_NE(judged, nullptr);
    const std::vector<GoalResult> results = goal_results(*judged);
    ASSERT_EQ(results.size(), 8u);
    EXPECT_EQ(judged->fusion.name(), "output-norm");
    for (const GoalResult& result : results) EXPECT_TRUE(result.met) << result.goal << ": " << result.ours;
    EXPECT_TRUE(goal_results(measure(published_setting(second, 2048), kUnfused, DeviceKind::Meta)).empty()) << "goals are of one setting";
  }
}

TEST(MemoryTable, meta_and_cpu_keep_the_same_storages_in_every_row) {
  for (const bool second : {false, true}) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      for (const Fusion& fusion : all_fusions()) {
        const MeasuredTable meta = measure(small_setting(second, dtype), fusion, DeviceKind::Meta),
                            cpu = measure(small_setting(second, dtype), fusion, DeviceKind::Cpu);
        EXPECT_EQ(meta.refused, cpu.refused);
        ASSERT_EQ(meta.rows.size(), cpu.rows.size());
        for (std::size_t i = 0; i < meta.rows.size(); ++i) {
          const MeasuredRow &a = meta.rows[i], &b = cpu.rows[i];
          EXPECT_EQ(a.kept, b.kept) << a.row.name();
          EXPECT_EQ(a.refused, b.refused) << a.row.name();
          EXPECT_EQ(a.device_bytes, b.device_bytes) << a.row.name();
          EXPECT_EQ(a.host_bytes, b.host_bytes) << a.row.name();
          EXPECT_EQ(a.kept_weight_bytes, b.kept_weight_bytes) << a.row.name();
        }
      }
    }
  }
}

TEST(MemoryTable, nothing_is_alive_on_the_device_but_what_the_graph_keeps) {
  for (const bool second : {false, true}) {
    for (const Fusion& fusion : all_fusions()) {
      for (const MeasuredRow& row : measure(published_setting(second), fusion, DeviceKind::Meta).rows) {
        if (!row.refused.empty()) continue;
        EXPECT_EQ(row.device_bytes, row.kept_bytes) << fusion.name() << ", " << row.row.name();
      }
    }
  }
}

TEST(MemoryTable, terms_of_the_explanation_add_up_to_the_difference) {
  for (const bool second : {false, true}) {
    for (const MemorySetting& setting : {published_setting(second), published_setting(second, 2048), small_setting(second, DType::F32)}) {
      const std::vector<PublishedTensor> published = published_tensors(setting);
      for (const Fusion& fusion : all_fusions()) {
        const MeasuredTable table = measure(setting, fusion, DeviceKind::Meta);
        if (!table.refused.empty()) continue;
        std::int64_t sum = 0;
        for (const DifferenceTerm& term : explain(published, table.baseline().kept)) {
          sum += term.difference();
          EXPECT_TRUE(term.difference() == 0 || !term.why.empty()) << term.name;
          EXPECT_NE(term.why, "kept by ours alone") << term.name << " needs its reason in explain.cpp";
        }
        EXPECT_EQ(sum, table.baseline().kept_bytes - bytes_of(published));
        for (const MeasuredRow& row : table.rows) {
          if (!row.refused.empty() || !row.row.offload.empty() || row.row.recompute.empty() || !is_a_published_row(row.row.recompute)) continue;
          std::int64_t freed = 0;
          for (const DifferenceTerm& term : explain_freed(published, row.row.recompute, table.freed(row))) freed += term.difference();
          EXPECT_EQ(freed, table.baseline().kept_bytes - row.kept_bytes - freed_bytes(published, row.row.recompute)) << row.row.name();
        }
      }
    }
  }
}

TEST(MemoryTable, no_row_keeps_what_the_baseline_does_not) {
  for (const bool second : {false, true}) {
    for (const Fusion& fusion : all_fusions()) {
      const MeasuredTable table = measure(published_setting(second), fusion, DeviceKind::Meta);
      for (const MeasuredRow& row : table.rows) {
        if (!row.refused.empty()) continue;
        EXPECT_TRUE(table.added(row).empty()) << fusion.name() << ", " << row.row.name();
      }
    }
  }
}

TEST(MemoryTableCommand, says_the_same_as_text_markdown_and_json) {
  const std::vector<std::string> command = {"memory-table", "--variant", "gdn", "--seq-length", "1024"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = command;
    all.insert(all.end(), more.begin(), more.end());
    return run_cli(all);
  };
  const CliResult text = with({}), markdown = with({"--format", "markdown"}), json = with({"--json"});
  for (const CliResult* result : {&text, &markdown, &json}) EXPECT_EQ(result->code, 0) << result->err;
  EXPECT_THAT(text.out, HasSubstr("-24.129 (37.5 %)"));
  EXPECT_THAT(markdown.out, HasSubstr("-24.129 (37.5 %)"));
  EXPECT_THAT(markdown.out, HasSubstr("| `gdn_in_proj` |"));
  EXPECT_THAT(text.out, Not(HasSubstr("`")));
  const nlohmann::json parsed = nlohmann::json::parse(json.out);
  const auto& layer = parsed.at("layers").at(0);
  EXPECT_EQ(parsed.at("layers").size(), 1u);
  EXPECT_EQ(layer.at("setting").at("variant"), "gdn");
  EXPECT_EQ(layer.at("published_bytes"), bytes_of(published_tensors(published_setting(false))));
  const auto& baseline = layer.at("fusions").at(0).at("rows").at(0);
  EXPECT_EQ(baseline.at("printed_mib"), "558.9");
  EXPECT_EQ(mib_text(baseline.at("kept_bytes").get<std::int64_t>()), "72.379");
  std::int64_t sum = 0;
  for (const auto& storage : baseline.at("storages")) sum += storage.at("bytes").get<std::int64_t>();
  EXPECT_EQ(sum, baseline.at("kept_bytes"));
}

TEST(MemoryTableCommand, every_setting_is_an_option) {
  const CliResult result = run_cli({"memory-table", "--variant", "gdn2", "--seq-length", "70", "--seq-length", "7", "--micro-batch-size", "2", "--hidden-size",
                                    "24", "--linear-num-key-heads", "2", "--linear-num-value-heads", "4", "--linear-key-head-dim", "8",
                                    "--linear-value-head-dim", "16", "--linear-conv-kernel-dim", "3", "--params-dtype", "fp32", "--min-offloaded-tensor-size", "1", "--chunk-length", "16",
                                    "--fusion", "unfused", "--device", "cpu", "--as-published", "--all", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const nlohmann::json parsed = nlohmann::json::parse(result.out);
  ASSERT_EQ(parsed.at("layers").size(), 2u);
  MemorySetting setting = small_setting(true, DType::F32);
  setting.conv_kernel = 3;
  setting.published_chunk = 16;
  const auto& layer = parsed.at("layers").at(0);
  EXPECT_EQ(layer.at("published_bytes"), bytes_of(published_tensors(setting)));
  EXPECT_EQ(layer.at("fusions").size(), 1u);
  EXPECT_EQ(layer.at("fusions").at(0).at("rows").at(0).at("kept_bytes"), measure(setting, kUnfused, DeviceKind::Meta).baseline().kept_bytes);
  EXPECT_EQ(layer.at("published").size(), published_tensors(setting).size());
  EXPECT_EQ(parsed.at("layers").at(1).at("setting").at("seq_length"), 7);
  EXPECT_EQ(parsed.at("whole_block").at("plans").size(), 4u);
}

TEST(MemoryTableCommand, the_suffix_of_the_output_file_decides_the_format) {
  TempFolder folder;
  for (const auto& [name, begin] : std::map<std::string, std::string>{{"a.md", "## As published"}, {"a.json", "{"}, {"a.txt", "As published"}}) {
    const std::string path = join_path(folder.path(), name);
    EXPECT_EQ(run_cli({"memory-table", "--as-published", "-o", path}).code, 0);
    EXPECT_EQ(read_file(path).rfind(begin, 0), 0u) << name;
  }
}

TEST(MemoryTableCommand, what_cannot_be_is_a_usage_error) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--seq-length", "0"}, "'0' is no --seq-length"},
      {{"--seq-length", "1k"}, "'1k' is no --seq-length"},
      {{"--chunk-length", "0"}, "--chunk-length is 1 to 1024"},
      {{"--chunk-length", "1000000000"}, "--chunk-length is 1 to 1024"},
      {{"--min-offloaded-tensor-size", "-5"}, "--min-offloaded-tensor-size is at least 1"},
      {{"--seq-length", "999999999", "--hidden-size", "999999999"}, "beyond any machine"},
      {{"--linear-num-value-heads", "24"}, "linear_num_value_heads"},
      {{"--hidden-size", "0"}, "hidden_size"},
      {{"--json", "--format", "text"}, "exclude each other"},
      {{"--as-published", "--device", "cpu"}, "for the measured tables"},
      {{"--whole-block", "--hidden-size", "64"}, "sizes of its own model"},
      {{"--device", "gpu"}, "'gpu' is no --device"},
  };
  for (const auto& [arguments, message] : wrong) {
    std::vector<std::string> all = {"memory-table"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const CliResult result = run_cli(all);
    EXPECT_EQ(result.code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_EQ(result.out, "");
  }
}

TEST(MemoryTableCommand, the_page_of_memory_tables_is_up_to_date) {
  const CliResult page = run_cli({"memory-table", "--all", "--format", "markdown"});
  ASSERT_EQ(page.code, 0) << page.err;
  deltron::test::expect_page("memory_tables.md", page.out);
}

}  // namespace
}  // namespace deltron::tools
