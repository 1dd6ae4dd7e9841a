// What exchanges between ranks add to a plan: bytes on the links a step, by group, as the meta groups counted them while the real step ran, and
// from given speeds the time that they take and how a job scales. Predictions: nothing is measured here.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/train/session.h"

namespace deltron {

struct PlannedExchange {
  std::string group;           // "tp"
  std::string what;            // "reduce-scatter gradients"
  int ranks = 1;
  bool between_nodes = false;  // the group reaches beyond plan.ranks_per_node
  bool overlapped = false;     // runs beside backward
  double calls = 0;            // a step
  double bytes = 0;            // that this rank sends, a step
};

struct PlannedStep {
  double compute = 0;    // seconds
  double exposed = 0;    // of exchanges that compute waits for
  double hidden = 0;     // of exchanges beside backward
  double total() const { return compute + exposed; }
};

// Exchanges of a step of `micro_batches`. `run_step` runs it with so many on the session's meta context.
std::vector<PlannedExchange> planned_exchanges(Session& session, std::int64_t micro_batches, const std::function<void(std::int64_t)>& run_step);
// `flops`: of this rank, a step. All zero where plan.achieved_tflops is.
PlannedStep planned_step(const RunConfig& config, const std::vector<PlannedExchange>& exchanges, double flops, std::int64_t micro_batches);

// Weak scaling (the global batch grows with the ranks) and strong (it stays) from the job of `ranks` to one of `most`, doubling.
struct ScalingRow {
  int ranks = 0;
  bool strong = false;
  double step_seconds = 0, tokens_per_second = 0;
  double efficiency = 0;  // tokens a second and rank, beside the first row's
};
std::vector<ScalingRow> planned_scaling(const RunConfig& config, int ranks, int most);
std::string to_text(const std::vector<ScalingRow>& rows);

}  // namespace deltron
