// Offload in the layers: what it takes off the device in the setting of the published table, what evaluation and generation leave alone,
// the two stages of the mixer apart, and memory that stays where it was.
#include "src/nn/gdn2.h"
#include "tests/model/offload_run.h"

namespace deltron::test {
namespace {

constexpr std::int64_t kMiB = 1024 * 1024;

OffloadOptions moving(const std::vector<std::string>& modules, std::int64_t smallest = 1) {
  OffloadOptions options;
  options.modules = modules;
  options.min_offloaded_tensor_size = smallest;
  return options;
}

// One mixer of the published setting (bf16, hidden 2048, 16 key and 32 value heads of 128, one sequence of 1024 tokens) on meta, where
// storages are counted as in a run: device bytes behind its forward pass.
struct Published {
  std::int64_t device = 0, host = 0;
};
Published published_layer(ExperimentalAttentionVariant variant, const std::vector<std::string>& offload, const std::vector<std::string>& recompute,
                          bool pre_rule_fusion = false, bool output_norm_fusion = false) {
  Context ctx(small_context(1, DeviceKind::Meta));
  OffloadManager& manager = ctx.slot<OffloadManager>();
  manager.configure(ctx, moving(offload, OffloadOptions{}.min_offloaded_tensor_size));
  TransformerConfig config;
  config.num_layers = 1;
  config.hidden_size = 2048;
  config.experimental_attention_variant = variant;
  config.linear_num_key_heads = 16;
  config.linear_num_value_heads = 32;
  config.linear_key_head_dim = config.linear_value_head_dim = 128;
  config.linear_conv_kernel_dim = 4;
  config.gdn_pre_gated_delta_rule_fusion = pre_rule_fusion;
  config.gdn_gated_output_norm_fusion = output_norm_fusion;
  ParameterStore store;
  LayerSetup setup;
  setup.store = &store;
  setup.config = &config;
  setup.dtype = DType::BF16;
  const std::unique_ptr<GatedDeltaNet> mixer = variant == ExperimentalAttentionVariant::Gdn2 ? std::make_unique<GatedDeltaNet2>(setup)
                                                                                            : std::make_unique<GatedDeltaNet>(setup);
  store.materialise(ctx, true);
  const auto layout = std::make_shared<const SequenceLayout>(SequenceLayout::dense(ctx, 1, 1024));
  const Tensor x = make_leaf(Tensor::empty(ctx, {1024, 2048}, DType::BF16, "x"), "x");
  manager.begin_micro_batch(ctx);
  const Tensor y = mixer->forward(ctx, x, layout, OffloadCase{recompute, {}}.plan());
  manager.end_forward(ctx);
  Published result{ctx.memory()->stats().current, ctx.host_memory()->stats().current};
  backward(ctx, {y}, {Tensor::empty(ctx, y.shape(), y.dtype(), "dy")});
  manager.reset(ctx);
  return result;
}

TEST(OffloadLayers, gdn_qkv_takes_16_mib_a_layer_off_the_device_in_the_published_setting) {
  for (ExperimentalAttentionVariant variant : {ExperimentalAttentionVariant::Gdn, ExperimentalAttentionVariant::Gdn2}) {
    for (const std::vector<std::string>& recompute : {std::vector<std::string>{}, {"gdn_qkv"}, {"gdn_norm_out"}, {"gdn_qkv", "gdn_norm_out"}}) {
      const Published without = published_layer(variant, {}, recompute), with = published_layer(variant, {"gdn_qkv"}, recompute);
      EXPECT_EQ(without.device - with.device, 16 * kMiB);
      EXPECT_EQ(with.host, 16 * kMiB);
      EXPECT_EQ(without.host, 0);
    }
  }
}

TEST(OffloadLayers, gdn_core_attn_takes_what_the_rule_saved_off_the_device) {
  // q, k, v: 8192 channels of bf16, 16 MiB. The first rule's inverse: 32 heads of 64 values a token, 4 MiB. The projection's gates, z among
  // them: 4160 channels (gdn) or 12288 (gdn2), 8.125 or 24 MiB; they stay where the fused norm reads z in place, or in_proj frees them.
  // The fused preparation's gates: of gdn too small to move (128 KiB), of gdn2 decay (fp32, 2048), b (2048) and w (4096): 20 MiB.
  constexpr auto kGdn = ExperimentalAttentionVariant::Gdn, kGdn2 = ExperimentalAttentionVariant::Gdn2;
  const struct {
    ExperimentalAttentionVariant variant;
    bool pre_rule, norm, in_proj;
    double mib;
  } rows[] = {{kGdn, false, false, false, 28.125}, {kGdn2, false, false, false, 40}, {kGdn, false, true, false, 20},
              {kGdn2, false, true, false, 16},     {kGdn, false, false, true, 20},   {kGdn2, false, false, true, 16},
              {kGdn, true, false, false, 20},      {kGdn2, true, false, false, 36},  {kGdn2, true, true, true, 36}};
  for (const auto& row : rows) {
    const std::vector<std::string> recompute = row.in_proj ? std::vector<std::string>{"gdn_in_proj"} : std::vector<std::string>{};
    const Published without = published_layer(row.variant, {}, recompute, row.pre_rule, row.norm);
    const Published with = published_layer(row.variant, {"gdn_core_attn"}, recompute, row.pre_rule, row.norm);
    EXPECT_EQ(static_cast<double>(without.device - with.device) / kMiB, row.mib) << row.pre_rule << row.norm << row.in_proj;
    EXPECT_EQ(static_cast<double>(with.host) / kMiB, row.mib) << row.pre_rule << row.norm << row.in_proj;
  }
}

struct Counted {
  ModelRun run;
  OffloadManager& manager;
  Batch batch;
  explicit Counted(const OffloadKind& kind = {}, std::vector<std::int64_t> lengths = {66})
      : run(offload_config(kind, 66), kind.dtype), manager(run.ctx.slot<OffloadManager>()), batch(packed_batch(lengths, 67)) {
    manager.configure(run.ctx, moving({"gdn_qkv", "gdn_core_attn", "core_attn", "attn_proj"}));
  }
  std::vector<std::uint64_t> step() {
    manager.begin_micro_batch(run.ctx);
    const std::vector<double> values = run.loss_and_gradients(batch);
    manager.reset(run.ctx);
    return bits_of(values);
  }
  void expect_untouched(bool warming_up = true) const {
    EXPECT_EQ(manager.stats().bytes_out, 0);
    EXPECT_EQ(manager.stats().groups_moved, 0);
    EXPECT_EQ(manager.warming_up(), warming_up);
  }
  void evaluate() {
    GradModeGuard off(run.ctx, false);
    run.logits(batch, false);
  }
  void generate() {
    DecodeCache cache;
    run.model.next_logits(run.ctx, {1, 2, 3}, cache);
    run.model.next_logits(run.ctx, {4}, cache);
  }
};

TEST(OffloadLayers, evaluation_and_generation_touch_nothing_even_as_the_very_first_pass) {
  Counted first, plain;
  first.evaluate();
  first.generate();
  first.expect_untouched();
  EXPECT_TRUE(first.manager.table().empty());
  EXPECT_EQ(first.manager.pool().buffers, 0);
  EXPECT_EQ(first.run.ctx.host_memory()->stats().peak, 0);
  const std::vector<std::uint64_t> expected = plain.step();
  EXPECT_EQ(first.step(), expected) << "the warm-up comes with the first training pass";
  EXPECT_EQ(first.manager.table().size(), 8u);
  first.evaluate();
  first.generate();
  first.expect_untouched(false);
  EXPECT_EQ(first.step(), expected);
}

// Between forward and backward: what is on its way out stays where it is.
TEST(OffloadLayers, evaluation_between_forward_and_backward_touches_nothing) {
  Counted counted, plain;
  const std::vector<std::uint64_t> expected = plain.step();
  ModelRun& run = counted.run;
  run.model.parameters().zero_main_gradients(run.ctx);
  counted.manager.begin_micro_batch(run.ctx);
  const Tensor loss = run.loss(counted.batch);
  const std::vector<double> value = to_doubles(run.ctx, loss);
  const OffloadStats before = counted.manager.stats();
  counted.evaluate();
  EXPECT_EQ(counted.manager.stats().bytes_out, before.bytes_out);
  EXPECT_EQ(counted.manager.stats().bytes_in, 0);
  backward(run.ctx, {loss}, {make_tensor(run.ctx, {1}, DType::F64, {1}, "seed")});
  counted.manager.reset(run.ctx);
  std::vector<double> values = value;
  for (const ParameterPtr& parameter : run.model.parameters().all()) {
    const std::vector<double> gradient = to_doubles(run.ctx, parameter->main_gradient);
    values.insert(values.end(), gradient.begin(), gradient.end());
  }
  EXPECT_EQ(bits_of(values), expected);
}

// One mixer, both stages at once or apart; output, input gradient and every parameter's gradient, bit by bit.
std::vector<std::uint64_t> mixer_bits(const OffloadKind& kind, const OffloadCase& what, bool apart) {
  Context ctx(small_context());
  OffloadManager& manager = ctx.slot<OffloadManager>();
  manager.configure(ctx, moving(what.offload));
  const TransformerConfig config = offload_config(kind, 66);
  ParameterStore store;
  LayerSetup setup;
  setup.store = &store;
  setup.config = &config;
  const std::unique_ptr<GatedDeltaNet> mixer = kind.variant == ExperimentalAttentionVariant::Gdn2 ? std::make_unique<GatedDeltaNet2>(setup)
                                                                                                 : std::make_unique<GatedDeltaNet>(setup);
  store.materialise(ctx, true);
  store.initialise(ctx, 3);
  store.zero_main_gradients(ctx);
  const auto layout = std::make_shared<const SequenceLayout>(SequenceLayout::dense(ctx, 1, 66));
  const Tensor x = make_leaf(random_tensor(ctx, {66, 6}, DType::F32, 8), "x");
  manager.begin_micro_batch(ctx);
  const RecomputePlan plan = what.plan();
  const Tensor y = apart ? mixer->forward_post_core_attn(ctx, mixer->forward_pre_attn_and_core_attn(ctx, x, layout, plan))
                         : mixer->forward(ctx, x, layout, plan);
  manager.end_forward(ctx);
  EXPECT_EQ(manager.stats().groups_moved, static_cast<std::int64_t>(what.offload.size())) << what.name();
  std::vector<std::uint64_t> bits = bits_of(ctx, y);
  backward(ctx, {y}, {random_tensor(ctx, y.shape(), y.dtype(), 9)});
  manager.reset(ctx);
  for (const Tensor& part : {leaf_of(x)->gradient, store.gradient_buffer()}) {
    const std::vector<std::uint64_t> more = bits_of(ctx, part);
    bits.insert(bits.end(), more.begin(), more.end());
  }
  for (const std::string& region : what.recompute) EXPECT_EQ(recompute_counters(ctx, region).replayed, 1) << what.name() << "; " << region;
  return bits;
}

TEST(OffloadLayers, the_two_stages_apart_give_the_bits_of_both_together_under_every_region_but_gdn_norm_out) {
  const std::vector<std::string> parts = {"gdn_in_proj", "gdn_qkv", "gdn_core_attn", "gdn", "gdn_qkv_block", "gdn_norm_out"};
  for (ExperimentalAttentionVariant variant : {ExperimentalAttentionVariant::Gdn, ExperimentalAttentionVariant::Gdn2}) {
    for (const Fusions& fused : {Fusions{}, Fusions{false, true}, Fusions{true, false}, Fusions{true, true}}) {
      const OffloadKind kind{variant, DType::F32, 1, fused};
      const std::vector<std::uint64_t> plain = mixer_bits(kind, {}, false);
      int ran = 0, refused = 0;
      for (unsigned mask = 0; mask < 1u << parts.size(); ++mask) {
        OffloadCase what;
        for (std::size_t i = 0; i < parts.size(); ++i) {
          if ((mask >> i & 1u) != 0) what.recompute.push_back(parts[i]);
        }
        if (!what.legal(fused)) continue;
        for (const std::vector<std::string>& wanted : {std::vector<std::string>{}, {"gdn_qkv", "gdn_core_attn"}}) {
          what.offload = legal_modules(what.recompute, wanted, fused);
          if (!wanted.empty() && what.offload.empty()) continue;
          EXPECT_EQ(mixer_bits(kind, what, false), plain) << what.name();
          if (what.recompute.empty() || what.recompute.back() != "gdn_norm_out") {
            ran++;
            EXPECT_EQ(mixer_bits(kind, what, true), plain) << what.name() << ", apart";
            continue;
          }
          refused++;
          EXPECT_TRUE(contains(message_of([&] { mixer_bits(kind, what, true); }, ErrorCode::InvalidOpInput), {"E391", "gdn_norm_out", "two-stage"})) << what.name();
        }
      }
      EXPECT_GE(ran, fused.pre_rule ? 8 : 15);
      EXPECT_GE(refused, fused.pre_rule ? 6 : 12);
    }
  }
}

// Training passes outside of a micro-batch would have nowhere to put their groups.
TEST(OffloadLayers, a_training_pass_that_no_micro_batch_was_opened_for_is_refused) {
  Counted counted;
  EXPECT_TRUE(contains(message_of([&] { counted.run.loss(counted.batch); }), {"'gdn_qkv'", "begin_micro_batch()"}));
}

TEST(OffloadLayers, without_an_output_gate_the_projection_keeps_the_core_output_until_its_own_group_frees_it) {
  for (bool gate : {false, true}) {
    std::vector<std::vector<std::uint64_t>> bits;
    std::vector<std::int64_t> bytes;
    for (const std::vector<std::string>& offload : {std::vector<std::string>{}, {"core_attn"}, {"core_attn", "attn_proj"}}) {
      TransformerConfig config = offload_config({}, 66);
      config.attention_output_gate = gate;
      ModelRun run(config, DType::F32);
      OffloadManager& manager = run.ctx.slot<OffloadManager>();
      manager.configure(run.ctx, moving(offload));
      manager.begin_micro_batch(run.ctx);
      bits.push_back(bits_of(run.loss_and_gradients(packed_batch({66}, 67))));
      manager.reset(run.ctx);
      bytes.push_back(manager.last_iteration().bytes_out);
    }
    EXPECT_EQ(bits[1], bits[0]) << gate;
    EXPECT_EQ(bits[2], bits[0]) << gate;
    // Two layers. Query and key, normed and turned; their statistics and the core's; with a gate the core's output too.
    const std::int64_t T = 66, q = 16, kv = 8, f = 4;
    const std::int64_t core = f * T * (q + (gate ? q : 0) + 2 * kv + q + kv + 4 + 2 + 4 + (gate ? q : 0));
    EXPECT_EQ(bytes[1], 2 * core) << gate;
    EXPECT_EQ(bytes[2], 2 * (core + f * T * q)) << gate;
  }
}

}  // namespace
}  // namespace deltron::test
