// Sums main gradients over data-parallel ranks, bucket by bucket, from the end of the buffer, while backward still runs. Every bucket is
// reduce-scattered: a sharded optimizer needs no more than its own shard; without one the shards are gathered again. The same sums either
// way, so both train to the same bits.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "distributed/communicator.h"
#include "src/autograd/node.h"
#include "src/optim/gradient_shards.h"

namespace deltron {

class GradientReducer {
 public:
  // `buffer`: all main gradients, contiguous. `gather`: every rank gets all sums, not its shard's alone (the rest is then undefined).
  GradientReducer(Context& ctx, std::shared_ptr<Communicator> group, Tensor buffer, std::vector<GradientBucket> buckets, bool gather);

  // Overlap: called with each parameter's leaf, in order. A bucket goes on its way in the last backward of a step as soon as its parameters
  // have all they get; how often each is added to in a backward is learned from the first one.
  void watch(std::size_t parameter, const std::shared_ptr<Leaf>& leaf);
  void begin_backward(Context& ctx, bool last_of_step);
  void end_backward();
  // Once a step, after its last backward: what is not on its way yet, and compute goes on only with all sums.
  void finish(Context& ctx);

  std::int64_t issued_early() const { return issued_early_; }  // buckets of the last step that went before finish()
  const std::vector<GradientBucket>& buckets() const { return buckets_; }
  int rank() const { return group_->rank(); }

 private:
  struct Slot {
    Tensor all, mine;          // staging: [ranks x capacity], [capacity]
    std::ptrdiff_t bucket = -1;  // under way
    Event arrived;
  };
  void accumulated(std::size_t parameter);
  void issue_next(Context& ctx);
  void complete(Context& ctx, Slot& slot);

  std::shared_ptr<Communicator> group_;
  Tensor buffer_;
  std::vector<GradientBucket> buckets_;
  bool gather_;
  std::array<Slot, 2> slots_;
  std::ptrdiff_t next_ = -1;  // bucket to issue next, counting down
  Context* backward_ = nullptr;  // of the step's last backward, while it runs
  bool learned_ = false;
  std::vector<std::int64_t> expected_, seen_;  // additions a parameter in one backward
  std::int64_t issued_early_ = 0, early_ = 0;
};

}  // namespace deltron
