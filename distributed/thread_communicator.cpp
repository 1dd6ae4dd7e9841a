// See thread_communicator.h. Every call is a meeting: all ranks lay down what they send, each forms what it gets, all leave together.
#include "distributed/thread_communicator.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "distributed/ordered_reduce.h"
#include "src/base/check.h"

namespace deltron {
namespace {

class Meeting {
 public:
  Meeting(int size, std::string label, double timeout_seconds) : size_(size), label_(std::move(label)), timeout_(timeout_seconds) {
    calls_.resize(static_cast<std::size_t>(size));
    here_.resize(static_cast<std::size_t>(size));
  }

  // Lays `call` down and waits for all; `read` then runs while every rank's call lies there; comes back when all have read.
  void meet(int rank, const Collective& call, const std::function<void(const std::vector<Collective>&)>& read) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      fail_if_aborted();
      calls_[static_cast<std::size_t>(rank)] = call;
      arrive(lock, rank, call);
    }
    std::exception_ptr fault;
    try {
      check_agreement(call);
      read(calls_);
    } catch (...) {
      fault = std::current_exception();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    arrive(lock, rank, call);
    if (fault) std::rethrow_exception(fault);
  }

  void abort(const std::string& reason) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_.empty()) aborted_ = reason.empty() ? "aborted" : reason;
    changed_.notify_all();
  }

  // One child group a (turn, colour); `order` among its members is that of this group's ranks.
  std::shared_ptr<Meeting> child(int turn, int colour, int members, const std::string& label) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Meeting>& made = children_[{turn, colour}];
    if (!made) made = std::make_shared<Meeting>(members, label, timeout_);
    return made;
  }

  void check() {
    const std::lock_guard<std::mutex> lock(mutex_);
    fail_if_aborted();
  }

 private:
  void fail_if_aborted() const {
    if (!aborted_.empty()) throw Error(ErrorCode::CommunicationFailed, ErrorText{"the group was ended", "group " + label_, aborted_, "", ""});
  }

  void check_agreement(const Collective& mine) const {
    for (int rank = 0; rank < size_; ++rank) {
      const Collective& other = calls_[static_cast<std::size_t>(rank)];
      const bool pair = mine.kind == CollectiveKind::Send || mine.kind == CollectiveKind::Receive;
      const bool same = pair ? other.kind == CollectiveKind::Send || other.kind == CollectiveKind::Receive || other.kind == CollectiveKind::Barrier
                             : other.kind == mine.kind && other.count == mine.count && other.dtype == mine.dtype && other.op == mine.op;
      DELTRON_CHECK(same, "group ", label_, ": ", collective_name(mine.kind), " of ", mine.count, " '", mine.what, "' here, ",
                    collective_name(other.kind), " of ", other.count, " '", other.what, "' on rank ", rank);
    }
  }

  void arrive(std::unique_lock<std::mutex>& lock, int rank, const Collective& call) {
    here_[static_cast<std::size_t>(rank)] = true;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++generation_;
      here_.assign(here_.size(), false);
      changed_.notify_all();
      return;
    }
    const std::uint64_t generation = generation_;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(timeout_));
    while (generation == generation_ && aborted_.empty()) {
      if (changed_.wait_until(lock, limit) == std::cv_status::timeout && generation == generation_ && aborted_.empty()) {
        std::string missing;
        for (int other = 0; other < size_; ++other) {
          if (!here_[static_cast<std::size_t>(other)]) missing += (missing.empty() ? "" : ", ") + std::to_string(other);
        }
        aborted_ = std::string(collective_name(call.kind)) + " '" + call.what + "' waited " + std::to_string(timeout_) + " s for ranks " + missing;
        changed_.notify_all();
      }
    }
    if (generation == generation_) fail_if_aborted();
  }

  const int size_;
  const std::string label_;
  const double timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Collective> calls_;
  std::vector<bool> here_;
  int arrived_ = 0;
  std::uint64_t generation_ = 0;
  std::string aborted_;
  std::map<std::pair<int, int>, std::shared_ptr<Meeting>> children_;
};

