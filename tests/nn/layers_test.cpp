// Layers alone: the two stages of the GDN mixer, what each region keeps, and layers without an input norm.
#include "src/autograd/engine.h"
#include "src/nn/attention.h"
#include "src/nn/block.h"
#include "src/nn/gdn2.h"
#include "tests/support/core_test.h"

namespace deltron {
namespace {

using test::bits_of;
using test::random_tensor;
using test::small_context;

TransformerConfig config_of_layers() {
  TransformerConfig config;
  config.num_layers = 1;
  config.hidden_size = 10;
  config.ffn_hidden_size = 7;
  config.vocab_size = 13;
  config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn;
  config.linear_attention_freq.pattern = {1};
  config.linear_num_key_heads = 1;
  config.linear_num_value_heads = 2;
  config.linear_key_head_dim = 5;
  config.linear_value_head_dim = 3;
  config.num_attention_heads = 4;
  config.num_query_groups = 2;
  config.kv_channels = 4;
  config.init_method_std = 0.3;
  return config;
}

struct Mixer {
  Context ctx{small_context()};
  TransformerConfig config = config_of_layers();
  ParameterStore store;
  LayerSetup setup;
  std::unique_ptr<GatedDeltaNet> gdn;
  std::optional<SelfAttention> attention;
  LayoutPtr layout;
  Tensor x;
  explicit Mixer(bool input_norm, DType dtype = DType::F32, bool second = false) {
    setup.store = &store;
    setup.config = &config;
    setup.dtype = dtype;
    setup.layer = 4;
    setup.prefix = "decoder.layers.4.";
    setup.input_norm = input_norm;
    if (second) {
      gdn = std::make_unique<GatedDeltaNet2>(setup);
    } else {
      gdn = std::make_unique<GatedDeltaNet>(setup);
    }
    setup.prefix = "decoder.layers.5.";
    attention.emplace(setup, 3);
    store.materialise(ctx, true);
    store.initialise(ctx, 1);
    layout = std::make_shared<const SequenceLayout>(ctx, std::vector<std::int64_t>{0, 3, 70}, 70);
    x = make_leaf(random_tensor(ctx, {70, 10}, dtype, 2), "x");
  }
};

TEST(GatedDeltaNetLayer, its_two_stages_called_apart_give_the_same_bits_forward_and_backward) {
  for (bool second : {false, true}) {
    std::vector<std::vector<std::uint64_t>> all[2];
    for (int apart : {0, 1}) {
      Mixer m(true, DType::F32, second);
      Tensor y;
      if (apart == 1) {
        const GatedDeltaNet::StageOne stage = m.gdn->forward_pre_attn_and_core_attn(m.ctx, m.x, m.layout);
        EXPECT_EQ(stage.normed.shape(), (Shape{70, 6}));
        y = m.gdn->forward_post_core_attn(m.ctx, stage);
      } else {
        y = m.gdn->forward(m.ctx, m.x, m.layout);
      }
      all[apart].push_back(bits_of(m.ctx, y));
      backward(m.ctx, {y}, {random_tensor(m.ctx, y.shape(), y.dtype(), 8)});
      all[apart].push_back(bits_of(m.ctx, leaf_of(m.x)->gradient));
      all[apart].push_back(bits_of(m.ctx, m.store.gradient_buffer()));
    }
    EXPECT_EQ(all[0], all[1]);
  }
}

TEST(GatedDeltaNetLayer, its_projection_writes_two_storages) {
  Mixer m(true);
  const GatedDeltaNet::StageOne stage = m.gdn->forward_pre_attn_and_core_attn(m.ctx, m.x, m.layout);
  std::int64_t in_proj = 0, gates = 0;
  for (const SavedStorage& saved : m.ctx.memory()->saved_storages()) {
    if (std::string(saved.scope.region) != "gdn_in_proj" || saved.bytes <= 1000) continue;
    ++in_proj;
    if (saved.bytes == 70 * (6 + 2 + 2) * 4) ++gates;
  }
  EXPECT_EQ(in_proj, 2) << "conv input and gates are kept apart";
  EXPECT_EQ(gates, 1);
}

TEST(GatedDeltaNetLayer, only_the_normalised_input_is_not_kept) {
  Mixer m(true);
  const Tensor y = m.gdn->forward(m.ctx, m.x, m.layout);
  for (const SavedStorage& saved : m.ctx.memory()->saved_storages())
    EXPECT_EQ(saved.name.find("normed"), std::string::npos) << saved.name;
}

TEST(Mixers, without_an_input_norm_read_their_input_as_it_is_and_declare_no_norm) {
  Mixer bare(false), normed(true);
  for (const ParameterPtr& parameter : bare.store.all()) EXPECT_EQ(parameter->spec.name.find("input_layernorm"), std::string::npos);
  // Rows of unit mean square pass a norm with weights of one almost unchanged.
  std::vector<double> values = test::random_values(700, 4);
  for (std::size_t row = 0; row < 70; ++row) {
    double square = 0;
    for (std::size_t i = 0; i < 10; ++i) square += values[row * 10 + i] * values[row * 10 + i];
    for (std::size_t i = 0; i < 10; ++i) values[row * 10 + i] /= std::sqrt(square / 10);
  }
  const Tensor a = make_tensor(bare.ctx, {70, 10}, DType::F32, values, "x"),
               b = make_tensor(normed.ctx, {70, 10}, DType::F32, values, "x");
  EXPECT_LE(test::relative_difference(to_doubles(bare.ctx, bare.gdn->forward(bare.ctx, a, bare.layout)),
                                      to_doubles(normed.ctx, normed.gdn->forward(normed.ctx, b, normed.layout))),
            1e-4);
  EXPECT_LE(test::relative_difference(to_doubles(bare.ctx, bare.attention->forward(bare.ctx, a, bare.layout, true)),
                                      to_doubles(normed.ctx, normed.attention->forward(normed.ctx, b, normed.layout, true))),
            1e-4);
}

TEST(Mixers, run_on_no_tokens_at_all) {
  Mixer m(true);
  const LayoutPtr none = std::make_shared<const SequenceLayout>(m.ctx, std::vector<std::int64_t>{0, 0}, 0);
  const Tensor x = make_leaf(Tensor::zeros(m.ctx, {0, 10}, DType::F32, "x"), "x");
  for (const Tensor& y : {m.gdn->forward(m.ctx, x, none), m.attention->forward(m.ctx, x, none, true)}) {
    EXPECT_EQ(y.shape(), (Shape{0, 10}));
    backward(m.ctx, {y}, {Tensor::zeros(m.ctx, {0, 10}, DType::F32, "seed")});
  }
  EXPECT_EQ(test::largest(to_doubles(m.ctx, m.store.gradient_buffer())), 0);
}

TEST(LayerSetup, projections_back_into_the_stream_start_smaller_the_deeper_the_model) {
  TransformerConfig config = config_of_layers();
  LayerSetup setup;
  setup.config = &config;
  config.num_layers = 8;
  EXPECT_DOUBLE_EQ(setup.output_std(), 0.3 / 4);
}

}  // namespace
}  // namespace deltron
