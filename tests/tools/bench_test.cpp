// `deltron bench`: spreads and predictions on made-up numbers, every case of the table run at tiny sizes, JSON of all four commands,
// options that are refused. No time is tested.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "src/base/file.h"
#include "tests/checkpoint/temp_folder.h"
#include "tests/tools/run_cli.h"
#include "tools/bench/kernel_report.h"
#include "tools/bench/regions.h"

namespace deltron::tools {
namespace {

using deltron::testing::CliResult;
using deltron::testing::run_cli;
using nlohmann::json;
using ::testing::HasSubstr;

json parsed(const CliResult& result) {
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(json::accept(result.out)) << result.out;
  return json::accept(result.out) ? json::parse(result.out) : json();
}

TEST(BenchSpread, median_and_percentiles_are_those_of_the_sorted_values) {
  std::vector<double> values;
  for (int i = 20; i >= 1; --i) values.push_back(i);
  const Spread spread = spread_of(values);
  EXPECT_EQ(spread.median, 10.5);
  EXPECT_EQ(spread.p10, 2);
  EXPECT_EQ(spread.p90, 18);
  EXPECT_EQ(spread.fastest, 1);
  EXPECT_EQ(spread.slowest, 20);
  EXPECT_EQ(spread.samples, 20);
  EXPECT_EQ(spread_of({3}).p90, 3);
  EXPECT_EQ(spread_of({3, 1, 2}).median, 2);
}

TEST(BenchWork, the_larger_of_bytes_and_products_is_the_floor) {
  const Ceilings ceilings{100, 1000};
  EXPECT_EQ((Work{50, 0}).seconds(ceilings), 0.5);
  EXPECT_EQ((Work{50, 2000}).seconds(ceilings), 2);
  EXPECT_TRUE((Work{50, 2000}).bound_by_flops(ceilings));
  EXPECT_FALSE((Work{500, 2000}).bound_by_flops(ceilings));
  const Work product = matmul_work(2, 3, 5, 2, 4);  // bf16 in, fp32 out
  EXPECT_EQ(product.flops, 60);
  EXPECT_EQ(product.bytes, (10 + 15) * 2 + 6 * 4);
}

KernelSizes made_sizes() {
  KernelSizes sizes;
  sizes.tokens = 128, sizes.documents = 2, sizes.hidden = 10, sizes.ffn = 20, sizes.vocab = 30;
  sizes.key_heads = 1, sizes.value_heads = 2, sizes.key_dim = 4, sizes.value_dim = 8, sizes.conv_kernel = 4;
  sizes.query_heads = 2, sizes.kv_heads = 1, sizes.head_dim = 6, sizes.rotary_dim = 2;
  return sizes;
}

TEST(BenchWork, chunks_of_the_rule_are_counted_by_their_products) {
  // Two chunks; K K^T and Q K^T once a key head, half each: 64*64*4; for each of 2 value heads 64^3/6, 64*64*8, three times 64*4*8.
  const double multiplications = 2 * (64 * 64 * 4 + 2 * (64.0 * 64 * 64 / 6 + 64 * 64 * 8 + 3 * 64 * 4 * 8));
  EXPECT_DOUBLE_EQ(rule_forward_work(made_sizes(), false, 2).flops, 2 * multiplications);
  // q, k [128,4], v and o [128,16], two gates of two heads.
  EXPECT_DOUBLE_EQ(rule_forward_work(made_sizes(), false, 2).bytes, 2 * 128 * (2 * 4 + 2 * 16 + 2 * 2));
  // Two documents of 64: 64*65/2 pairs each, two products of 12 channels, two operations.
  EXPECT_DOUBLE_EQ(attention_forward_work(made_sizes(), 2).flops, 2 * (64 * 65 / 2) * 12 * 4);
}

TEST(BenchWork, a_whole_region_costs_what_its_parts_cost) {
  const Ceilings ceilings{1e9, 1e9};
  const auto cost = [&](const char* module) { return seconds(replay_work(made_sizes(), module, 4), ceilings); };
  EXPECT_DOUBLE_EQ(cost("gdn_qkv_block"), cost("gdn_in_proj") + cost("gdn_qkv"));
  const double gate_copy = 2.0 * 128 * 16 * 4 / 1e9;
  EXPECT_NEAR(cost("gdn"), cost("gdn_in_proj") + cost("gdn_qkv") + cost("gdn_core_attn") + cost("gdn_norm_out") + gate_copy, 1e-15);
  EXPECT_GT(cost("mlp"), 0);
  EXPECT_GT(cost("core_attn"), 0);
  EXPECT_ANY_THROW(replay_work(made_sizes(), "layernorm", 4));
}

TEST(BenchRegions, copies_add_what_does_not_fit_beside_a_layer) {
  const HostLink link{10, 5};
  // 30 bytes: 3 s out beside 1 s of forward, 6 s in beside 4 s of backward.
  EXPECT_DOUBLE_EQ(offload_seconds(2, 30, 1, 4, link), 2 * (2 + 2));
  EXPECT_DOUBLE_EQ(offload_seconds(2, 30, 3, 6, link), 0);
}

TEST(BenchRegions, the_best_offload_is_the_largest_that_costs_next_to_nothing) {
  const auto rows = [](const std::vector<double>& seconds) {
    std::vector<RegionRow> made = {{"none"}, {"gdn_qkv", {"gdn_qkv"}}};
    made[0].run.seconds.median = made[1].run.seconds.median = 1;
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      made.push_back({"offload", {}, 0.25 * static_cast<double>(i + 1)});
      made.back().run.seconds.median = seconds[i];
    }
    return made;
  };
  EXPECT_EQ(best_offload_row(rows({1.0, 1.01, 1.03})), 3);
  EXPECT_EQ(best_offload_row(rows({1.0, 1.05, 1.015})), 4);
  EXPECT_EQ(best_offload_row(rows({1.2, 1.1, 1.3})), 3);
  EXPECT_EQ(best_offload_row(rows({})), -1);
}

const std::vector<std::string>& tiny_sizes() {
  static const std::vector<std::string> words = {"--tokens", "64", "--documents", "2", "--hidden", "16", "--ffn", "24", "--vocab", "40", "--key-dim", "8", "--value-dim", "8",
                                                 "--head-dim", "8", "--rotary-dim", "4", "--repeats", "2", "--cache-mib", "0", "--threads", "1"};
  return words;
}
// `more` replaces options of the same name.
CliResult bench_kernels(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"bench", "kernels"};
  for (std::size_t i = 0; i < tiny_sizes().size(); i += 2) {
    if (std::find(more.begin(), more.end(), tiny_sizes()[i]) == more.end()) words.insert(words.end(), {tiny_sizes()[i], tiny_sizes()[i + 1]});
  }
  words.insert(words.end(), more.begin(), more.end());
  return run_cli(words);
}

