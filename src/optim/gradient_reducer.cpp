// See gradient_reducer.h.
#include "src/optim/gradient_reducer.h"

#include <algorithm>

#include "src/tensor/ops.h"

namespace deltron {

GradientReducer::GradientReducer(Context& ctx, std::shared_ptr<Communicator> group, Tensor buffer, std::vector<GradientBucket> buckets, bool gather)
    : group_(std::move(group)), buffer_(std::move(buffer)), buckets_(std::move(buckets)), gather_(gather) {
  std::int64_t capacity = 0;
  for (const GradientBucket& bucket : buckets_) capacity = std::max(capacity, bucket.capacity());
  for (Slot& slot : slots_) {
    if (&slot != &slots_[0] && buckets_.size() < 2) continue;  // one bucket needs no second place
    slot.all = Tensor::zeros(ctx, {group_->size() * capacity}, buffer_.dtype(), "gradient bucket", MemoryTag::Communication);
    slot.mine = Tensor::zeros(ctx, {capacity}, buffer_.dtype(), "gradient shard", MemoryTag::Communication);
  }
  next_ = static_cast<std::ptrdiff_t>(buckets_.size()) - 1;
}

void GradientReducer::watch(std::size_t parameter, const std::shared_ptr<Leaf>& leaf) {
  expected_.resize(std::max(expected_.size(), parameter + 1), 0);
  seen_.resize(expected_.size(), 0);
  leaf->on_accumulated = [this, parameter] { accumulated(parameter); };
}

void GradientReducer::begin_backward(Context& ctx, bool last_of_step) {
  std::fill(seen_.begin(), seen_.end(), 0);
  backward_ = last_of_step && learned_ ? &ctx : nullptr;
}

void GradientReducer::end_backward() {
  backward_ = nullptr;
  if (!learned_) expected_ = seen_;
  learned_ = !expected_.empty();
}

void GradientReducer::accumulated(std::size_t parameter) {
  ++seen_[parameter];
  if (backward_ == nullptr) return;
  const auto whole = [this](std::size_t p) { return seen_[p] >= expected_[p]; };
  while (next_ >= 0) {
    const std::vector<std::size_t>& wanted = buckets_[static_cast<std::size_t>(next_)].parameters;
    if (!std::all_of(wanted.begin(), wanted.end(), whole)) return;
    issue_next(*backward_);
    ++early_;
  }
}

void GradientReducer::issue_next(Context& ctx) {
  const GradientBucket& bucket = buckets_[static_cast<std::size_t>(next_)];
  Slot& slot = slots_[static_cast<std::size_t>(next_) % (buckets_.size() < 2 ? 1 : slots_.size())];
  complete(ctx, slot);
  const std::int64_t capacity = bucket.capacity();
  const Tensor all = slot.all.slice(0, 0, group_->size() * capacity), mine = slot.mine.slice(0, 0, capacity);
  for (int rank = 0; rank < group_->size(); ++rank) {
    const GradientShard& shard = bucket.shards[static_cast<std::size_t>(rank)];
    const std::int64_t count = shard.end - shard.begin;
    if (count > 0) convert(ctx, buffer_.slice(0, shard.begin, count), all.slice(0, rank * capacity, count));
  }
  slot.arrived = group_->reduce_scatter_later(ctx, all, mine, "gradients");
  if (gather_) slot.arrived = group_->all_gather_later(ctx, mine, all, "summed gradients");
  slot.bucket = next_--;
}

void GradientReducer::complete(Context& ctx, Slot& slot) {
  if (slot.bucket < 0) return;
  group_->finish(ctx, slot.arrived);
  const GradientBucket& bucket = buckets_[static_cast<std::size_t>(slot.bucket)];
  const std::int64_t capacity = bucket.capacity();
  for (int rank = 0; rank < group_->size(); ++rank) {
    const GradientShard& shard = bucket.shards[static_cast<std::size_t>(rank)];
    const std::int64_t count = shard.end - shard.begin;
    if (count == 0 || (!gather_ && rank != group_->rank())) continue;
    const Tensor& from = gather_ ? slot.all : slot.mine;
    convert(ctx, from.slice(0, gather_ ? rank * capacity : 0, count), buffer_.slice(0, shard.begin, count));
  }
  slot.bucket = -1;
}

void GradientReducer::finish(Context& ctx) {
  while (next_ >= 0) issue_next(ctx);
  const bool second_is_older = slots_[1].bucket > slots_[0].bucket;
  complete(ctx, slots_[second_is_older ? 1 : 0]);
  complete(ctx, slots_[second_is_older ? 0 : 1]);
  next_ = static_cast<std::ptrdiff_t>(buckets_.size()) - 1;
  issued_early_ = early_;
  early_ = 0;
}

}  // namespace deltron
