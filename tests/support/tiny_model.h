// A hybrid model small enough for finite differences, with every switch of the configuration to turn, and a packed batch for it.
#pragma once

#include "src/autograd/engine.h"
#include "src/model/hybrid_language_model.h"
#include "tests/support/core_test.h"

namespace deltron::test {

// Layers: gdn, softmax, gdn. Odd sizes, grouped heads.
inline TransformerConfig tiny_config() {
  TransformerConfig config;
  config.num_layers = 3;
  config.hidden_size = 10;
  config.ffn_hidden_size = 7;
  config.vocab_size = 13;
  config.experimental_attention_variant = ExperimentalAttentionVariant::Gdn;
  config.linear_attention_freq.pattern = {1, 0, 1};
  config.linear_num_key_heads = 1;
  config.linear_num_value_heads = 2;
  config.linear_key_head_dim = 5;
  config.linear_value_head_dim = 3;
  config.linear_conv_kernel_dim = 3;
  config.num_attention_heads = 4;
  config.num_query_groups = 2;
  config.kv_channels = 4;
  config.attention_output_gate = true;
  config.qk_layernorm = true;
  config.rotary_percent = 0.5;
  config.layernorm_epsilon = 1e-5;
  config.untie_embeddings_and_output_weights = true;
  config.init_method_std = 0.3;
  return config;
}

struct Switch {
  const char* name;
  void (*turn)(TransformerConfig&);
};
inline const std::vector<Switch>& switches() {
  static const std::vector<Switch> all = {
      {"everything_on", [](TransformerConfig&) {}},
      {"no_output_gate", [](TransformerConfig& c) { c.attention_output_gate = false; }},
      {"no_qk_norm", [](TransformerConfig& c) { c.qk_layernorm = false; }},
      {"as_many_groups_as_heads", [](TransformerConfig& c) { c.num_query_groups = 0; }},
      {"one_group", [](TransformerConfig& c) { c.num_query_groups = 1; }},
      {"full_rotary", [](TransformerConfig& c) { c.rotary_percent = 1.0; }},
      {"no_rotary", [](TransformerConfig& c) { c.position_embedding_type = PositionEmbeddingType::None; }},
      {"no_rotary_and_no_qk_norm",
       [](TransformerConfig& c) {
         c.position_embedding_type = PositionEmbeddingType::None;
         c.qk_layernorm = false;
       }},
      {"zero_centred_norms", [](TransformerConfig& c) { c.layernorm_zero_centered_gamma = true; }},
      {"zero_centred_output_norm", [](TransformerConfig& c) { c.linear_output_norm_zero_centered_gamma = true; }},
      {"tied", [](TransformerConfig& c) { c.untie_embeddings_and_output_weights = false; }},
      {"dropout",
       [](TransformerConfig& c) {
         c.hidden_dropout = 0.2;
         c.attention_dropout = 0.3;
       }},
      {"neg_eigval", [](TransformerConfig& c) { c.allow_neg_eigval = true; }},
      {"more_key_heads",
       [](TransformerConfig& c) {
         c.linear_num_key_heads = 2;
         c.linear_num_value_heads = 4;
       }},
      {"gdn2", [](TransformerConfig& c) { c.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2; }},
      {"gdn2_neg_eigval_and_more_key_heads",
       [](TransformerConfig& c) {
         c.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
         c.allow_neg_eigval = true;
         c.linear_num_key_heads = 2;
         c.linear_num_value_heads = 4;
       }},
      {"fused_output_norm", [](TransformerConfig& c) { c.gdn_gated_output_norm_fusion = true; }},
      {"fused_preparation_neg_eigval_and_more_key_heads",
       [](TransformerConfig& c) {
         c.gdn_pre_gated_delta_rule_fusion = true;
         c.allow_neg_eigval = true;
         c.linear_num_key_heads = 2;
         c.linear_num_value_heads = 4;
       }},
      {"gdn2_with_both_fusions_and_more_key_heads",
       [](TransformerConfig& c) {
         c.experimental_attention_variant = ExperimentalAttentionVariant::Gdn2;
         c.gdn_pre_gated_delta_rule_fusion = c.gdn_gated_output_norm_fusion = true;
         c.allow_neg_eigval = true;
         c.linear_num_key_heads = 2;
         c.linear_num_value_heads = 4;
       }},
      {"gdn_alone",
       [](TransformerConfig& c) {
         c.num_layers = 1;
         c.linear_attention_freq.pattern = {1};
       }},
      {"softmax_alone",
       [](TransformerConfig& c) {
         c.num_layers = 1;
         c.linear_attention_freq.pattern = {0};
       }},
  };
  return all;
}

struct Batch {
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> ids, labels;
  std::vector<std::int64_t> samples = {};  // who the documents are to dropout; empty: their number
};

// Documents of these lengths; some labels masked. Content depends on the document's number and `variant` of it.
inline Batch packed_batch(const std::vector<std::int64_t>& lengths, std::int64_t vocab, const std::vector<int>& variants = {}) {
  Batch batch;
  batch.offsets = {0};
  for (std::size_t document = 0; document < lengths.size(); ++document) {
    const int variant = document < variants.size() ? variants[document] : 0;
    RngStream stream({static_cast<std::uint64_t>(variant), 0, kRngSiteData}, document);
    for (std::int64_t t = 0; t < lengths[document]; ++t) {
      batch.ids.push_back(static_cast<std::int32_t>(stream.below(static_cast<std::uint64_t>(vocab))));
      const auto label = static_cast<std::int32_t>(stream.below(static_cast<std::uint64_t>(vocab)));
      batch.labels.push_back(t % 7 == 6 ? -1 : label);
    }
    batch.offsets.push_back(batch.offsets.back() + lengths[document]);
  }
  return batch;
}

struct ModelRun {
  Context ctx;
  HybridLanguageModel model;
  ModelRun(const TransformerConfig& config, DType dtype, int threads = 1, DeviceKind device = kTestDevice, bool trainable = true)
      : ctx(small_context(threads, device)), model(ctx, config, dtype, trainable, 17) {
    model.parameters().initialise(ctx, 5);
    spread_norms();
  }
  // Norm weights start constant: spread them, so that their place in the formulas shows.
  void spread_norms() {
    if (ctx.is_meta()) return;
    std::uint64_t seed = 60;
    for (const ParameterPtr& parameter : model.parameters().all()) {
      if (parameter->spec.init != InitKind::Constant) continue;
      std::vector<double> values = to_doubles(ctx, parameter->value);
      const std::vector<double> noise = random_values(parameter->value.count(), seed++, 0.2);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += noise[i];
      from_doubles(ctx, parameter->value, values);
    }
  }
  LayoutPtr layout(const Batch& batch) {
    std::vector<std::int64_t> samples;
    for (std::size_t d = 0; d < batch.samples.size(); ++d) {
      samples.insert(samples.end(), static_cast<std::size_t>(batch.offsets[d + 1] - batch.offsets[d]), batch.samples[d]);
    }
    return std::make_shared<const SequenceLayout>(ctx, batch.offsets, batch.offsets.back(), std::vector<std::int32_t>{}, samples);
  }
  Tensor logits(const Batch& batch, bool training = true) {
    return model.logits(ctx, int_tensor(ctx, batch.ids), layout(batch), {.training = training});
  }
  Tensor loss(const Batch& batch, bool training = true) {
    return model.loss(ctx, int_tensor(ctx, batch.ids), int_tensor(ctx, batch.labels, "labels"), layout(batch), {.training = training}, 0.1);
  }
  // Loss and every main gradient, from zero.
  std::vector<double> loss_and_gradients(const Batch& batch) {
    model.parameters().zero_main_gradients(ctx);
    const Tensor result = loss(batch);
    std::vector<double> values = ctx.is_meta() ? std::vector<double>{} : to_doubles(ctx, result);
    backward(ctx, {result}, {make_tensor(ctx, {1}, DType::F64, {1}, "seed")});
    if (ctx.is_meta()) return values;
    for (const ParameterPtr& parameter : model.parameters().all()) {
      const std::vector<double> gradient = to_doubles(ctx, parameter->main_gradient);
      values.insert(values.end(), gradient.begin(), gradient.end());
    }
    return values;
  }
};

inline std::vector<std::uint64_t> bits_of(const std::vector<double>& values) {
  std::vector<std::uint64_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(double));
  return bits;
}

}  // namespace deltron::test
