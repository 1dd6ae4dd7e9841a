// Rows of Megatron's table of rules that no rule of the validator carries: where they are checked instead, or why they do not
// apply.
#include "src/config/validate.h"

namespace deltron {

const std::vector<RowElsewhere>& rows_elsewhere() {
  constexpr bool kChecked = true;
  constexpr bool kDoesNotApply = false;
  static const std::vector<RowElsewhere> rows = {
      {8, 8, kChecked, "alias `gated_delta_net`", "the loader reads it as `gdn` and prints a notice with its place"},
      {84, 85, kChecked, "inputs of the fused preparation before the rule",
       "the op checks widths, tokens, types, taps, offsets and devices on every forward, replays included (E391); a convolution bias "
       "and an L2 norm that is off cannot be asked for, and head dims need not be powers of two"},
      {87, 89, kChecked, "inputs of the fused output norm",
       "the op checks shapes, strides, types, weight and devices on every forward, replays included (E391); activation and norm are "
       "always SiLU and RMSNorm, and head dims need not be powers of two"},
      {95, 96, kChecked, "offsets of packed sequences",
       "the sequence layout is checked on the host when a batch is made; it has one set of offsets"},
      {102, 102, kChecked, "offsets that do not start at 0 or decrease, lengths not a multiple of 2 x cp",
       "the sequence layout is checked on the host when a batch is made"},
      {105, 105, kChecked, "`gdn_norm_out` in two-stage execution",
       "the first stage of the mixer refuses it (E391); no key asks for two stages"},
      {2, 2, kDoesNotApply, "`pipeline_dtype`", "there is no pipeline parallelism"},
      {6, 6, kDoesNotApply, "`fp16` with `bf16`", "training has no fp16: one flag, `bf16`"},
      {19, 27, kDoesNotApply, "chunkwise context parallelism, contiguous layout, `gdn_conv_pad_alignment`",
       "context parallelism is by heads, with one layout"},
      {31, 31, kDoesNotApply, "`cp_comm_type`", "all-to-all is the only exchange"},
      {38, 39, kDoesNotApply, "`distribute_saved_activations`", "sequence parallelism cuts what is saved"},
      {41, 41, kDoesNotApply, "`recompute_modules` unset means `core_attn`",
       "answered otherwise: `selective` needs an explicit list (rule 302)"},
      {42, 42, kDoesNotApply, "`moe_act`", "there are no experts"},
      {43, 43, kDoesNotApply, "`mla_up_proj`", "there is no latent attention"},
      {54, 54, kDoesNotApply, "`gdp_qkv`, `gdp_in_proj`", "there is no Gated DeltaProduct"},
      {55, 55, kDoesNotApply, "warning on `core_attn` recompute",
       "answered otherwise: `core_attn` is legal where softmax layers exist (rule 303)"},
      {56, 56, kDoesNotApply, "`shared_experts`", "there are no experts"},
      {57, 57, kDoesNotApply, "fp8 delayed scaling", "there is no fp8"},
      {58, 60, kDoesNotApply, "hyper-connections", "there are none"},
      {61, 61, kDoesNotApply, "`moe_layer_recompute`", "there are no experts"},
      {62, 65, kDoesNotApply, "`cpu_offloading` of whole layers",
       "offload is by module; `layer_input` keeps layer inputs on the host"},
      {69, 69, kDoesNotApply, "`moe` recompute with offload of expert modules", "there are no experts"},
      {72, 72, kDoesNotApply, "`delta_offload_bytes_across_pp_ranks`", "there is no pipeline parallelism"},
      {74, 74, kDoesNotApply, "`fused_group_mlp`", "there are no experts"},
      {75, 75, kDoesNotApply, "offload with another transformer implementation", "there is one implementation"},
      {76, 80, kDoesNotApply, "CUDA graphs with offload, recompute or dropout", "no key captures graphs"},
      {83, 83, kDoesNotApply, "fusion before the rule in deterministic mode",
       "answered otherwise: always deterministic (rule 223), fused or not"},
      {86, 86, kDoesNotApply, "fused output norm in deterministic mode",
       "answered otherwise: always deterministic (rule 223), fused or not"},
      {90, 90, kDoesNotApply, "`fused_residual_rmsnorm` without RMSNorm", "every norm is RMSNorm"},
      {91, 91, kDoesNotApply, "`bias_activation_fusion`", "there are no biases, and one activation"},
      {92, 94, kDoesNotApply, "`deterministic_mode` with other options, its environment, packed sequences",
       "answered otherwise: always deterministic (rule 223)"},
      {97, 97, kDoesNotApply, "`batch_invariant_mode`", "answered otherwise: always deterministic (rule 223)"},
      {98, 99, kDoesNotApply, "fp8, fp4", "there is neither"},
      {100, 100, kDoesNotApply, "layers of the first and last pipeline stage", "there is no pipeline parallelism"},
      {101, 101, kDoesNotApply, "batching modes of inference",
       "generation has one mode: a sequence with its recurrent state and key-value cache"},
  };
  return rows;
}

}  // namespace deltron
