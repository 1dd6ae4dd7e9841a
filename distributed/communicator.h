// One group of ranks that exchange tensors: the interface of all back ends (threads of one process, Gloo, NCCL, and one representative rank
// on meta). Collectives are called by every rank of the group, in one order, with equal element counts and types; a tensor is contiguous
// and lies on the context's device. Knows nothing of what the ranks compute.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/tensor/context.h"
#include "src/tensor/tensor.h"

namespace deltron {

enum class CollectiveKind { AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Send, Receive, Barrier };
const char* collective_name(CollectiveKind kind);  // "all-reduce"

// Sums are formed in fp32 (fp64 and integers in their own type), in the order of the ranks where the back end is ours (threads, Gloo), and
// rounded once: the same bits on every rank and in every run. Max takes the larger value.
enum class ReduceOp { Sum, Max };

// One call, as back ends and the watchdog see it.
struct Collective {
  CollectiveKind kind = CollectiveKind::Barrier;
  ReduceOp op = ReduceOp::Sum;
  DType dtype = DType::F32;
  const void* send = nullptr;    // null on meta and for barriers
  void* receive = nullptr;       // may be `send` for AllReduce and Broadcast
  std::int64_t count = 0;        // elements of one rank's part: what each rank sends (AllReduce, AllGather, Broadcast, Send), gets
                                 // (ReduceScatter, Receive), or exchanges with each other rank (AllToAll)
  int peer = 0;                  // root or other rank, as a rank of the group
  const char* what = "";         // a literal: "gdn.in_proj cp exchange"; errors and profiles name it
};
// Bytes that this rank puts on a link to others, as the usual ring (or pairwise) algorithms move them: 2(n-1)/n of the data for an
// all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all.
double bytes_on_link(const Collective& call, int ranks);

// What a group has been asked for, by `what`; plans and benchmarks read it.
struct CollectiveTotals {
  CollectiveKind kind = CollectiveKind::Barrier;
  std::int64_t calls = 0;
  double link_bytes = 0;  // bytes_on_link, summed
};

// Is told when this rank's thread enters and leaves a call in which it may wait for others. From that thread.
class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;
  virtual void begin(const Collective& call, const std::string& label, int ranks) = 0;
  virtual void end() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& label() const { return label_; }  // "tp", "cp", "dp", "world"
  virtual const char* backend() const = 0;              // "threads", "gloo", "nccl", "meta"

  // Ordered with compute: begins after what compute was given, and what compute is given next sees the result. On the CPU the calling
  // thread waits; on cuda the host does not. In a group of one they are copies.
  void all_reduce(Context& ctx, const Tensor& data, const char* what, ReduceOp op = ReduceOp::Sum);  // in place
  void all_gather(Context& ctx, const Tensor& mine, const Tensor& all, const char* what);      // all: size x mine, by rank
  void reduce_scatter(Context& ctx, const Tensor& all, const Tensor& mine, const char* what);  // sum; rank r gets part r
  // Part r of `send` goes to rank r; part r of `receive` comes from rank r. All parts are of one size.
  void all_to_all(Context& ctx, const Tensor& send, const Tensor& receive, const char* what);
  void broadcast(Context& ctx, const Tensor& data, int root, const char* what);
  void send(Context& ctx, const Tensor& data, int to, const char* what);
  void receive(Context& ctx, const Tensor& data, int from, const char* what);
  void barrier(Context& ctx, const char* what);

  // Beside compute: begins after what compute was given so far, in the order of the calls on this group. The host goes on; the result is
  // there once the event is complete (ctx.compute_waits(event)). The tensors must outlive the event. A fault is thrown where the event is
  // waited for, through finish(); an aborted group completes its events.
  Event all_reduce_later(Context& ctx, const Tensor& data, const char* what, ReduceOp op = ReduceOp::Sum);
  Event all_gather_later(Context& ctx, const Tensor& mine, const Tensor& all, const char* what);
  Event reduce_scatter_later(Context& ctx, const Tensor& all, const Tensor& mine, const char* what);
  // Compute goes on only after the event; throws the fault that ended the group meanwhile.
  void finish(Context& ctx, const Event& event);

  // Throws Error(CommunicationFailed) if the group has ended or its back end knows of a fault. From any thread: watchdogs ask.
  void check() { check_health(); }

  // Ends the group on this rank: calls under way and later ones throw Error(CommunicationFailed) with `reason`. From any thread.
  virtual void abort(const std::string& reason) = 0;
  // The same for this group and all that were split from it.
  void abort_all(const std::string& reason);
  void check_all();  // check() of this group and of those

  // A group of those ranks that give the same colour, ordered by this group's ranks. All ranks call it, in one order.
  std::shared_ptr<Communicator> split(Context& ctx, int colour, const std::string& label);

  // Also of groups that are split from this one later.
  void set_observer(std::shared_ptr<CollectiveObserver> observer) { observer_ = std::move(observer); }

  const std::vector<std::pair<std::string, CollectiveTotals>>& totals() const { return totals_; }  // in order of first call
  void clear_totals() { totals_.clear(); }

 protected:
  Communicator(int rank, int size, std::string label) : rank_(rank), size_(size), label_(std::move(label)) {}
  // Runs one collective of a group of two ranks or more. `later`: on a stream beside compute. The event is complete with the result;
  // without `later` compute has already been made to wait for it.
  virtual Event start(Context& ctx, const Collective& call, bool later) = 0;
  virtual std::shared_ptr<Communicator> split_group(Context& ctx, int colour, const std::string& label) = 0;
  virtual void check_health() {}  // throws what ended the group
  virtual bool calls_alone() const { return false; }  // true: a group of one makes its back end's calls, too (tests)

 private:
  std::vector<std::shared_ptr<Communicator>> children();
  Event run(Context& ctx, Collective call, const Tensor& from, const Tensor& to, bool later);

  int rank_, size_;
  std::string label_;
  std::vector<std::pair<std::string, CollectiveTotals>> totals_;
  std::shared_ptr<CollectiveObserver> observer_;
  Collective later_;  // the newest call beside compute
  std::mutex children_mutex_;
  std::vector<std::weak_ptr<Communicator>> children_;
};

}  // namespace deltron
