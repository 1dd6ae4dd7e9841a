// See communicator.h.
#include "distributed/communicator.h"

#include "src/base/check.h"
#include "src/tensor/ops.h"
#include "src/tensor/profile.h"

namespace deltron {
namespace {

void check_tensor(const Tensor& tensor, const char* what) {
  DELTRON_CHECK(tensor.defined() && tensor.is_contiguous(), what, ": a tensor that is exchanged is contiguous");
}

class Observed {
 public:
  Observed(CollectiveObserver* observer, const Collective& call, const std::string& label, int ranks) : observer_(observer) {
    if (observer_ != nullptr) observer_->begin(call, label, ranks);
  }
  ~Observed() {
    if (observer_ != nullptr) observer_->end();
  }
  Observed(const Observed&) = delete;
  Observed& operator=(const Observed&) = delete;

 private:
  CollectiveObserver* observer_;
};

Event complete_now() {
  Event event;
  event.signal();
  return event;
}

}  // namespace

const char* collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::AllReduce: return "all-reduce";
    case CollectiveKind::AllGather: return "all-gather";
    case CollectiveKind::ReduceScatter: return "reduce-scatter";
    case CollectiveKind::AllToAll: return "all-to-all";
    case CollectiveKind::Broadcast: return "broadcast";
    case CollectiveKind::Send: return "send";
    case CollectiveKind::Receive: return "receive";
    case CollectiveKind::Barrier: return "barrier";
  }
  return "";
}

double bytes_on_link(const Collective& call, int ranks) {
  const double part = static_cast<double>(call.count) * static_cast<double>(dtype_size(call.dtype)), others = ranks - 1;
  switch (call.kind) {
    case CollectiveKind::AllReduce: return 2 * part * others / ranks;
    case CollectiveKind::AllGather:
    case CollectiveKind::ReduceScatter:
    case CollectiveKind::AllToAll: return part * others;
    case CollectiveKind::Broadcast: return part * others / ranks;
    case CollectiveKind::Send: return part;
    case CollectiveKind::Receive:
    case CollectiveKind::Barrier: return 0;
  }
  return 0;
}

Event Communicator::run(Context& ctx, Collective call, const Tensor& from, const Tensor& to, bool later) {
  if (from.defined()) {
    check_tensor(from, call.what);
    call.dtype = from.dtype();
    call.send = from.data();
  }
  if (to.defined()) {
    check_tensor(to, call.what);
    DELTRON_CHECK(!from.defined() || from.dtype() == to.dtype(), call.what, ": ", dtype_name(from.dtype()), " into ", dtype_name(to.dtype()));
    call.dtype = to.dtype();
    call.receive = to.data();
    to.storage()->bump_version();
  }
  if (size_ == 1 && !calls_alone()) {
    if (from.defined() && to.defined() && !from.same_view(to)) convert(ctx, from.view({from.count()}), to.view({to.count()}));
    return complete_now();
  }
  const auto known = [&] {
    for (auto& [what, totals] : totals_) {
      if (what == call.what && totals.kind == call.kind) return &totals;
    }
    totals_.push_back({call.what, {call.kind}});
    return &totals_.back().second;
  }();
  ++known->calls;
  known->link_bytes += bytes_on_link(call, size_);
  if (ctx.is_meta()) return complete_now();  // nothing to move
  const ProfileRange range(ctx, RangeKind::Communication, call.what);
  if (later) later_ = call;
  const Observed observed(later ? nullptr : observer_.get(), call, label_, size_);
  return start(ctx, call, later);
}

std::shared_ptr<Communicator> Communicator::split(Context& ctx, int colour, const std::string& label) {
  const Observed observed(observer_.get(), {.kind = CollectiveKind::Barrier, .what = "split"}, label_, size_);
  std::shared_ptr<Communicator> group = split_group(ctx, colour, label);
  group->set_observer(observer_);
  const std::lock_guard<std::mutex> lock(children_mutex_);
  children_.push_back(group);
  return group;
}

