// See measure.h.
#include "tools/memory_table/measure.h"

#include <algorithm>
#include <memory>

#include "src/autograd/offload.h"
#include "src/config/region_table.h"
#include "src/config/validate.h"
#include "src/nn/gdn2.h"
#include "src/train/capacity.h"

namespace deltron::tools {
namespace {

// One layer with its weights; rows run on it one after the other.
class Layer {
 public:
  Layer(const MemorySetting& setting, const TransformerConfig& config, DeviceKind device) : ctx_(options(device)), config_(config) {
    LayerSetup setup;
    setup.store = &store_;
    setup.config = &config_;
    setup.dtype = setting.dtype;
    setup.prefix = "decoder.layers.0.";
    if (setting.second) {
      mixer_ = std::make_unique<GatedDeltaNet2>(setup);
    } else {
      mixer_ = std::make_unique<GatedDeltaNet>(setup);
    }
    store_.materialise(ctx_, true);
    store_.initialise(ctx_, 1);
    layout_ = std::make_shared<const SequenceLayout>(SequenceLayout::dense(ctx_, setting.micro_batch_size, setting.seq_length));
    before_ = activation_bytes();
    ScopeGuard scope(ctx_, 0, "layer_input");
    x_ = make_leaf(Tensor::zeros(ctx_, {setting.tokens(), setting.hidden_size}, setting.dtype, "hidden_states"), "hidden_states");
  }

  MeasuredRow run(const RunConfig& config) {
    DELTRON_CHECK_EQ(ctx_.memory()->stats().saved, 0, "bytes that an earlier row left behind");
    auto& manager = ctx_.slot<OffloadManager>();
    OffloadOptions options;  // every group moves in the first iteration
    if (config.offload.fine_grained_activation_offloading) options.modules = config.offload.offload_modules;
    options.min_offloaded_tensor_size = config.offload.min_offloaded_tensor_size;
    manager.configure(ctx_, options);
    manager.begin_micro_batch(ctx_);
    MeasuredRow row;
    {
      const Tensor y = forward(make_recompute_plan(config.recompute));
      manager.end_forward(ctx_);
      for (const SavedStorage& saved : ctx_.memory()->saved_storages()) {
        if (saved.tag == MemoryTag::Weights) {
          row.kept_weight_bytes += saved.bytes;
          continue;
        }
        row.kept.push_back({std::string(saved.scope.region) + "/" + saved.storage, saved.name, saved.shape, saved.dtype, saved.bytes});
        row.kept_bytes += saved.bytes;
      }
      row.device_bytes = activation_bytes() - before_ - Allocator::rounded(y.storage()->bytes());
      row.host_bytes = ctx_.host_memory()->stats().current;
    }
    manager.reset(ctx_);
    return row;
  }

 private:
  static ContextOptions options(DeviceKind device) {
    ContextOptions options;
    options.device = device;
    return options;
  }
  std::int64_t activation_bytes() const {
    return ctx_.memory()->stats().by_tag[static_cast<std::size_t>(MemoryTag::Activations)];
  }
  // Full recompute wraps whole layers (src/model); of this layer alone it keeps the input.
  Tensor forward(const RecomputePlan& plan) {
    if (!plan.full_uniform && !plan.full_block) return mixer_->forward(ctx_, x_, layout_, plan);
    const auto layer = [this](const std::vector<Tensor>& in) { return std::vector<Tensor>{mixer_->forward(ctx_, in[0], layout_)}; };
    return recompute(ctx_, "full", layer, {x_})[0];
  }

