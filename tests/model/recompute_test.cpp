// Recompute changes no bit: losses and every parameter's gradient, over a warm-up and two more steps of two micro-batches with dropout on,
// for every legal set of regions. Every region that was asked for runs, frees and restores exactly once. The input gradient is compared in
// offload_exactness_test.cpp, where every token has an id of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "src/autograd/recompute.h"
#include "tests/support/tiny_model.h"

namespace deltron::test {
namespace {

TransformerConfig dropout_config(ExperimentalAttentionVariant variant = ExperimentalAttentionVariant::Gdn, bool pre_rule = false,
                                 bool output_norm = false) {
  TransformerConfig config = tiny_config();
  config.experimental_attention_variant = variant;
  config.gdn_pre_gated_delta_rule_fusion = pre_rule;
  config.gdn_gated_output_norm_fusion = output_norm;
  config.hidden_dropout = 0.2;
  config.attention_dropout = 0.3;
  return config;
}

struct Record {
  std::vector<std::vector<std::uint64_t>> bits;
  std::int64_t peak_saved = 0;
};

// `weights` move between steps so that a stale replay would show.
Record run(const TransformerConfig& config, DType dtype, const std::vector<std::int64_t>& lengths, const RecomputePlan& plan,
           std::vector<std::pair<std::string, RecomputeCounters>>* counters = nullptr, const std::vector<std::string>& regions = {}) {
  ModelRun m(config, dtype);
  Record record;
  for (int step = 0; step < 3; ++step) {
    m.model.parameters().zero_main_gradients(m.ctx);
    for (int micro = 0; micro < 2; ++micro) {
      const Batch batch = packed_batch(lengths, config.vocab_size, std::vector<int>(lengths.size(), 10 * step + micro));
      const Tensor loss = m.model.loss(m.ctx, int_tensor(m.ctx, batch.ids), int_tensor(m.ctx, batch.labels, "labels"), m.layout(batch),
                                       {.training = true, .recompute = plan}, 0.1);
      record.peak_saved = std::max(record.peak_saved, m.ctx.memory()->stats().saved);
      record.bits.push_back(bits_of(m.ctx, loss));
      backward(m.ctx, {loss}, {make_tensor(m.ctx, {1}, DType::F64, {1.0}, "seed")});
    }
    record.bits.push_back(bits_of(m.ctx, m.model.parameters().gradient_buffer()));
    for (const ParameterPtr& parameter : m.model.parameters().all()) {
      std::vector<double> values = to_doubles(m.ctx, parameter->value);
      const std::vector<double> gradient = to_doubles(m.ctx, parameter->main_gradient);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] -= 0.05 * gradient[i];
      from_doubles(m.ctx, parameter->value.detached(), values);
    }
    EXPECT_EQ(m.ctx.memory()->stats().saved, 0) << "nothing stays saved between steps";
  }
  if (counters != nullptr) {
    for (const std::string& region : regions) counters->emplace_back(region, recompute_counters(m.ctx, region));
  }
  return record;
}

RecomputePlan plan_of(const std::vector<std::string>& modules) {
  RecomputeConfig config;
  config.recompute_granularity = RecomputeGranularity::Selective;
  config.recompute_modules = modules;
  return make_recompute_plan(config);
}

// Rule 51: gdn_qkv has no output of its own beside the fused preparation.
std::vector<std::vector<std::string>> legal_sets(bool pre_rule) {
  const std::vector<std::string> parts = {"gdn_in_proj", "gdn_qkv", "gdn_norm_out", "gdn_core_attn"};
  std::vector<std::vector<std::string>> sets;
  for (unsigned mask = 1; mask < 16; ++mask) {
    std::vector<std::string> set;
    for (unsigned i = 0; i < 4; ++i) {
      if ((mask >> i & 1u) != 0) set.push_back(parts[i]);
    }
    sets.push_back(set);
  }
  sets.push_back({"gdn"});
  sets.push_back({"gdn_qkv_block"});
  sets.push_back({"gdn_qkv_block", "gdn_norm_out"});
  sets.push_back({"core_attn"});
  sets.push_back({"mlp"});
  sets.push_back({"gdn_in_proj", "gdn_qkv", "gdn_norm_out", "gdn_core_attn", "core_attn", "mlp"});
  sets.push_back({"gdn_in_proj", "gdn_norm_out", "gdn_core_attn", "core_attn", "mlp"});
  if (!pre_rule) return sets;
  const auto has_qkv = [](const std::vector<std::string>& set) { return std::find(set.begin(), set.end(), "gdn_qkv") != set.end(); };
  sets.erase(std::remove_if(sets.begin(), sets.end(), has_qkv), sets.end());
  return sets;
}

struct Kind {
  ExperimentalAttentionVariant variant;
  DType dtype;
  bool pre_rule, output_norm;  // fusions
};
class RecomputeExactness : public testing::TestWithParam<Kind> {};

TEST_P(RecomputeExactness, every_legal_set_of_regions_repeats_the_bits_and_runs_once_a_forward) {
  const auto [variant, dtype, pre_rule, output_norm] = GetParam();
  const TransformerConfig config = dropout_config(variant, pre_rule, output_norm);
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{70}, std::vector<std::int64_t>{37, 33, 1}}) {
    if (kContextOnCuda && lengths.size() == 1) continue;  // offload_exactness_test.cpp has whole sequences there
    const Record plain = run(config, dtype, lengths, {});
    for (const std::vector<std::string>& modules : legal_sets(pre_rule)) {
      std::string name;
      for (const std::string& module : modules) name += module + " ";
      std::vector<std::pair<std::string, RecomputeCounters>> counters;
      const Record with = run(config, dtype, lengths, plan_of(modules), &counters, modules);
      EXPECT_EQ(with.bits, plain.bits) << name;
      // The second rule keeps nothing but its inputs, so its region alone has nothing to free.
      const bool inputs_alone = variant == ExperimentalAttentionVariant::Gdn2 && modules == std::vector<std::string>{"gdn_core_attn"};
      EXPECT_LT(with.peak_saved, plain.peak_saved + (inputs_alone ? 1 : 0)) << name << "frees nothing";
      for (const auto& [region, count] : counters) {
        const std::int64_t layers = region == "mlp" ? 3 : (region == "core_attn" ? 1 : 2), forwards = 6 * layers;
        const bool discards = region == "gdn_in_proj" || region == "gdn_qkv" || region == "gdn_norm_out" || region == "gdn_qkv_block";
        // The wide block's: q, k, v and the projection's gates; fused, the gates of the rule as well.
        const std::int64_t block = pre_rule ? (variant == ExperimentalAttentionVariant::Gdn2 ? 5 : 4) : 2;
        const std::int64_t storages = region == "gdn_qkv_block" ? block : (region == "gdn_in_proj" ? 2 : 1);
        EXPECT_EQ(count.forward, forwards) << name << region;
        EXPECT_EQ(count.replayed, forwards) << name << region;
        EXPECT_EQ(count.discarded, discards ? forwards * storages : 0) << name << region;
        EXPECT_EQ(count.restored, count.discarded) << name << region;
      }
    }
  }
}

