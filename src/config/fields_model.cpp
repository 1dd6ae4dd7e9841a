// The keys of section `model`.
#include "src/config/section_fields.h"

namespace deltron {

void add_model_fields(std::vector<Field>& table) {
  SectionFields<TransformerConfig> f(table, "model", &RunConfig::model);
  using M = TransformerConfig;
  constexpr double kMost = 2147483647.0;

  f.add("num_layers", &M::num_layers, "number of layers, each a token mixer and an MLP; required").at_least(0).at_most(100000);
  f.add("hidden_size", &M::hidden_size, "width of the residual stream; required").at_least(0).at_most(kMost).in("channels");
  f.add("ffn_hidden_size", &M::ffn_hidden_size, "inner width of the SwiGLU MLP; required").at_least(0).at_most(kMost).in("channels");
  f.add("vocab_size", &M::vocab_size, "number of token ids, end of document included; multiples of 8 make faster products; required")
      .at_least(0).at_most(kMost).in("tokens");

  f.add_words("experimental_attention_variant", &M::experimental_attention_variant, {"none", "gdn", "gdn2"},
              "the linear token mixer: Gated DeltaNet (gdn), Gated DeltaNet-2 (gdn2), or softmax attention everywhere (none)")
      .alias("gated_delta_net", "gdn");
  f.add("linear_attention_freq", &M::linear_attention_freq,
        "which layers are linear: an integer f puts softmax attention on layers f, 2f, ... counted from 1 (0 = linear everywhere), "
        "a list has one entry a layer, 1 = linear, 0 = softmax; -1 = not set; required with a linear variant");
  f.add("linear_num_key_heads", &M::linear_num_key_heads, "query and key heads of the linear mixer; required with a linear variant")
      .at_least(0).at_most(kMost);
  f.add("linear_num_value_heads", &M::linear_num_value_heads,
        "value heads of the linear mixer, a multiple of linear_num_key_heads; required with a linear variant").at_least(0).at_most(kMost);
  f.add("linear_key_head_dim", &M::linear_key_head_dim, "size of a query or key head; required with a linear variant")
      .at_least(0).at_most(kMost).in("channels");
  f.add("linear_value_head_dim", &M::linear_value_head_dim, "size of a value head; required with a linear variant")
      .at_least(0).at_most(kMost).in("channels");
  f.add("linear_conv_kernel_dim", &M::linear_conv_kernel_dim, "taps of the causal depthwise convolution before the rule")
      .at_least(1).at_most(16).in("tokens");
  f.add("allow_neg_eigval", &M::allow_neg_eigval, "write strength beta (gdn) or erase gate b (gdn2) in (0, 2) instead of (0, 1), so that the state's transition may have "
        "negative eigenvalues");
  f.add_words("linear_dt_bias_init", &M::linear_dt_bias_init, {"ones", "log_uniform"},
              "initial decay of gdn: ones (Megatron, Qwen: state fades within a few tokens until training lengthens it) or log_uniform (time steps "
              "from 0.001 to 0.1: long memory from the start); gdn2 always starts log_uniform");

  f.add("num_attention_heads", &M::num_attention_heads, "query heads of softmax attention; required where a layer has it")
      .at_least(0).at_most(kMost);
  f.add("num_query_groups", &M::num_query_groups, "key and value heads of softmax attention; 0 = num_attention_heads")
      .at_least(0).at_most(kMost);
  f.add("kv_channels", &M::kv_channels, "size of a softmax attention head; 0 = hidden_size / num_attention_heads")
      .at_least(0).at_most(kMost).in("channels");
  f.add("attention_output_gate", &M::attention_output_gate, "multiply the output of softmax attention by a sigmoid gate");
  f.add("qk_layernorm", &M::qk_layernorm, "RMSNorm over each query and key head of softmax attention");
  f.add_words("position_embedding_type", &M::position_embedding_type, {"rope", "none"}, "positions in softmax attention");
  f.add("rotary_percent", &M::rotary_percent, "share of a head's channels that RoPE turns").above(0).at_most(1);
  f.add("rotary_base", &M::rotary_base, "base of RoPE's frequencies").above(1);

  f.add("layernorm_epsilon", &M::layernorm_epsilon, "added to the mean square in every RMSNorm").above(0).at_most(1);
  f.add("layernorm_zero_centered_gamma", &M::layernorm_zero_centered_gamma, "RMSNorm weights are stored as gamma - 1 (the gated norm of GDN apart)");
  f.add("linear_output_norm_zero_centered_gamma", &M::linear_output_norm_zero_centered_gamma,
        "the same for the gated output norm of the linear mixer, which Qwen3.5 keeps plain");
  f.add("untie_embeddings_and_output_weights", &M::untie_embeddings_and_output_weights, "an output matrix of its own instead of the embedding's");
  f.add("hidden_dropout", &M::hidden_dropout, "dropout on what each mixer and MLP adds to the residual stream").at_least(0).below(1);
  f.add("attention_dropout", &M::attention_dropout, "dropout on softmax attention probabilities").at_least(0).below(1);
  f.add_words("attention_backend", &M::attention_backend, {"auto", "fused", "local"},
              "kernels of softmax attention: fused = cuDNN on cuda (bf16, no attention_dropout, heads of up to 256 channels), an error where it cannot; "
              "local = own kernels; auto = fused where it can, and the start of a run says which");
  f.add("init_method_std", &M::init_method_std, "standard deviation of initial weights").above(0).at_most(10);
  f.add("gdn_pre_gated_delta_rule_fusion", &M::gdn_pre_gated_delta_rule_fusion, "one kernel for convolution, SiLU, L2 norm and gates before the rule");
  f.add("gdn_gated_output_norm_fusion", &M::gdn_gated_output_norm_fusion, "the gated output norm reads its gate in place; off: from a copy, which is kept");
}

}  // namespace deltron
