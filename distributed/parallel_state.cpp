// See parallel_state.h.
#include "distributed/parallel_state.h"

#include "distributed/meta_communicator.h"
#include "src/base/check.h"

namespace deltron {

void set_parallel_state(Context& ctx, std::shared_ptr<Communicator> world, const RankGrid& grid, bool sequence_parallel) {
  DELTRON_CHECK_EQ(world->size(), grid.size(), "ranks of the job, of the grid");
  ParallelState& state = parallel_state(ctx);
  state = {};
  state.grid = grid;
  state.rank = world->rank();
  state.sequence_parallel = sequence_parallel;
  const int tp = state.tp_rank(), cp = state.cp_rank(), dp = state.dp_rank();
  // Every rank takes part in every split, in this order.
  if (grid.tp > 1) state.tensor = world->split(ctx, cp + grid.cp * dp, "tp");
  if (grid.cp > 1) state.context = world->split(ctx, tp + grid.tp * dp, "cp");
  if (grid.dp > 1) state.data = world->split(ctx, tp + grid.tp * cp, "dp");
  if (grid.cp * grid.dp > 1) state.data_context = world->split(ctx, tp, "dp-cp");
  state.world = std::move(world);
}

void set_meta_parallel_state(Context& ctx, const RankGrid& grid, bool sequence_parallel) {
  DELTRON_CHECK(ctx.is_meta(), "one rank stands for all only on meta");
  ParallelState& state = parallel_state(ctx);
  state = ParallelState{};
  state.grid = grid;
  state.sequence_parallel = sequence_parallel;
  const auto group = [](int size, const char* label) { return size > 1 ? make_meta_group(0, size, label) : nullptr; };
  state.tensor = group(grid.tp, "tp");
  state.context = group(grid.cp, "cp");
  state.data = group(grid.dp, "dp");
  state.data_context = group(grid.cp * grid.dp, "dp-cp");
  state.world = make_meta_group(0, grid.size(), "world");
}

}  // namespace deltron
