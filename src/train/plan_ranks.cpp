// See plan_ranks.h.
#include "src/train/plan_ranks.h"

#include <algorithm>

#include "src/base/human.h"
#include "src/train/plan.h"

namespace deltron {
namespace {

struct Counted {
  std::string group, what;
  int ranks;
  double calls, bytes;
};

std::vector<Counted> count_exchanges(Context& ctx, const std::function<void()>& run) {
  const ParallelState& place = parallel_state(ctx);
  const std::shared_ptr<Communicator> groups[] = {place.tensor, place.context, place.data, place.data_context, place.world};
  for (const auto& group : groups) {
    if (group) group->clear_totals();
  }
  run();
  std::vector<Counted> counted;
  for (const auto& group : groups) {
    if (!group) continue;
    for (const auto& [what, totals] : group->totals()) {
      counted.push_back({group->label(), std::string(collective_name(totals.kind)) + " " + what, group->size(), static_cast<double>(totals.calls), totals.link_bytes});
    }
  }
  return counted;
}

}  // namespace

std::vector<PlannedExchange> planned_exchanges(Session& session, std::int64_t micro_batches, const std::function<void(std::int64_t)>& run_step) {
  const ParallelState& place = parallel_state(*session.ctx);
  const std::vector<Counted> one = count_exchanges(*session.ctx, [&] { run_step(1); });
  const std::vector<Counted> two = micro_batches > 1 ? count_exchanges(*session.ctx, [&] { run_step(2); }) : one;
  std::vector<PlannedExchange> exchanges;
  for (std::size_t i = 0; i < one.size(); ++i) {
    PlannedExchange exchange;
    exchange.group = one[i].group;
    exchange.what = one[i].what;
    exchange.ranks = one[i].ranks;
    // How far apart the ranks of the group lie: tp is the fastest, then cp.
    const int reach = exchange.group == "tp" ? place.tp() : exchange.group == "cp" ? place.tp() * place.cp() : place.grid.size();
    exchange.between_nodes = reach > session.config.plan.ranks_per_node;
    exchange.overlapped = session.config.parallel.overlap_grad_reduce && exchange.what.find("gradients") != std::string::npos && exchange.group == "dp-cp";
    const auto more = static_cast<double>(micro_batches - 1);
    exchange.calls = one[i].calls + more * (two[i].calls - one[i].calls);
    exchange.bytes = one[i].bytes + more * (two[i].bytes - one[i].bytes);
    exchanges.push_back(exchange);
  }
  return exchanges;
}

PlannedStep planned_step(const RunConfig& config, const std::vector<PlannedExchange>& exchanges, double flops, std::int64_t micro_batches) {
  PlannedStep step;
  const PlanConfig& speeds = config.plan;
  if (speeds.achieved_tflops <= 0) return step;
  step.compute = flops / (1e12 * speeds.achieved_tflops);
  double beside = 0;
  for (const PlannedExchange& exchange : exchanges) {
    const double speed = exchange.between_nodes ? speeds.network_gb_s : speeds.link_gb_s;
    const double seconds = speed > 0 ? exchange.bytes / (1e9 * speed) : 0;
    (exchange.overlapped ? beside : step.exposed) += seconds;
  }
  // Two thirds of a micro-batch are backward, and the step's last one hides what travels beside it.
  const double room = step.compute / static_cast<double>(micro_batches) * 2 / 3;
  step.hidden = std::min(beside, room);
  step.exposed += beside - step.hidden;
  return step;
}

std::vector<ScalingRow> planned_scaling(const RunConfig& config, int ranks, int most) {
  std::vector<ScalingRow> rows;
  const std::int64_t first_batch = config.training.global_batch_size;
  for (const bool strong : {false, true}) {
    double per_rank = 0;
    for (int count = ranks; count <= most; count *= 2) {
      RunConfig grown = config;
      if (!strong) grown.training.global_batch_size = first_batch * (count / ranks);
      const std::int64_t data_ranks = count / (config.parallel.tensor_model_parallel_size * config.parallel.context_parallel_size);
      if (grown.training.global_batch_size % (data_ranks * config.training.micro_batch_size) != 0) break;  // no whole micro-batches any more
      const Plan plan = make_plan(grown, count);
      ScalingRow row;
      row.ranks = count;
      row.strong = strong;
      row.step_seconds = plan.step.total();
      row.tokens_per_second = row.step_seconds > 0 ? static_cast<double>(plan.tokens_per_step) / row.step_seconds : 0;
      if (per_rank == 0) per_rank = row.tokens_per_second / count;
      row.efficiency = per_rank > 0 ? row.tokens_per_second / count / per_rank : 0;
      rows.push_back(row);
    }
  }
  return rows;
}

std::string to_text(const std::vector<ScalingRow>& rows) {
  std::string text;
  for (const bool strong : {false, true}) {
    const auto of_kind = [strong](const ScalingRow& row) { return row.strong == strong; };
    if (std::count_if(rows.begin(), rows.end(), of_kind) < 2) continue;  // nothing to compare
    text += strong ? "strong scaling, the global batch stays (predicted):\n" : "weak scaling, the global batch grows with the ranks (predicted):\n";
    for (const ScalingRow& row : rows) {
      if (row.strong != strong) continue;
      std::string ranks = std::to_string(row.ranks), seconds = fixed(1000 * row.step_seconds, 1);
      ranks.insert(0, ranks.size() < 7 ? 7 - ranks.size() : 0, ' ');
      seconds.insert(0, seconds.size() < 11 ? 11 - seconds.size() : 0, ' ');
      text += ranks + " ranks " + seconds + " ms a step   " + thousands(static_cast<std::int64_t>(row.tokens_per_second)) + " tok/s   " +
              fixed(100 * row.efficiency, 1) + " %\n";
    }
  }
  return text;
}

}  // namespace deltron
