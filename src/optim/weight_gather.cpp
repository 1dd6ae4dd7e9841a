// See weight_gather.h.
#include "src/optim/weight_gather.h"

#include <algorithm>

#include "src/tensor/ops.h"

namespace deltron {
namespace {

constexpr std::int64_t kAlignment = 16;  // bytes between parts: kernels copy 16 at once

// `part` of a staging of int32, from a byte on, as elements like those of `like`.
Tensor part_like(const Tensor& staging, std::int64_t byte, const Tensor& like) {
  const auto item = static_cast<std::int64_t>(dtype_size(like.dtype()));
  const std::int64_t begin = staging.offset() * static_cast<std::int64_t>(dtype_size(staging.dtype())) + byte;
  return Tensor(staging.storage(), like.dtype(), {like.count()}, {1}, begin / item);
}

}  // namespace

WeightGather::WeightGather(Context& ctx, std::shared_ptr<Communicator> group, const std::vector<GradientBucket>& buckets, std::vector<Tensor> weights)
    : group_(std::move(group)) {
  std::int64_t most = 0;
  for (const GradientBucket& cut : buckets) {
    Bucket bucket;
    for (const GradientShard& shard : cut.shards) {
      std::vector<Part> parts;
      std::int64_t at = 0;
      for (const ShardPiece& piece : shard.pieces) {
        const Tensor& weight = weights[piece.parameter];
        const Tensor rows = weight.slice(0, piece.row_begin, piece.rows);
        parts.push_back({rows.view({rows.count()}), at});
        at += (rows.bytes() + kAlignment - 1) / kAlignment * kAlignment;
      }
      bucket.capacity = std::max(bucket.capacity, at);
      bucket.shards.push_back(std::move(parts));
    }
    most = std::max(most, bucket.capacity);
    buckets_.push_back(std::move(bucket));
  }
  const std::int64_t words = most / static_cast<std::int64_t>(dtype_size(DType::I32));
  for (Slot& slot : slots_) {
    if (&slot != &slots_[0] && buckets_.size() < 2) continue;
    slot.all = Tensor::zeros(ctx, {group_->size() * words}, DType::I32, "gathered weights", MemoryTag::Communication);
    slot.mine = Tensor::zeros(ctx, {words}, DType::I32, "updated weights", MemoryTag::Communication);
  }
}

void WeightGather::run(Context& ctx) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    Slot& slot = slots_[i % slots_.size()];
    complete(ctx, slot);
    for (const Part& part : bucket.shards[static_cast<std::size_t>(group_->rank())]) convert(ctx, part.weight, part_like(slot.mine, part.offset, part.weight));
    const std::int64_t words = bucket.capacity / static_cast<std::int64_t>(dtype_size(DType::I32));
    slot.arrived = group_->all_gather_later(ctx, slot.mine.slice(0, 0, words), slot.all.slice(0, 0, group_->size() * words), "updated weights");
    slot.bucket = &bucket;
  }
  const std::size_t older = buckets_.size() % slots_.size();
  complete(ctx, slots_[older]);
  complete(ctx, slots_[1 - older]);
}

void WeightGather::complete(Context& ctx, Slot& slot) {
  if (slot.bucket == nullptr) return;
  group_->finish(ctx, slot.arrived);
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (rank == group_->rank()) continue;
    for (const Part& part : slot.bucket->shards[static_cast<std::size_t>(rank)]) {
      convert(ctx, part_like(slot.all, rank * slot.bucket->capacity + part.offset, part.weight), part.weight);
    }
  }
  slot.bucket = nullptr;
}

}  // namespace deltron
