// Which part of the job this rank is: the groups of the rank grid, in a slot of the context. Rank order is tp, cp, dp, the fastest first.
// A group that is null is a group of one, so that a single rank needs no set-up at all.
#pragma once

#include <memory>

#include "distributed/communicator.h"

namespace deltron {

struct RankGrid {
  int tp = 1, cp = 1, dp = 1;
  int size() const { return tp * cp * dp; }
  int tp_rank(int rank) const { return rank % tp; }
  int cp_rank(int rank) const { return rank / tp % cp; }
  int dp_rank(int rank) const { return rank / (tp * cp); }
};

struct ParallelState {
  RankGrid grid;
  int rank = 0;  // in the job
  bool sequence_parallel = false;
  std::shared_ptr<Communicator> world;
  std::shared_ptr<Communicator> tensor;        // ranks that hold the other parts of this rank's layers
  std::shared_ptr<Communicator> context;       // ranks that hold the other parts of the same sequences
  std::shared_ptr<Communicator> data;          // ranks with the same part of the model and other samples
  std::shared_ptr<Communicator> data_context;  // data x context: over which every parameter's gradient is summed (dp slow, cp fast)

  int tp() const { return grid.tp; }
  int cp() const { return grid.cp; }
  int dp() const { return grid.dp; }
  int tp_rank() const { return grid.tp_rank(rank); }
  int cp_rank() const { return grid.cp_rank(rank); }
  int dp_rank() const { return grid.dp_rank(rank); }
};

inline ParallelState& parallel_state(Context& ctx) { return ctx.slot<ParallelState>(); }

// Splits `world`, whose size is the grid's, and puts the groups into the context. Every rank calls it.
void set_parallel_state(Context& ctx, std::shared_ptr<Communicator> world, const RankGrid& grid, bool sequence_parallel);
// The same for rank 0 alone of such a job, on meta: groups of the right sizes that move nothing and count.
void set_meta_parallel_state(Context& ctx, const RankGrid& grid, bool sequence_parallel);

}  // namespace deltron