TEST_P(RecomputeExactness, full_recompute_repeats_the_bits) {
  const auto [variant, dtype, pre_rule, output_norm] = GetParam();
  const TransformerConfig config = dropout_config(variant, pre_rule, output_norm);
  const Record plain = run(config, dtype, {37, 33, 1}, {});
  for (RecomputeMethod method : {RecomputeMethod::Uniform, RecomputeMethod::Block}) {
    for (std::int64_t layers : {1, 2, 3}) {
      RecomputeConfig full;
      full.recompute_granularity = RecomputeGranularity::Full;
      full.recompute_method = method;
      full.recompute_num_layers = layers;
      const Record with = run(config, dtype, {37, 33, 1}, make_recompute_plan(full));
      EXPECT_EQ(with.bits, plain.bits) << layers;
      EXPECT_LT(with.peak_saved, plain.peak_saved) << layers;
    }
  }
}

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (ExperimentalAttentionVariant variant : {ExperimentalAttentionVariant::Gdn, ExperimentalAttentionVariant::Gdn2}) {
    for (DType dtype : {DType::F32, DType::BF16}) all.push_back({variant, dtype, false, false});
    if (!kContextOnCuda) all.push_back({variant, DType::F64, false, false});  // kept for tests on the CPU
    for (DType dtype : {DType::F32, DType::BF16}) all.push_back({variant, dtype, true, true});
    if (kContextOnCuda) continue;
    all.push_back({variant, DType::F32, true, false});
    all.push_back({variant, DType::BF16, false, true});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Types, RecomputeExactness, testing::ValuesIn(kinds()), [](const auto& kind) {
  return std::string(kind.param.variant == ExperimentalAttentionVariant::Gdn2 ? "gdn2_" : "gdn_") + dtype_name(kind.param.dtype) +
         (kind.param.pre_rule ? "_fused_preparation" : "") + (kind.param.output_norm ? "_fused_norm" : "");
});

