// See layers.h.
#include "tools/bench/layers.h"

#include <algorithm>
#include <ostream>

#include "src/autograd/engine.h"
#include "src/autograd/offload_manager.h"
#include "src/base/signals.h"
#include "src/config/region_table.h"
#include "src/nn/attention.h"
#include "src/nn/gdn2.h"
#include "src/nn/mlp.h"
#include "src/train/session.h"
#include "tools/bench/columns.h"
#include "tools/bench/kernel_case.h"
#include "tools/bench/regions.h"

namespace deltron::tools {
namespace {

// Layers of one kind behind each other, without residual connections.
class Stack {
 public:
  Stack(Context& ctx, const RunConfig& config, LayerKind kind, std::int64_t count) : model_(config.model) {
    LayerSetup setup;
    setup.store = &store_;
    setup.config = &model_;
    setup.dtype = model_dtype(config);
    for (std::int64_t layer = 0; layer < count; ++layer) {
      setup.layer = static_cast<int>(layer);
      setup.prefix = "decoder.layers." + std::to_string(layer) + ".";
      if (kind == LayerKind::Gdn) linear_.push_back(std::make_unique<GatedDeltaNet>(setup));
      if (kind == LayerKind::Gdn2) linear_.push_back(std::make_unique<GatedDeltaNet2>(setup));
      if (kind == LayerKind::Softmax) softmax_.push_back(std::make_unique<SelfAttention>(setup, 1));
      if (kind == LayerKind::Mlp) mlp_.push_back(std::make_unique<Mlp>(setup));
    }
    store_.materialise(ctx, true);
    store_.initialise(ctx, 1);
  }

  Tensor forward(Context& ctx, const Tensor& x, const LayoutPtr& layout, const RecomputePlan& plan) const {
    Tensor hidden = x;
    for (const auto& mixer : linear_) hidden = mixer->forward(ctx, hidden, layout, plan);
    for (const auto& mixer : softmax_) hidden = mixer->forward(ctx, hidden, layout, true, plan.core_attn);
    for (const auto& mlp : mlp_) {
      const Region region = [&mlp, &ctx](const std::vector<Tensor>& in) { return std::vector<Tensor>{mlp->forward(ctx, in[0])}; };
      hidden = plan.mlp ? recompute(ctx, "mlp", region, {hidden})[0] : region({hidden})[0];
    }
    return hidden;
  }

 private:
  TransformerConfig model_;
  ParameterStore store_;
  std::vector<std::unique_ptr<GatedDeltaNet>> linear_;
  std::vector<std::unique_ptr<SelfAttention>> softmax_;
  std::vector<std::unique_ptr<Mlp>> mlp_;
};

// Recompute modules that one layer of this kind may have.
std::vector<std::string> modules_of(LayerKind kind) {
  std::vector<std::string> words;
  for (const std::string& word : module_words(ModuleUse::Recompute)) {
    const LayerNeed needs = find_module(ModuleUse::Recompute, word)->needs;
    const bool linear = kind == LayerKind::Gdn || kind == LayerKind::Gdn2;
    if ((linear && needs == LayerNeed::Linear) || (kind == LayerKind::Softmax && needs == LayerNeed::Softmax) || (kind == LayerKind::Mlp && word == "mlp")) {
      words.push_back(word);
    }
  }
  return words;
}

Spread divided(Spread spread, double by) {
  for (double* value : {&spread.median, &spread.p10, &spread.p90, &spread.fastest, &spread.slowest}) *value /= by;
  return spread;
}

// Everything that the rows of one kind share.
class LayerBench {
 public:
  LayerBench(Context& ctx, const RunConfig& config, LayerKind kind, const LayerOptions& options)
      : ctx_(ctx), options_(options), stack_(ctx, config, kind, options.stacked), memory_(ctx) {
    const std::int64_t T = config.training.micro_batch_size * config.training.seq_length, h = config.model.hidden_size;
    layout_ = std::make_shared<const SequenceLayout>(SequenceLayout::dense(ctx, config.training.micro_batch_size, config.training.seq_length));
    x_ = memory_.random({T, h}, model_dtype(config));
    dy_ = memory_.random({T, h}, model_dtype(config));
  }

