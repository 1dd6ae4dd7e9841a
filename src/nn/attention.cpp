// See attention.h.
#include "src/nn/attention.h"

#include "distributed/functions_tensor_parallel.h"
#include "src/autograd/offload.h"
#include "src/autograd/recompute.h"
#include "src/base/rng.h"
#include "src/tensor/ops.h"

namespace deltron {
namespace {

// Whole key-value heads; where there are fewer than tensor-parallel ranks, neighbours hold the same one.
ParameterSection key_value_section(const LayerSetup& setup, const char* name, std::int64_t groups, std::int64_t dim) {
  if (groups >= setup.tensor_ranks) return setup.section(name, groups * dim);
  DELTRON_CHECK(setup.tensor_ranks % groups == 0, groups, " key-value heads for ", setup.tensor_ranks, " ranks");
  const auto holders = static_cast<int>(setup.tensor_ranks / groups);
  return {name, dim, {.dim = 0, .begin = setup.tensor_rank / holders * dim, .whole = groups * dim,
                      .first_holder = setup.tensor_rank % holders == 0, .holders = holders}};
}

}  // namespace

SelfAttention::SelfAttention(const LayerSetup& setup, std::uint64_t seed)
    : layer_(setup.layer),
      seed_(seed),
      heads_(setup.config->num_attention_heads / (setup.tensor_ranks * setup.context_ranks)),
      groups_(std::max<std::int64_t>(1, query_groups(*setup.config) / (setup.tensor_ranks * setup.context_ranks))),
      dim_(head_dim(*setup.config)),
      first_head_((setup.tensor_rank * setup.context_ranks + setup.context_rank) * heads_),
      gated_(setup.config->attention_output_gate),
      qk_norm_(setup.config->qk_layernorm),
      rotary_dim_(::deltron::rotary_dim(*setup.config)),
      rotary_base_(setup.config->rotary_base),
      drop_probability_(setup.config->attention_dropout),
      // With dropout all passes take the own kernels, those without it (evaluation) too.
      backend_(drop_probability_ > 0 && setup.config->attention_backend == AttentionBackend::Auto ? AttentionBackend::Local
                                                                                                  : setup.config->attention_backend),
      norm_options_(setup.norm()) {
  const TransformerConfig& config = *setup.config;
  const std::int64_t h = config.hidden_size, heads = config.num_attention_heads, groups = query_groups(config), q = heads * dim_;
  DELTRON_CHECK(heads % (setup.tensor_ranks * setup.context_ranks) == 0, heads, " heads for ", setup.tensor_ranks, " x ", setup.context_ranks,
                " ranks");
  const std::string attention = setup.prefix + "self_attention.";
  if (setup.input_norm) input_norm_ = setup.declare_norm("input_layernorm.weight");
  std::vector<ParameterSection> sections = {setup.section("query", q)};
  if (gated_) sections.push_back(setup.section("gate", q));
  for (const char* name : {"key", "value"}) sections.push_back(key_value_section(setup, name, groups, dim_));
  std::int64_t rows = 0;
  for (const ParameterSection& section : sections) {
    sections_.push_back({section.rows, section.rows / dim_});
    rows += section.rows;
  }
  qkv_weight_ = setup.store->declare({.name = attention + "linear_qkv.weight", .shape = {rows, h}, .dtype = setup.dtype,
                                      .sections = sections, .init = InitKind::Normal,
                                      .init_scale = config.init_method_std});
  if (qk_norm_) {
    const auto declare = [&](const char* name) {
      return setup.store->declare({.name = attention + name, .shape = {dim_}, .dtype = setup.dtype, .init = InitKind::Constant,
                                   .init_scale = norm_options_.zero_centered ? 0.0 : 1.0, .weight_decay = false,
                                   .partial = {.tensor_parallel = true}});
    };
    q_norm_ = declare("q_layernorm.weight");
    k_norm_ = declare("k_layernorm.weight");
  }
  proj_weight_ = setup.store->declare({.name = attention + "linear_proj.weight", .shape = {h, q / setup.tensor_ranks}, .dtype = setup.dtype,
                                       .cut = setup.cut(1, q), .init = InitKind::Normal, .init_scale = setup.output_std()});
}

namespace {

// Rows [begin, begin + rows) of buffer [capacity,G,d] become `rows`; the buffer grows by doubling.
void append(Context& ctx, Tensor& buffer, std::int64_t begin, const Tensor& rows, const char* name) {
  const std::int64_t needed = begin + rows.size(0);
  if (!buffer.defined() || buffer.size(0) < needed) {
    constexpr std::int64_t kFirst = 64;
    std::int64_t capacity = buffer.defined() ? buffer.size(0) : kFirst;
    while (capacity < needed) capacity *= 2;
    Tensor grown = Tensor::empty(ctx, {capacity, rows.size(1), rows.size(2)}, rows.dtype(), name);
    if (begin > 0) convert(ctx, buffer.slice(0, 0, begin), grown.slice(0, 0, begin));
    buffer = grown;
  }
  convert(ctx, contiguous(ctx, rows, name), buffer.slice(0, begin, rows.size(0)));
}

}  // namespace

Tensor SelfAttention::forward(Context& ctx, const Tensor& x, const LayoutPtr& layout, bool training, bool recompute_core) const {
  return run(ctx, x, layout, training, recompute_core, nullptr);
}

Tensor SelfAttention::forward_cached(Context& ctx, const Tensor& x, const LayoutPtr& layout, LayerCache& cache) const {
  return run(ctx, x, layout, false, false, &cache);
}

Tensor SelfAttention::core(Context& ctx, const std::vector<Tensor>& qkv, const LayoutPtr& layout, bool training, LayerCache* cache) const {
  ScopeGuard scope(ctx, layer_, "core_attn");
  HeadPrepOptions prep;
  prep.norm = qk_norm_;
  prep.norm_options = norm_options_;
  prep.rotary_dim = rotary_dim_;
  prep.rotary_base = rotary_base_;
  const Tensor none;
  const Tensor queries = prepare_heads(ctx, qkv[0], qk_norm_ ? q_norm_->value : none, layout, prep, "attn.q");
  const Tensor keys = prepare_heads(ctx, qkv[1], qk_norm_ ? k_norm_->value : none, layout, prep, "attn.k");
  AttentionOptions options;
  options.drop_probability = training ? drop_probability_ : 0;
  options.first_head = first_head_;
  options.site = {seed_, static_cast<std::uint32_t>(layer_), kRngSiteAttentionDropout};
  options.backend = cache == nullptr ? backend_ : AttentionBackend::Local;  // generation: a new length every time, so no plans
  if (cache == nullptr) return attention(ctx, queries, keys, qkv[2], layout, options, "attn.core");
  append(ctx, cache->keys, cache->past, keys, "keys");
  append(ctx, cache->values, cache->past, qkv[2], "values");
  const std::int64_t context = cache->past + layout->tokens();
  // A whole prompt runs through the blocked kernel; later tokens look back into the cache.
  if (cache->past == 0) return attention(ctx, queries, keys, qkv[2], layout, options, "attn.core");
  return attention_over_cache(ctx, queries, cache->keys.slice(0, 0, context), cache->values.slice(0, 0, context), "attn.core");
}

Tensor SelfAttention::run(Context& ctx, const Tensor& x, const LayoutPtr& layout, bool training, bool recompute_core, LayerCache* cache) const {
  const std::int64_t q = heads_ * dim_, kv = groups_ * dim_;
  ScopeGuard whole(ctx, layer_, "attn_qkv");
  const LayoutPtr documents = whole_layout(layout);
  Tensor projected = project_input(ctx, x, input_norm_, norm_options_, {qkv_weight_}, {"attn.qkv"})[0];
  projected = rows_to_heads(ctx, projected, sections_, layout, "attn.qkv exchange");
  // Group core_attn ends where the projection has its last forward reader: behind the output gate, which is a part of it.
  projected = offload_group_start(ctx, projected, "core_attn");
  std::vector<Piece> pieces = {{q, heads_}};
  if (gated_) pieces.push_back({q, 0});
  pieces.push_back({kv, groups_});
  pieces.push_back({kv, groups_});
  const std::vector<Tensor> parts = split(ctx, projected, pieces, "attn.qkv.split");
  const std::vector<Tensor> qkv = {parts[0], parts[parts.size() - 2], parts.back()};
  const auto region = [this, &ctx, documents, training, cache](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{core(ctx, in, documents, training, cache)};
  };
  Tensor mixed;
  std::vector<Tensor> releases = {projected};
  {
    OffloadCapture capture(ctx, "core_attn");
    mixed = recompute_core ? recompute(ctx, "core_attn", region, qkv)[0] : core(ctx, qkv, documents, training, cache);
    const bool exchanged = layout->to_rows().defined();
    if (gated_ || exchanged) releases.push_back(mixed);  // else the projection reads it: group attn_proj frees it
    ScopeGuard scope(ctx, "attn_proj");
    if (gated_) mixed = sigmoid_gate(ctx, mixed, parts[1], "attn.gate");
    mixed = heads_to_rows(ctx, mixed, layout, "attn.core exchange");
  }
  mixed = offload_group_commit(ctx, mixed, "core_attn", releases);
  ScopeGuard scope(ctx, "attn_proj");
  mixed = offload_group_start(ctx, mixed, "attn_proj");
  Tensor y;
  {
    OffloadCapture capture(ctx, "attn_proj");
    y = linear(ctx, mixed, proj_weight_->value, "attn.proj", tensor_parallel_exchange(ctx));
  }
  return offload_group_commit(ctx, y, "attn_proj", {mixed});
}

}  // namespace deltron
