// See hybrid_language_model.h.
#include "src/model/hybrid_language_model.h"

#include <algorithm>

#include "distributed/functions_tensor_parallel.h"
#include "src/autograd/offload.h"
#include "src/base/signals.h"

namespace deltron {

HybridLanguageModel::HybridLanguageModel(Context& ctx, const TransformerConfig& config, DType dtype, bool trainable, std::uint64_t seed)
    : config_(config), dtype_(dtype) {
  LayerSetup setup;
  setup.store = &store_;
  setup.config = &config_;
  setup.dtype = dtype;
  setup.set_ranks(parallel_state(ctx));
  const auto declare_vocabulary = [&](const char* name) {
    const VocabularyShare share = vocabulary_share(config.vocab_size, setup.tensor_ranks, setup.tensor_rank);
    const ParameterCut cut = setup.tensor_ranks == 1 ? ParameterCut{} : ParameterCut{.dim = 0, .begin = share.first, .whole = config.vocab_size};
    return store_.declare({.name = name, .shape = {share.count, config.hidden_size}, .dtype = dtype, .cut = cut, .init = InitKind::Normal,
                           .init_scale = config.init_method_std});
  };
  embedding_ = declare_vocabulary("embedding.word_embeddings.weight");
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    poll_stop("building the model");
    setup.layer = static_cast<int>(layer);
    setup.prefix = "decoder.layers." + std::to_string(layer) + ".";
    blocks_.emplace_back(setup, seed);
  }
  setup.prefix = "decoder.";
  final_norm_ = setup.declare_norm("final_layernorm.weight");
  output_ = embedding_;
  if (config.untie_embeddings_and_output_weights) output_ = declare_vocabulary("output_layer.weight");
  store_.materialise(ctx, trainable);
}

Tensor HybridLanguageModel::logits(Context& ctx, const Tensor& ids, const LayoutPtr& layout, const ForwardMode& mode) const {
  Tensor hidden;
  {
    ScopeGuard scope(ctx, -1, "embedding");
    hidden = embedding(ctx, ids, embedding_->value, dtype_, "embedding", vocabulary_part(ctx, config_.vocab_size));
    hidden = sum_into_residual(ctx, hidden, "embedding");
  }
  hidden = decoder(ctx, hidden, layout, mode);
  ctx.slot<OffloadManager>().end_forward(ctx);
  ScopeGuard scope(ctx, -1, "output");
  const NormOptions norm{config_.layernorm_zero_centered_gamma, config_.layernorm_epsilon};
  return norm_linear(ctx, hidden, final_norm_->value, norm, {output_->value}, {"logits"}, tensor_parallel_exchange(ctx))[0];
}

Tensor HybridLanguageModel::token_losses(Context& ctx, const Tensor& logits, const Tensor& labels) const {
  return ::deltron::token_losses(ctx, logits, labels, vocabulary_part(ctx, config_.vocab_size));
}

namespace {

// Full recompute keeps the input of a block of layers and nothing inside it; offload module layer_input keeps it on the host.
Tensor replayed_block(Context& ctx, const Region& region, const Tensor& x) {
  const Tensor input = offload_group_start(ctx, x, "layer_input");
  Tensor out;
  {
    OffloadCapture capture(ctx, "layer_input");
    out = recompute(ctx, "full", region, {input})[0];
  }
  return offload_group_commit(ctx, out, "layer_input", {input});
}

}  // namespace

Tensor HybridLanguageModel::decoder(Context& ctx, const Tensor& x, const LayoutPtr& layout, const ForwardMode& mode) const {
  const RecomputePlan& plan = mode.recompute;
  const auto layers = static_cast<std::int64_t>(blocks_.size());
  Tensor hidden = x;
  for (std::int64_t begin = 0; begin < layers;) {
    if (ctx.is_meta()) poll_stop("planning");  // a run stops between steps
    const bool replayed = plan.full_uniform || (plan.full_block && begin < plan.full_layers);
    const std::int64_t end = plan.full_uniform ? std::min(layers, begin + plan.full_layers) : begin + 1;
    const auto region = [this, &ctx, layout, mode, begin, end](const std::vector<Tensor>& in) {
      Tensor inner = in[0];
      for (std::int64_t layer = begin; layer < end; ++layer) {
        inner = blocks_[static_cast<std::size_t>(layer)].forward(ctx, inner, layout, mode);
      }
      return std::vector<Tensor>{inner};
    };
    ScopeGuard scope(ctx, static_cast<int>(begin), "layer_input");
    hidden = replayed ? replayed_block(ctx, region, hidden) : region({hidden})[0];
    begin = end;
  }
  return hidden;
}

Tensor HybridLanguageModel::next_logits(Context& ctx, const std::vector<std::int32_t>& ids, DecodeCache& cache) const {
  DELTRON_CHECK(!ids.empty(), "no token to go on from");
  DELTRON_CHECK(parallel_state(ctx).grid.tp * parallel_state(ctx).grid.cp == 1, "generation runs on one rank");
  GradModeGuard no_graph(ctx, false);
  const auto count = static_cast<std::int64_t>(ids.size());
  std::vector<std::int32_t> positions(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) positions[i] = static_cast<std::int32_t>(cache.tokens) + static_cast<std::int32_t>(i);
  const auto layout = std::make_shared<const SequenceLayout>(ctx, std::vector<std::int64_t>{0, count}, count, positions);
  const LayoutPtr conv_layout =
      std::make_shared<const SequenceLayout>(SequenceLayout::dense(ctx, 1, count + config_.linear_conv_kernel_dim - 1));
  const Tensor device_ids = Tensor::empty(ctx, {count}, DType::I32, "ids", MemoryTag::Data);
  copy_from_host(ctx, device_ids, ids.data());
  cache.layers.resize(blocks_.size());
  Tensor hidden = embedding(ctx, device_ids, embedding_->value, dtype_, "embedding");
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    cache.layers[i].past = cache.tokens;
    cache.layers[i].conv_layout = conv_layout;
    hidden = blocks_[i].forward_cached(ctx, hidden, layout, cache.layers[i]);
  }
  cache.tokens += count;
  const NormOptions norm{config_.layernorm_zero_centered_gamma, config_.layernorm_epsilon};
  return norm_linear(ctx, hidden.slice(0, count - 1, 1), final_norm_->value, norm, {output_->value}, {"logits"})[0];
}

Tensor HybridLanguageModel::loss(Context& ctx, const Tensor& ids, const Tensor& labels, const LayoutPtr& layout, const ForwardMode& mode,
                                 double scale) const {
  const Tensor scores = logits(ctx, ids, layout, mode);
  ScopeGuard scope(ctx, -1, "output");
  return cross_entropy(ctx, scores, labels, scale, vocabulary_part(ctx, config_.vocab_size));
}

}  // namespace deltron
