// After a sharded update: every rank has updated its shards of the weights and gets the others' (ZeRO-1). In the weights' own types, bucket by
// bucket, one exchange under way while the next bucket is packed.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "distributed/communicator.h"
#include "src/optim/gradient_shards.h"

namespace deltron {

class WeightGather {
 public:
  // `weights`: of every parameter that the buckets name, contiguous [rows, ...]. They stay where they are.
  WeightGather(Context& ctx, std::shared_ptr<Communicator> group, const std::vector<GradientBucket>& buckets, std::vector<Tensor> weights);
  void run(Context& ctx);

 private:
  struct Part {
    Tensor weight;           // rows of one parameter, flat
    std::int64_t offset = 0;  // bytes, in its shard of the staging
  };
  struct Bucket {
    std::vector<std::vector<Part>> shards;
    std::int64_t capacity = 0;  // bytes of a shard, a multiple of 16
  };
  struct Slot {
    Tensor all, mine;  // bytes as int32
    const Bucket* bucket = nullptr;
    Event arrived;
  };
  void complete(Context& ctx, Slot& slot);

  std::shared_ptr<Communicator> group_;
  std::vector<Bucket> buckets_;
  std::array<Slot, 2> slots_;
};

}  // namespace deltron