  LayerRow row(const std::string& variant, const RecomputePlan& plan) {
    poll_stop("the benchmark");
    LayerRow row;
    row.variant = variant;
    const auto count = static_cast<double>(options_.stacked);
    for (int i = 0; i < 3; ++i) run(plan);
    const std::int64_t before = ctx_.memory()->stats().current;
    ctx_.memory()->reset_peak();
    std::vector<TimeMark> starts, middles, ends;
    for (std::int64_t i = 0; i < options_.repeats; ++i) {
      starts.push_back(ctx_.compute_mark());
      run(plan, &middles);
      ends.push_back(ctx_.compute_mark());
    }
    ctx_.synchronize();
    std::vector<double> forward, both;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      forward.push_back(middles[i].seconds_after(starts[i]));
      both.push_back(ends[i].seconds_after(starts[i]));
    }
    row.forward = divided(spread_of(std::move(forward)), count);
    row.both = divided(spread_of(std::move(both)), count);
    row.saved_bytes = ctx_.memory()->stats().peak_saved / options_.stacked;
    row.peak_bytes = (ctx_.memory()->stats().peak - before) / options_.stacked;
    ctx_.start_recording();
    {
      const ProfileRange whole(ctx_, RangeKind::MicroBatch, "layers");
      run(plan);
    }
    row.regions = self_times(ctx_.stop_recording()->ranges());
    for (RangeTotal& total : row.regions) total.seconds /= count;
    return row;
  }

  const OffloadStats& offload() { return ctx_.slot<OffloadManager>().last_iteration(); }

 private:
  void run(const RecomputePlan& plan, std::vector<TimeMark>* middles = nullptr) {
    OffloadManager& manager = ctx_.slot<OffloadManager>();
    manager.begin_micro_batch(ctx_);
    Tensor y;
    {
      const ProfileRange range(ctx_, RangeKind::Forward, "forward");
      y = stack_.forward(ctx_, make_leaf(x_.detached(), "x"), layout_, plan);
    }
    manager.end_forward(ctx_);
    if (middles != nullptr) middles->push_back(ctx_.compute_mark());
    {
      const ProfileRange range(ctx_, RangeKind::Backward, "backward");
      backward(ctx_, {y}, {dy_});
    }
    manager.reset(ctx_);
  }

  Context& ctx_;
  LayerOptions options_;
  Stack stack_;
  CaseMemory memory_;
  LayoutPtr layout_;
  Tensor x_, dy_;
};

}  // namespace

const char* layer_kind_name(LayerKind kind) {
  switch (kind) {
    case LayerKind::Gdn: return "gdn";
    case LayerKind::Gdn2: return "gdn2";
    case LayerKind::Softmax: return "softmax";
    case LayerKind::Mlp: return "mlp";
  }
  return "";
}

std::vector<LayerKind> layer_kinds(const RunConfig& config) {
  std::vector<LayerKind> kinds;
  if (linear_layer_count(config.model) > 0) kinds = {LayerKind::Gdn, LayerKind::Gdn2};
  if (linear_layer_count(config.model) < config.model.num_layers) kinds.push_back(LayerKind::Softmax);
  kinds.push_back(LayerKind::Mlp);
  return kinds;
}