std::vector<std::shared_ptr<Communicator>> Communicator::children() {
  std::vector<std::shared_ptr<Communicator>> alive;
  const std::lock_guard<std::mutex> lock(children_mutex_);
  for (const std::weak_ptr<Communicator>& child : children_) {
    if (std::shared_ptr<Communicator> group = child.lock()) alive.push_back(std::move(group));
  }
  return alive;
}

void Communicator::abort_all(const std::string& reason) {
  abort(reason);
  for (const std::shared_ptr<Communicator>& child : children()) child->abort_all(reason);
}

void Communicator::check_all() {
  check();
  for (const std::shared_ptr<Communicator>& child : children()) child->check_all();
}

void Communicator::all_reduce(Context& ctx, const Tensor& data, const char* what, ReduceOp op) {
  run(ctx, {.kind = CollectiveKind::AllReduce, .op = op, .count = data.count(), .what = what}, data, data, false);
}

void Communicator::all_gather(Context& ctx, const Tensor& mine, const Tensor& all, const char* what) {
  DELTRON_CHECK_EQ(all.count(), mine.count() * size_, what);
  run(ctx, {.kind = CollectiveKind::AllGather, .count = mine.count(), .what = what}, mine, all, false);
}

void Communicator::reduce_scatter(Context& ctx, const Tensor& all, const Tensor& mine, const char* what) {
  DELTRON_CHECK_EQ(all.count(), mine.count() * size_, what);
  run(ctx, {.kind = CollectiveKind::ReduceScatter, .count = mine.count(), .what = what}, all, mine, false);
}

void Communicator::all_to_all(Context& ctx, const Tensor& send, const Tensor& receive, const char* what) {
  DELTRON_CHECK(send.count() == receive.count() && send.count() % size_ == 0, what, ": ", send.count(), " elements for ", size_, " ranks, ",
                receive.count(), " back");
  run(ctx, {.kind = CollectiveKind::AllToAll, .count = send.count() / size_, .what = what}, send, receive, false);
}

void Communicator::broadcast(Context& ctx, const Tensor& data, int root, const char* what) {
  DELTRON_CHECK(root >= 0 && root < size_, what, ": root ", root);
  run(ctx, {.kind = CollectiveKind::Broadcast, .count = data.count(), .peer = root, .what = what}, data, data, false);
}

void Communicator::send(Context& ctx, const Tensor& data, int to, const char* what) {
  DELTRON_CHECK(to >= 0 && to < size_ && to != rank_, what, ": to rank ", to);
  run(ctx, {.kind = CollectiveKind::Send, .count = data.count(), .peer = to, .what = what}, data, {}, false);
}

void Communicator::receive(Context& ctx, const Tensor& data, int from, const char* what) {
  DELTRON_CHECK(from >= 0 && from < size_ && from != rank_, what, ": from rank ", from);
  run(ctx, {.kind = CollectiveKind::Receive, .count = data.count(), .peer = from, .what = what}, {}, data, false);
}

void Communicator::barrier(Context& ctx, const char* what) { run(ctx, {.kind = CollectiveKind::Barrier, .what = what}, {}, {}, false); }

Event Communicator::all_reduce_later(Context& ctx, const Tensor& data, const char* what, ReduceOp op) {
  return run(ctx, {.kind = CollectiveKind::AllReduce, .op = op, .count = data.count(), .what = what}, data, data, true);
}

Event Communicator::all_gather_later(Context& ctx, const Tensor& mine, const Tensor& all, const char* what) {
  DELTRON_CHECK_EQ(all.count(), mine.count() * size_, what);
  return run(ctx, {.kind = CollectiveKind::AllGather, .count = mine.count(), .what = what}, mine, all, true);
}

Event Communicator::reduce_scatter_later(Context& ctx, const Tensor& all, const Tensor& mine, const char* what) {
  DELTRON_CHECK_EQ(all.count(), mine.count() * size_, what);
  return run(ctx, {.kind = CollectiveKind::ReduceScatter, .count = mine.count(), .what = what}, all, mine, true);
}

void Communicator::finish(Context& ctx, const Event& event) {
  {
    const Observed observed(observer_.get(), later_, label_, size_);
    ctx.compute_waits(event);
  }
  check_health();
}

}  // namespace deltron