const std::uint8_t* bytes_at(const void* data, std::int64_t elements, DType dtype) {
  return static_cast<const std::uint8_t*>(data) + elements * static_cast<std::int64_t>(dtype_size(dtype));
}

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(int rank, int size, std::string label, std::shared_ptr<Meeting> meeting)
      : Communicator(rank, size, std::move(label)), meeting_(std::move(meeting)) {}
  const char* backend() const override { return "threads"; }
  void abort(const std::string& reason) override { meeting_->abort(reason); }

  std::shared_ptr<Communicator> split_group(Context&, int colour, const std::string& label) override {
    std::vector<int> colours;
    std::int64_t mine = colour;
    meeting_->meet(rank(), {.kind = CollectiveKind::AllGather, .dtype = DType::I64, .send = &mine, .count = 1, .what = "split"},
                   [&](const std::vector<Collective>& calls) {
                     for (const Collective& call : calls) colours.push_back(static_cast<int>(*static_cast<const std::int64_t*>(call.send)));
                   });
    int place = 0, members = 0;
    for (int other = 0; other < size(); ++other) {
      if (colours[static_cast<std::size_t>(other)] != colour) continue;
      if (other < rank()) ++place;
      ++members;
    }
    return std::make_shared<ThreadCommunicator>(place, members, label, meeting_->child(turn_++, colour, members, label));
  }

 protected:
  // `later` runs at once: a thread's compute is inline, so the result is only there earlier than asked for.
  Event start(Context& ctx, const Collective& call, bool) override {
    DELTRON_CHECK(ctx.device() == DeviceKind::Cpu, "thread groups exchange host memory");
    std::vector<std::uint8_t> sum;
    meeting_->meet(rank(), call, [&](const std::vector<Collective>& calls) { read(call, calls, sum); });
    // In place: only once nobody reads the operands any more.
    if (!sum.empty()) std::memcpy(call.receive, sum.data(), sum.size());
    Event event;
    event.signal();
    return event;
  }
  void check_health() override { meeting_->check(); }

 private:
  void read(const Collective& call, const std::vector<Collective>& calls, std::vector<std::uint8_t>& sum) const {
    const std::int64_t element = static_cast<std::int64_t>(dtype_size(call.dtype)), part = call.count * element;
    const auto copy_part = [&](int from, std::int64_t elements, std::int64_t to) {
      std::memcpy(static_cast<std::uint8_t*>(call.receive) + to * element, bytes_at(calls[static_cast<std::size_t>(from)].send, elements, call.dtype),
                  static_cast<std::size_t>(part));
    };
    switch (call.kind) {
      case CollectiveKind::AllReduce:
      case CollectiveKind::ReduceScatter: {
        const std::int64_t begin = call.kind == CollectiveKind::ReduceScatter ? call.count * rank() : 0;
        std::vector<const void*> operands;
        for (const Collective& other : calls) operands.push_back(bytes_at(other.send, begin, call.dtype));
        sum.resize(static_cast<std::size_t>(part));
        ordered_reduce(operands, call.dtype, call.op, call.count, sum.data());
        break;
      }
      case CollectiveKind::AllGather:
        for (int other = 0; other < size(); ++other) copy_part(other, 0, other * call.count);
        break;
      case CollectiveKind::AllToAll:
        for (int other = 0; other < size(); ++other) copy_part(other, rank() * call.count, other * call.count);
        break;
      case CollectiveKind::Broadcast:
        if (rank() != call.peer) copy_part(call.peer, 0, 0);
        break;
      case CollectiveKind::Receive: {
        const Collective& sender = calls[static_cast<std::size_t>(call.peer)];
        DELTRON_CHECK(sender.kind == CollectiveKind::Send && sender.peer == rank() && sender.count == call.count && sender.dtype == call.dtype,
                      "receive '", call.what, "' from rank ", call.peer, ", which does not send it");
        copy_part(call.peer, 0, 0);
        break;
      }
      case CollectiveKind::Send:
      case CollectiveKind::Barrier: break;
    }
  }

  std::shared_ptr<Meeting> meeting_;
  int turn_ = 0;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> make_thread_group(int size, const std::string& label, double timeout_seconds) {
  const auto meeting = std::make_shared<Meeting>(size, label, timeout_seconds);
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(std::make_shared<ThreadCommunicator>(rank, size, label, meeting));
  return ranks;
}

void run_thread_ranks(int size, const std::function<void(int, const std::shared_ptr<Communicator>&)>& body, double timeout_seconds) {
  const std::vector<std::shared_ptr<Communicator>> group = make_thread_group(size, "world", timeout_seconds);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const std::shared_ptr<Communicator>& mine = group[static_cast<std::size_t>(rank)];
      try {
        body(rank, mine);
      } catch (const std::exception& fault) {
        {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!first) first = std::current_exception();
        }
        mine->abort("rank " + std::to_string(rank) + ": " + fault.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace deltron
