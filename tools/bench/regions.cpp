// See regions.h.
#include "tools/bench/regions.h"

#include <algorithm>
#include <ostream>

#include "src/config/region_table.h"
#include "src/config/validate.h"
#include "src/train/plan.h"
#include "tools/bench/columns.h"

namespace deltron::tools {
namespace {

constexpr const char* kOffloaded = "gdn_qkv";

RecomputeConfig recompute_of(const RegionRow& row) {
  RecomputeConfig recompute;
  if (row.modules.empty()) return recompute;
  recompute.recompute_granularity = RecomputeGranularity::Selective;
  recompute.recompute_modules = row.modules;
  return recompute;
}

OffloadConfig offload_of(const RegionRow& row, std::int64_t smallest) {
  OffloadConfig offload;
  if (row.fraction <= 0) return offload;
  offload.fine_grained_activation_offloading = true;
  offload.offload_modules = {kOffloaded};
  offload.activation_offload_fraction = row.fraction;
  offload.min_offloaded_tensor_size = smallest;
  return offload;
}

RunConfig with_row(RunConfig config, const RegionRow& row, std::int64_t smallest) {
  config.recompute = recompute_of(row);
  config.offload = offload_of(row, smallest);
  return config;
}

double layers_with(const RunConfig& config, const std::string& module) {
  const MemoryModule* known = find_module(ModuleUse::Recompute, module);
  const std::int64_t linear = linear_layer_count(config.model), all = config.model.num_layers;
  const LayerNeed needs = known == nullptr ? LayerNeed::Any : known->needs;
  return static_cast<double>(needs == LayerNeed::Linear ? linear : needs == LayerNeed::Softmax ? all - linear : all);
}

double micro_batches(const RunConfig& config) {
  return static_cast<double>(config.training.global_batch_size / config.training.micro_batch_size);
}

double replay_seconds(const RunConfig& config, const RegionRow& row, const Ceilings& ceilings) {
  const KernelSizes sizes = kernel_sizes(config);
  const auto item = static_cast<double>(dtype_size(model_dtype(config)));
  double total = 0;
  for (const std::string& module : row.modules) total += layers_with(config, module) * seconds(replay_work(sizes, module, item), ceilings);
  return micro_batches(config) * total;
}

}  // namespace

std::vector<RegionRow> region_rows(const RunConfig& config, const RegionOptions& options) {
  std::vector<RegionRow> rows = {{"none"}};
  for (const std::string& module : module_words(ModuleUse::Recompute)) rows.push_back({module, {module}});
  rows.push_back({"gdn_in_proj + gdn_qkv + gdn_norm_out", {"gdn_in_proj", "gdn_qkv", "gdn_norm_out"}});
  for (const double fraction : options.fractions) rows.push_back({"offload " + std::string(kOffloaded) + " " + shortest(fraction), {}, fraction});
  for (RegionRow& row : rows) {
    const std::vector<std::string> faults = validate(with_row(config, row, options.min_offloaded_tensor_size));
    if (!faults.empty()) row.refused = faults.front();
  }
  return rows;
}

double offload_seconds(double groups, double group_bytes, double layer_forward, double layer_backward, const HostLink& link) {
  return groups * (std::max(0.0, group_bytes / link.out - layer_forward) + std::max(0.0, group_bytes / link.in - layer_backward));
}

int best_offload_row(const std::vector<RegionRow>& rows) {
  constexpr double kMostLonger = 1.02;
  int best = -1;
  const double base = rows.front().run.seconds.median;
  const auto fits = [&](const RegionRow& row) { return row.run.seconds.median <= kMostLonger * base; };
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const RegionRow& row = rows[i];
    if (row.fraction <= 0 || !row.refused.empty()) continue;
    const RegionRow* other = best < 0 ? nullptr : &rows[static_cast<std::size_t>(best)];
    const bool better = other == nullptr || (fits(row) && (!fits(*other) || row.fraction > other->fraction)) ||
                        (!fits(row) && !fits(*other) && row.run.seconds.median < other->run.seconds.median);
    if (better) best = static_cast<int>(i);
  }
  return best;
}

RegionTable measure_regions(const RunConfig& asked, const RegionOptions& options) {
  RunConfig config = asked;
  config.recompute = RecomputeConfig{};
  config.offload = OffloadConfig{};
  RegionTable table;
  table.rows = region_rows(config, options);
  table.layers = config.model.num_layers;
  StepBench bench(config);
  table.device = device_text(bench.ctx());
  table.ceilings = measure_ceilings(bench.ctx());
  table.link = measure_host_link(bench.ctx());
  for (RegionRow& row : table.rows) {
    if (!row.refused.empty()) continue;
    const RunConfig own = with_row(config, row, options.min_offloaded_tensor_size);
    bench.use(own.recompute, own.offload);
    row.run = bench.run(options.warm_up, options.steps);
    row.planned_peak = make_plan(own).memory.peak;
    // Two of three products of a step belong to backward.
    const double base = table.rows.front().run.seconds.median;
    const double layer = base / micro_batches(config) / static_cast<double>(table.layers);
    row.predicted_seconds = base + replay_seconds(own, row, table.ceilings);
    const auto groups = static_cast<double>(row.run.offload.groups_moved);
    if (groups > 0) row.predicted_seconds += offload_seconds(groups, static_cast<double>(row.run.offload.bytes_out) / groups, layer / 3, 2 * layer / 3, table.link);
  }
  table.best_offload = best_offload_row(table.rows);
  return table;
}