  Context ctx_;
  TransformerConfig config_;
  ParameterStore store_;
  std::unique_ptr<GatedDeltaNet> mixer_;
  LayoutPtr layout_;
  Tensor x_;
  std::int64_t before_ = 0;
};

// The rule of the table of regions that stands between two things that are switched on.
std::string excluding_pair(const RunConfig& config) {
  const std::vector<MemoryModule> active = active_modules(config);
  for (const MemoryModule& a : active) {
    for (const MemoryModule& b : active) {
      const std::optional<int> number = excluding_rule(a, b);
      if (number && a.use <= b.use && &a != &b) {
        return "refused: rule " + std::to_string(*number) + ", " + module_text(a) + " with " + module_text(b);
      }
    }
  }
  return {};
}

// Empty where the configuration is legal.
std::string refusal(const RunConfig& config) {
  const std::string pair = excluding_pair(config);
  if (!pair.empty()) return pair;
  const std::vector<std::string> violations = validate(config);
  for (const std::string& violation : violations) {
    if (violation.rfind("E123", 0) != 0) return "refused: " + violation;
  }
  return violations.empty() ? "" : "not in this version (E123)";
}

// Elements of `all` that `without` lacks; equal storages count one by one.
std::vector<KeptStorage> missing(const std::vector<KeptStorage>& all, std::vector<KeptStorage> without) {
  std::vector<KeptStorage> found;
  for (const KeptStorage& storage : all) {
    const auto same = std::find_if(without.begin(), without.end(), [&](const KeptStorage& other) {
      return other.key == storage.key && other.shape == storage.shape && other.dtype == storage.dtype;
    });
    if (same == without.end()) {
      found.push_back(storage);
    } else {
      without.erase(same);
    }
  }
  return found;
}

}  // namespace

std::string Fusion::name() const { return pre_rule ? (output_norm ? "both" : "pre-rule") : (output_norm ? "output-norm" : "unfused"); }

std::vector<Fusion> all_fusions() { return {{false, false}, {false, true}, {true, false}, {true, true}}; }

std::string MemoryRow::name() const {
  if (recompute == std::vector<std::string>{"gdn_in_proj", "gdn_qkv", "gdn_norm_out"}) return "all three";
  std::string text;
  for (const std::string& region : recompute) text += (text.empty() ? "" : " + ") + region;
  for (const std::string& module : offload) text += (text.empty() ? "" : " + ") + module + " offload";
  return text.empty() ? "baseline" : text;
}

std::vector<MemoryRow> all_rows() {
  return {{{}, {}},
          {{"gdn_in_proj"}, {}},
          {{"gdn_qkv"}, {}},
          {{"gdn_norm_out"}, {}},
          {{"gdn_in_proj", "gdn_qkv", "gdn_norm_out"}, {}},
          {{"gdn_in_proj", "gdn_norm_out"}, {}},
          {{"gdn_qkv_block"}, {}},
          {{"gdn_qkv_block", "gdn_norm_out"}, {}},
          {{"gdn_core_attn"}, {}},
          {{"gdn"}, {}},
          {{"full"}, {}},
          {{}, {"gdn_qkv"}},
          {{"gdn_qkv"}, {"gdn_qkv"}},
          {{}, {"gdn_core_attn"}}};
}

const MeasuredRow* MeasuredTable::row(const std::string& name) const {
  for (const MeasuredRow& one : rows) {
    if (one.row.name() == name) return &one;
  }
  return nullptr;
}

std::vector<KeptStorage> MeasuredTable::freed(const MeasuredRow& row) const { return missing(baseline().kept, row.kept); }
std::vector<KeptStorage> MeasuredTable::added(const MeasuredRow& row) const { return missing(row.kept, baseline().kept); }

std::vector<std::string> MeasuredTable::freed_by(const KeptStorage& storage) const {
  std::vector<std::string> names;
  for (const MeasuredRow& one : rows) {
    if (!one.refused.empty() || one.row.recompute.size() + one.row.offload.size() != 1) continue;
    const std::vector<KeptStorage> gone = freed(one);
    const bool here = std::any_of(gone.begin(), gone.end(), [&](const KeptStorage& other) { return other == storage; });
    if (here) names.push_back(one.row.name());
  }
  return names;
}

RunConfig config_of(const MemorySetting& setting, const Fusion& fusion, const MemoryRow& row) {
  RunConfig config;
  config.model.num_layers = 1;
  config.model.hidden_size = setting.hidden_size;
  config.model.ffn_hidden_size = setting.hidden_size;
  config.model.vocab_size = 256;
  config.model.experimental_attention_variant = setting.second ? ExperimentalAttentionVariant::Gdn2 : ExperimentalAttentionVariant::Gdn;
  config.model.linear_attention_freq.interval = 0;
  config.model.linear_num_key_heads = setting.key_heads;
  config.model.linear_num_value_heads = setting.value_heads;
  config.model.linear_key_head_dim = setting.key_dim;
  config.model.linear_value_head_dim = setting.value_dim;
  config.model.linear_conv_kernel_dim = setting.conv_kernel;
  config.model.gdn_pre_gated_delta_rule_fusion = fusion.pre_rule;
  config.model.gdn_gated_output_norm_fusion = fusion.output_norm;
  if (row.recompute == std::vector<std::string>{"full"}) {
    config.recompute.recompute_granularity = RecomputeGranularity::Full;
    config.recompute.recompute_method = RecomputeMethod::Uniform;
    config.recompute.recompute_num_layers = 1;
  } else if (!row.recompute.empty()) {
    config.recompute.recompute_granularity = RecomputeGranularity::Selective;
    config.recompute.recompute_modules = row.recompute;
  }
  config.offload.fine_grained_activation_offloading = !row.offload.empty();
  config.offload.offload_modules = row.offload;
  if (!row.offload.empty()) config.offload.min_offloaded_tensor_size = setting.min_offloaded_tensor_size;
  config.training.bf16 = setting.dtype == DType::BF16;
  config.training.seq_length = setting.seq_length;
  config.training.micro_batch_size = config.training.global_batch_size = setting.micro_batch_size;
  config.training.train_iters = 1;
  config.optimizer.lr = 1e-3;
  return config;
}

void check_setting(const MemorySetting& setting) {
  const RunConfig config = config_of(setting, {}, {});
  validate_or_throw(config);
  require_plannable(config);
}

MeasuredTable measure(const MemorySetting& setting, const Fusion& fusion, DeviceKind device) {
  return measure_rows(setting, fusion, device, all_rows());
}

MeasuredTable measure_rows(const MemorySetting& setting, const Fusion& fusion, DeviceKind device, const std::vector<MemoryRow>& rows) {
  check_setting(setting);
  MeasuredTable table;
  table.setting = setting;
  table.fusion = fusion;
  table.refused = refusal(config_of(setting, fusion, {}));
  if (!table.refused.empty()) return table;
  Layer layer(setting, config_of(setting, fusion, {}).model, device);
  for (const MemoryRow& row : rows) {
    const RunConfig config = config_of(setting, fusion, row);
    MeasuredRow measured;
    const std::string refused = refusal(config);
    if (refused.empty()) measured = layer.run(config);
    measured.row = row;
    measured.refused = refused;
    table.rows.push_back(std::move(measured));
  }
  return table;
}

}  // namespace deltron::tools