TEST(Recompute, evaluation_keeps_no_closure_and_counts_nothing) {
  ModelRun m(dropout_config(), DType::F32);
  const Batch batch = packed_batch({37, 33}, m.model.config().vocab_size);
  GradModeGuard no_graph(m.ctx, false);
  m.model.logits(m.ctx, int_tensor(m.ctx, batch.ids), m.layout(batch), {.training = false, .recompute = plan_of({"gdn_in_proj", "mlp"})});
  EXPECT_EQ(recompute_counters(m.ctx, "gdn_in_proj").forward, 0);
  EXPECT_EQ(recompute_counters(m.ctx, "mlp").forward, 0);
  EXPECT_EQ(m.ctx.memory()->stats().saved, 0);
}

// A wrong order of hooks reads a freed storage: it fails at once and says which one.
TEST(Recompute, reading_a_freed_projection_fails_at_once_and_names_it) {
  Context ctx(small_context());
  const Tensor x = make_leaf(random_tensor(ctx, {8, 4}, DType::F32, 1), "x"), w = make_leaf(random_tensor(ctx, {4, 4}, DType::F32, 2), "w");
  DiscardOutputRegion outer("outer"), inner("inner");
  const auto product = [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{linear(ctx, in[0], w, "projection")}; };
  const Tensor p = outer.run(ctx, product, {x})[0];
  const Tensor q = inner.run(ctx, product, {p})[0];
  const Tensor c = linear(ctx, q, w, "c");
  const Tensor y = linear(ctx, c, w, "y");
  outer.discard_output();
  inner.discard_output();
  inner.restore_on(y);  // wrong: the projection that the inner region reads is restored later, on c
  outer.restore_on(c);
  try {
    backward(ctx, {y}, {random_tensor(ctx, y.shape(), y.dtype(), 3)});
    FAIL() << "a freed storage was read";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("projection"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("Discarded"), std::string::npos) << error.what();
  }
}

TEST(Recompute, outputs_that_no_hook_restores_are_an_error_that_names_the_region) {
  Context ctx(small_context());
  const Tensor x = make_leaf(random_tensor(ctx, {8, 4}, DType::F32, 1), "x"), w = make_leaf(random_tensor(ctx, {4, 4}, DType::F32, 2), "w");
  DiscardOutputRegion region("forgotten");
  const Tensor p = region.run(ctx, [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{linear(ctx, in[0], w, "projection")}; }, {x})[0];
  region.discard_output();
  EXPECT_THROW(region.discard_output(), Error) << "freed twice";
  try {
    backward(ctx, {p}, {random_tensor(ctx, p.shape(), p.dtype(), 3)});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("forgotten"), std::string::npos) << error.what();
  }
}

// A gate that is a strided view of the projection: freeing the projection before the norm has read it would corrupt forward.
TEST(Recompute, a_strided_gate_view_of_a_freed_projection_cannot_be_read) {
  Context ctx(small_context());
  const Tensor x = make_leaf(random_tensor(ctx, {8, 4}, DType::F32, 1), "x"), w = make_leaf(random_tensor(ctx, {12, 4}, DType::F32, 2), "w");
  DiscardOutputRegion region("gdn_in_proj");
  const Tensor p = region.run(ctx, [&](const std::vector<Tensor>& in) { return std::vector<Tensor>{linear(ctx, in[0], w, "gates")}; }, {x})[0];
  const std::vector<Tensor> parts = split(ctx, p, {{8, 2}, {4, 0}}, "parts");
  EXPECT_FALSE(parts[0].is_contiguous());
  region.discard_output();
  EXPECT_THROW(parts[0].data(), Error);
}

}  // namespace
}  // namespace deltron::test