LayerTable measure_layer(Context& ctx, const RunConfig& config, LayerKind kind, const LayerOptions& options, const Ceilings& ceilings, const HostLink& link) {
  LayerTable table;
  table.kind = kind;
  table.stacked = options.stacked;
  KernelSizes sizes = kernel_sizes(config);
  sizes.second_rule = kind == LayerKind::Gdn2;
  const auto item = static_cast<double>(dtype_size(model_dtype(config)));
  {
    LayerBench bench(ctx, config, kind, options);
    table.rows.push_back(bench.row("plain", {}));
    table.rows.back().predicted_seconds = table.rows.back().both.median;
    const Spread plain_forward = table.rows.front().forward, plain_both = table.rows.front().both;
    for (const std::string& module : modules_of(kind)) {
      RecomputeConfig recompute;
      recompute.recompute_granularity = RecomputeGranularity::Selective;
      recompute.recompute_modules = {module};
      LayerRow row = bench.row(module, make_recompute_plan(recompute));
      row.predicted_seconds = plain_both.median + seconds(replay_work(sizes, module, item), ceilings);
      table.rows.push_back(std::move(row));
    }
    const bool fused = config.model.gdn_pre_gated_delta_rule_fusion;  // then there is no convolution input to move
    if ((kind == LayerKind::Gdn || kind == LayerKind::Gdn2) && !fused && options.stacked > 1) {
      OffloadOptions offload;
      offload.modules = {"gdn_qkv"};
      offload.min_offloaded_tensor_size = options.min_offloaded_tensor_size;
      ctx.slot<OffloadManager>().configure(ctx, offload);
      LayerRow row = bench.row("offload gdn_qkv", {});
      const auto groups = static_cast<double>(bench.offload().groups_moved);
      const double bytes = groups > 0 ? static_cast<double>(bench.offload().bytes_out) / groups : 0;
      row.predicted_seconds = plain_both.median + offload_seconds(groups, bytes, plain_forward.median, plain_both.median - plain_forward.median, link) /
                                                      static_cast<double>(options.stacked);
      ctx.slot<OffloadManager>().configure(ctx, {});
      table.rows.push_back(std::move(row));
    }
  }
  ctx.memory()->release_cached();
  ctx.host_memory()->release_cached();
  return table;
}

nlohmann::ordered_json to_json(const LayerTable& table) {
  nlohmann::ordered_json json;
  json["kind"] = layer_kind_name(table.kind);
  json["stacked"] = table.stacked;
  json["rows"] = nlohmann::ordered_json::array();
  for (const LayerRow& row : table.rows) {
    nlohmann::ordered_json one;
    one["variant"] = row.variant;
    one["forward_ms"] = spread_json(row.forward, 1e3);
    one["forward_backward_ms"] = spread_json(row.both, 1e3);
    one["predicted_ms"] = 1e3 * row.predicted_seconds;
    one["measured_over_predicted"] = row.both.median / row.predicted_seconds;
    one["saved_bytes"] = row.saved_bytes;
    one["peak_bytes"] = row.peak_bytes;
    one["regions"] = nlohmann::ordered_json::array();
    for (const RangeTotal& total : row.regions) {
      one["regions"].push_back({{"phase", total.phase}, {"name", total.name}, {"ms", 1e3 * total.seconds}, {"copy", total.copy}});
    }
    json["rows"].push_back(one);
  }
  return json;
}

void write_table(std::ostream& out, const LayerTable& table) {
  out << "\nlayer " << layer_kind_name(table.kind) << ", of " << table.stacked << " behind each other\n"
      << left("variant", 20) << "  forward ms   both ms  (p10 to p90)          predicted   ratio        saved         peak\n";
  for (const LayerRow& row : table.rows) {
    const Spread& t = row.both;
    out << left(row.variant, 20) << right(fixed(1e3 * row.forward.median, 3), 12) << right(fixed(1e3 * t.median, 3), 10) << "  "
        << left("(" + fixed(1e3 * t.p10, 3) + " to " + fixed(1e3 * t.p90, 3) + ")", 20) << right(fixed(1e3 * row.predicted_seconds, 3), 11)
        << right(fixed(t.median / row.predicted_seconds, 3), 8) << right(bytes_text(row.saved_bytes), 13) << right(bytes_text(row.peak_bytes), 13) << "\n";
  }
  out << "where the plain layer's time goes:\n";
  double whole = 0;
  for (const RangeTotal& total : table.rows.front().regions) whole += total.copy ? 0 : total.seconds;
  for (const RangeTotal& total : table.rows.front().regions) {
    if (total.seconds < 0.001 * whole) continue;
    out << "  " << left(total.phase + ", " + total.name, 32) << right(fixed(1e3 * total.seconds, 3), 9) << " ms" << right(fixed(100 * total.seconds / whole, 1), 7) << " %\n";
  }
}

}  // namespace deltron::tools