TEST(BenchKernels, every_family_runs_in_both_types_with_all_figures) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const json report = parsed(bench_kernels({"--dtype", dtype, "--json"}));
    EXPECT_EQ(report.at("dtype"), dtype);
    EXPECT_EQ(report.at("sizes").at("tokens"), 64);
    EXPECT_GT(report.at("ceilings").at("copy_bytes_per_second").get<double>(), 0);
    EXPECT_GT(report.at("ceilings").at("flops_per_second").get<double>(), 0);
    std::set<std::string> families, names;
    for (const json& one : report.at("cases")) {
      families.insert(one.at("family"));
      EXPECT_TRUE(names.insert(one.at("name")).second) << one.at("name") << " twice";
      const json& time = one.at("microseconds");
      EXPECT_GT(time.at("fastest").get<double>(), 0) << one;
      EXPECT_LE(time.at("fastest").get<double>(), time.at("p10").get<double>());
      EXPECT_LE(time.at("p10").get<double>(), time.at("median").get<double>());
      EXPECT_LE(time.at("median").get<double>(), time.at("p90").get<double>());
      EXPECT_LE(time.at("p90").get<double>(), time.at("slowest").get<double>());
      EXPECT_EQ(time.at("samples"), 2);
      EXPECT_EQ(one.at("timed_by"), "clock");
      EXPECT_GE(one.at("sets").get<int>(), 2);
      const double seconds = 1e-6 * time.at("median").get<double>(), bytes = one.at("bytes"), flops = one.at("flops");
      EXPECT_GT(bytes, 0);
      EXPECT_NEAR(one.at("bytes_per_second").get<double>(), bytes / seconds, 1e-6 * bytes / seconds);
      const double floor = std::max(bytes / report.at("ceilings").at("copy_bytes_per_second").get<double>(), flops / report.at("ceilings").at("flops_per_second").get<double>());
      EXPECT_NEAR(one.at("share_of_ceiling").get<double>(), floor / seconds, 1e-6 * floor / seconds);
      if (one.at("family") == "gated_delta_rule") {
        EXPECT_THAT(one.at("kernel").get<std::string>(), HasSubstr("cpu.chunked64"));
      }
    }
    const std::set<std::string> all = {"matmul",   "gated_delta_rule", "gated_delta_rule_2", "causal_conv1d", "l2_norm",   "gdn_pre_rule",  "gated_rms_norm", "rms_norm",
                                       "swiglu",   "dropout",          "elementwise",        "attention",     "rope",      "sigmoid_gate",  "embedding",      "cross_entropy",
                                       "adamw",    "gradient_norm"};
    EXPECT_EQ(families, all);
  }
}

