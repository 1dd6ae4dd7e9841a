// See checks.h: a Gated DeltaNet mixer of either version, its weights under logical names, without the fusions and with both.
#include <memory>

#include "src/autograd/engine.h"
#include "src/base/file.h"
#include "src/nn/gdn2.h"
#include "tools/verify/checks.h"
#include "tools/verify/golden.h"
#include "tools/verify/rule_kernel.h"

namespace deltron::tools {
namespace {

constexpr double kForwardLimit = 1e-5, kGradientLimit = 1e-4;

// One run of the layer, with both fusions or without; `suffix` marks its tensors in the report.
void run_layer(Context& ctx, const GoldenFile& golden, const std::string& path, const TransformerConfig& config, const std::string& suffix,
               FileReport& report) {
  ParameterStore store;
  LayerSetup setup;
  setup.store = &store;
  setup.config = &config;
  setup.input_norm = false;
  std::unique_ptr<GatedDeltaNet> layer;
  if (config.experimental_attention_variant == ExperimentalAttentionVariant::Gdn2)
    layer = std::make_unique<GatedDeltaNet2>(setup);
  else
    layer = std::make_unique<GatedDeltaNet>(setup);
  store.materialise(ctx, true);

  const std::string prefix = "self_attention.";
  const std::vector<LogicalTensor> weights = store.logical();
  std::vector<std::string> names = {"x", "cu_seqlens", "d_y", "y", "d_x"};
  for (const LogicalTensor& weight : weights) {
    names.push_back(weight.name.substr(prefix.size()));
    names.push_back("d_" + names.back());
  }
  golden.require_names(names);
  for (const LogicalTensor& weight : weights) {
    const std::string name = weight.name.substr(prefix.size());
    if (golden.shape(name, weight.shape.size()) != weight.shape) {
      golden_error(path, "tensor '" + name + "' has the wrong shape", shape_text(golden.shape(name, weight.shape.size())),
                   "the metadata give " + shape_text(weight.shape));
    }
    from_doubles(ctx, weight.value(), golden.values(name));
  }

  const std::vector<std::int64_t> sizes = golden.shape("x", 2);
  if (sizes[1] != config.hidden_size || golden.shape("d_y", 2) != sizes)
    golden_error(path, "x and d_y must both be [tokens, hidden_size]");
  const auto layout = std::make_shared<const SequenceLayout>(ctx, golden.integers("cu_seqlens"), sizes[0]);
  const Tensor x = make_leaf(golden.tensor(ctx, "x", DType::F32), "x");
  const Tensor y = layer->forward(ctx, x, layout);
  const auto compare = [&](const std::string& name, const Tensor& ours, double limit) {
    report.comparisons.push_back(golden.compare(ctx, name, ours, limit));
    report.comparisons.back().name += suffix;
  };
  compare("y", y, kForwardLimit);
  backward(ctx, {y}, {golden.tensor(ctx, "d_y", DType::F32)});
  compare("d_x", leaf_of(x)->gradient, kGradientLimit);
  for (const LogicalTensor& weight : weights)
    compare("d_" + weight.name.substr(prefix.size()), weight.slice(weight.parameter->main_gradient), kGradientLimit);
}

}  // namespace

void check_layer(Context& ctx, const std::string& path, FileReport& report) {
  const GoldenFile golden(path);
  TransformerConfig config;
  config.num_layers = 1;
  config.hidden_size = golden.size("hidden_size");
  config.linear_num_key_heads = golden.size("linear_num_key_heads");
  config.linear_num_value_heads = golden.size("linear_num_value_heads");
  config.linear_key_head_dim = golden.size("linear_key_head_dim");
  config.linear_value_head_dim = golden.size("linear_value_head_dim");
  config.linear_conv_kernel_dim = golden.size("linear_conv_kernel_dim");
  config.layernorm_epsilon = golden.number("out_norm_eps");
  const bool second = base_name(path).rfind("layer_gdn2_", 0) == 0;
  config.experimental_attention_variant = second ? ExperimentalAttentionVariant::Gdn2 : ExperimentalAttentionVariant::Gdn;
  report.kind = "layer";
  report.dtype = dtype_name(DType::F32);
  report.kernel = rule_kernel_name(ctx, second, {config.linear_num_key_heads, config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim},
                                   DType::F32);
  for (const bool fused : {false, true}) {
    config.gdn_pre_gated_delta_rule_fusion = config.gdn_gated_output_norm_fusion = fused;
    run_layer(ctx, golden, path, config, fused ? ", fused" : "", report);
  }
}

}  // namespace deltron::tools