nlohmann::ordered_json to_json(const RegionTable& table) {
  nlohmann::ordered_json json;
  json["device"] = table.device;
  json["ceilings"] = {{"copy_bytes_per_second", table.ceilings.copy}, {"flops_per_second", table.ceilings.products}};
  json["host_link"] = {{"out_bytes_per_second", table.link.out}, {"in_bytes_per_second", table.link.in}};
  json["rows"] = nlohmann::ordered_json::array();
  const StepRun& base = table.rows.front().run;
  for (const RegionRow& row : table.rows) {
    nlohmann::ordered_json one;
    one["name"] = row.name;
    if (!row.refused.empty()) {
      one["refused"] = row.refused;
      json["rows"].push_back(one);
      continue;
    }
    one["recompute_modules"] = row.modules;
    one["offload_fraction"] = row.fraction;
    one["step_ms"] = spread_json(row.run.seconds, 1e3);
    one["predicted_ms"] = 1e3 * row.predicted_seconds;
    one["measured_over_predicted"] = row.run.seconds.median / row.predicted_seconds;
    one["saved_bytes"] = row.run.saved_bytes;
    one["saved_bytes_less"] = base.saved_bytes - row.run.saved_bytes;
    one["peak_bytes"] = row.run.peak_bytes;
    one["peak_bytes_less"] = base.peak_bytes - row.run.peak_bytes;
    one["planned_peak_bytes"] = row.planned_peak;
    one["bytes_offloaded"] = row.run.offload.bytes_out;
    one["groups_offloaded"] = row.run.offload.groups_moved;
    one["host_peak_bytes"] = row.run.host_peak_bytes;
    json["rows"].push_back(one);
  }
  if (table.best_offload >= 0) json["best_offload"] = table.rows[static_cast<std::size_t>(table.best_offload)].name;
  return json;
}

void write_table(std::ostream& out, const RegionTable& table) {
  out << table.device << "; ceilings: copy " << bytes_text(static_cast<std::int64_t>(table.ceilings.copy)) << "/s, products " << human_count(table.ceilings.products)
      << "FLOP/s, to host memory " << bytes_text(static_cast<std::int64_t>(table.link.out)) << "/s, from it " << bytes_text(static_cast<std::int64_t>(table.link.in)) << "/s\n";
  out << left("region", 38) << "   step ms  (p10 to p90)          predicted   ratio        saved        less         peak        less   planned peak\n";
  const StepRun& base = table.rows.front().run;
  for (const RegionRow& row : table.rows) {
    if (!row.refused.empty()) continue;
    const Spread& t = row.run.seconds;
    out << left(row.name, 38) << right(fixed(1e3 * t.median, 1), 10) << "  " << left("(" + fixed(1e3 * t.p10, 1) + " to " + fixed(1e3 * t.p90, 1) + ")", 20)
        << right(fixed(1e3 * row.predicted_seconds, 1), 11) << right(fixed(t.median / row.predicted_seconds, 3), 8) << right(bytes_text(row.run.saved_bytes), 13)
        << right(base.saved_bytes < row.run.saved_bytes ? "-" : bytes_text(base.saved_bytes - row.run.saved_bytes), 12) << right(bytes_text(row.run.peak_bytes), 13)
        << right(base.peak_bytes < row.run.peak_bytes ? "-" : bytes_text(base.peak_bytes - row.run.peak_bytes), 12) << right(bytes_text(row.planned_peak), 15);
    if (row.fraction > 0) {
      out << ", " << (row.run.offload.groups_moved > 0 ? bytes_text(row.run.offload.bytes_out) + " in " + std::to_string(row.run.offload.groups_moved) + " groups moved"
                                                       : "nothing moved");
    }
    out << "\n";
  }
  for (const RegionRow& row : table.rows) {
    if (!row.refused.empty()) out << "left out: " << row.name << ": " << row.refused << "\n";
  }
  if (table.best_offload >= 0) {
    out << "best offload: " << table.rows[static_cast<std::size_t>(table.best_offload)].name << " (the largest fraction at most 2 % slower than none, else the fastest)\n";
  }
}

}  // namespace deltron::tools