TEST(BenchKernels, inputs_are_rotated_past_the_cache) {
  const json report = parsed(bench_kernels({"--json", "--filter", "^rms_norm rms_norm_forward", "--cache-mib", "1"}));
  ASSERT_EQ(report.at("cases").size(), 1u);
  // x, y [64,16], weight [16], statistics [64] in fp32: 8,512 bytes a set, 246.4 of them are twice a MiB.
  EXPECT_EQ(report.at("cases").at(0).at("sets"), 247);
}

TEST(BenchKernels, a_filter_chooses_and_a_model_without_heads_has_no_kernels_for_them) {
  const json some = parsed(bench_kernels({"--json", "--filter", "conv1d|adamw"}));
  EXPECT_EQ(some.at("cases").size(), 3u);
  for (const json& one : parsed(bench_kernels({"--json", "--query-heads", "0", "--rotary-dim", "0", "--head-dim", "0"})).at("cases")) {
    EXPECT_NE(one.at("family"), "attention");
  }
  for (const json& one : parsed(bench_kernels({"--json", "--key-heads", "0"})).at("cases")) EXPECT_NE(one.at("family"), "gated_delta_rule");
  const CliResult table = bench_kernels({"--filter", "swiglu"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("swiglu_backward with output"));
  EXPECT_THAT(table.out, HasSubstr("% of copy"));
}

TEST(BenchKernels, wrong_options_are_refused) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> rows = {
      {{"--filter", "("}, "no regular expression"},       {{"--filter", "nothing_like_this"}, "no kernel of these sizes matches"},
      {{"--tokens", "0"}, "tokens is 0"},                 {{"--documents", "65"}, "more documents than tokens"},
      {{"--value-heads", "3"}, "no multiple of key heads"}, {{"--kv-heads", "3"}, "no multiple of their groups"},
      {{"--rotary-dim", "3"}, "rotary dim is odd"},       {{"--repeats", "0"}, "--repeats"},
      {{"--dtype", "fp16"}, "fp16 has kernels on cuda alone"}, {{"--dtype", "fp64"}, "--dtype"},
      {{"training.seed=1"}, "none is given"},
  };
  for (const auto& [words, message] : rows) {
    const CliResult result = bench_kernels(words);
    EXPECT_EQ(result.code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

class BenchModel : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file_atomically(config(), R"(
model: { num_layers: 4, hidden_size: 32, ffn_hidden_size: 32, vocab_size: 264, experimental_attention_variant: gdn, linear_attention_freq: [1, 1, 1, 0],
         linear_num_key_heads: 2, linear_num_value_heads: 2, linear_key_head_dim: 8, linear_value_head_dim: 8, num_attention_heads: 2 }
training: { device: cpu, micro_batch_size: 2, global_batch_size: 4, seq_length: 32, train_iters: 8, threads: 1 }
optimizer: { lr: 3.0e-3 }
)");
  }
  std::string config() const { return folder_ / "tiny.yaml"; }
  TempFolder folder_;
};

TEST_F(BenchModel, kernels_take_the_sizes_of_a_configuration_and_options_above_it) {
  const json report = parsed(run_cli({"bench", "kernels", "-c", config(), "--json", "--repeats", "1", "--cache-mib", "0", "--filter", "^swiglu", "--ffn", "8", "training.bf16=true"}));
  EXPECT_EQ(report.at("sizes").at("tokens"), 64);
  EXPECT_EQ(report.at("sizes").at("hidden"), 32);
  EXPECT_EQ(report.at("sizes").at("ffn"), 8);
  EXPECT_EQ(report.at("sizes").at("query_heads"), 2);
  EXPECT_EQ(report.at("dtype"), "bf16");
}

TEST_F(BenchModel, layers_of_every_kind_have_a_row_a_region_with_times_bytes_and_parts) {
  const json report = parsed(run_cli({"bench", "layer", "-c", config(), "--json", "--repeats", "2", "--min-offloaded-tensor-size", "64"}));
  std::map<std::string, std::set<std::string>> variants;
  for (const json& layer : report.at("layers")) {
    const std::int64_t plain = layer.at("rows").at(0).at("saved_bytes");
    for (const json& row : layer.at("rows")) {
      variants[layer.at("kind")].insert(row.at("variant"));
      EXPECT_GT(row.at("forward_ms").at("median").get<double>(), 0);
      EXPECT_GE(row.at("forward_backward_ms").at("median").get<double>(), row.at("forward_ms").at("fastest").get<double>());
      EXPECT_GT(row.at("predicted_ms").get<double>(), 0);
      EXPECT_GT(row.at("peak_bytes").get<std::int64_t>(), 0);
      // gdn_core_attn replays a rule that keeps its inputs alone: with gdn2 there is nothing to free.
      if (row.at("variant") != "plain" && layer.at("kind") != "gdn2") {
        EXPECT_LT(row.at("saved_bytes").get<std::int64_t>(), plain) << row.at("variant");
      }
      double parts = 0;
      for (const json& part : row.at("regions")) parts += part.at("ms").get<double>();
      EXPECT_GT(parts, 0);
    }
  }
  const std::set<std::string> linear = {"plain",        "gdn",           "gdn_in_proj",   "gdn_qkv",
                                        "gdn_norm_out", "gdn_qkv_block", "gdn_core_attn", "offload gdn_qkv"};
  EXPECT_EQ(variants["gdn"], linear);
  EXPECT_EQ(variants["gdn2"], linear);
  EXPECT_EQ(variants["softmax"], (std::set<std::string>{"plain", "core_attn"}));
  EXPECT_EQ(variants["mlp"], (std::set<std::string>{"plain", "mlp"}));
  const CliResult text = run_cli({"bench", "layer", "-c", config(), "--kind", "mlp", "--repeats", "1"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("layer mlp"));
  EXPECT_EQ(text.out.find("layer gdn"), std::string::npos);
}

TEST_F(BenchModel, regions_free_bytes_as_planned_and_each_has_a_prediction) {
  const json report = parsed(run_cli({"bench", "regions", "-c", config(), "--json", "--steps", "2", "--warm-up", "1", "--min-offloaded-tensor-size", "64", "--fraction", "1"}));
  std::set<std::string> names;
  for (const json& row : report.at("rows")) {
    names.insert(row.at("name"));
    ASSERT_EQ(row.count("refused"), 0u) << row;
    EXPECT_GT(row.at("step_ms").at("median").get<double>(), 0);
    EXPECT_GT(row.at("predicted_ms").get<double>(), 0);
    EXPECT_EQ(row.at("peak_bytes"), row.at("planned_peak_bytes")) << row.at("name");
    if (row.at("name") != "none") {
      EXPECT_GT(row.at("saved_bytes_less").get<std::int64_t>(), 0) << row.at("name");
    }
    EXPECT_EQ(row.at("groups_offloaded").get<int>() > 0, row.at("offload_fraction").get<double>() > 0) << row.at("name");
  }
  EXPECT_EQ(names, (std::set<std::string>{"none", "core_attn", "mlp", "gdn", "gdn_in_proj", "gdn_qkv", "gdn_norm_out", "gdn_qkv_block", "gdn_core_attn",
                                          "gdn_in_proj + gdn_qkv + gdn_norm_out", "offload gdn_qkv 1"}));
  EXPECT_EQ(report.at("best_offload"), "offload gdn_qkv 1");
}

TEST_F(BenchModel, a_region_that_the_model_cannot_have_is_named_with_its_rule) {
  const CliResult text = run_cli({"bench", "regions", "-c", config(), "--steps", "1", "--warm-up", "1", "model.linear_attention_freq=0", "model.num_attention_heads=0",
                                  "--min-offloaded-tensor-size", "64"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("left out: core_attn: "));
  EXPECT_THAT(text.out, HasSubstr("best offload: "));
}

TEST_F(BenchModel, a_recorded_step_says_where_its_time_goes) {
  const json report = parsed(run_cli({"bench", "step", "-c", config(), "--steps", "1", "--warm-up", "1", "--regions", "--json"}));
  std::set<std::string> names;
  for (const json& row : report.at("regions")) names.insert(row.at("phase").get<std::string>() + ", " + row.at("name").get<std::string>());
  for (const char* name : {"forward, gdn_qkv", "backward, gdn_qkv", "backward, mlp", "optimizer, gradient norm"}) EXPECT_EQ(names.count(name), 1u) << name;
}

TEST_F(BenchModel, wrong_options_of_layers_and_regions_are_refused) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> rows = {
      {{"bench", "layer", "-c", config(), "--repeats", "0"}, "--repeats"},
      {{"bench", "layer", "-c", config(), "--layers", "0"}, "--layers"},
      {{"bench", "layer", "-c", config(), "--kind", "moe"}, "--kind"},
      {{"bench", "layer", "-c", config(), "--kind", "softmax", "model.linear_attention_freq=0", "model.num_attention_heads=0"}, "no layer of --kind softmax"},
      {{"bench", "layer", "-c", config(), "training.device=meta"}, "computes nothing"},
      {{"bench", "regions", "-c", config(), "--steps", "0"}, "--steps"},
      {{"bench", "regions", "-c", config(), "--fraction", "1.5"}, "--fraction '1.5'"},
      {{"bench", "regions", "-c", config(), "--fraction", "half"}, "--fraction 'half'"},
      {{"bench", "regions", "-c", config(), "--min-offloaded-tensor-size", "0"}, "--min-offloaded-tensor-size"},
  };
  for (const auto& [words, message] : rows) {
    const CliResult result = run_cli(words);
    EXPECT_EQ(result.code, 2) << message;
    EXPECT_THAT(result.err, HasSubstr(message));
  }
}

}  // namespace
}  // namespace deltron::tools
