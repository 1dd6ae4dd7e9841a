// See gloo_communicator.h.
#include "distributed/gloo_communicator.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

#include "distributed/gloo_mesh.h"
#include "distributed/ordered_reduce.h"
#include "src/base/check.h"

namespace deltron {
namespace {

constexpr std::int64_t kSmallSum = 4096;          // bytes up to which all ranks send everything to all: one round instead of two
constexpr std::uint64_t kPairSlots = 1ull << 63;  // of sends between two ranks, which the others do not count
constexpr double kCauseSeconds = 0.3;             // how long a rank that lost another waits for somebody's word why

std::string describe(const Collective& call) {
  return std::string(collective_name(call.kind)) + " '" + call.what + "' of " + std::to_string(call.count) + " " + dtype_name(call.dtype);
}

std::string seconds_text(double seconds) {
  std::ostringstream text;
  text << seconds << " s";
  return text.str();
}

// Calls that differ get different slots, so that they end in a deadline that names both instead of in mixed-up memory.
std::uint64_t fingerprint(const Collective& call) {
  const bool pair = call.kind == CollectiveKind::Send || call.kind == CollectiveKind::Receive;
  std::uint64_t hash = 1469598103934665603ull;
  for (std::uint64_t word : {pair ? std::uint64_t{99} : static_cast<std::uint64_t>(call.kind), static_cast<std::uint64_t>(call.op),
                             static_cast<std::uint64_t>(call.dtype), static_cast<std::uint64_t>(call.count)}) {
    hash = (hash ^ word) * 1099511628211ull;
    hash ^= hash >> 29;
  }
  return hash & 0xFFFFF;
}

struct Site {
  std::shared_ptr<RendezvousStore> store;
  std::shared_ptr<GlooDevice> device;
  double timeout_seconds = 0;
};

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(Site site, int rank, int size, const std::string& label, std::string prefix)
      : Communicator(rank, size, label), site_(std::move(site)), prefix_(std::move(prefix)) {
    sent_.resize(static_cast<std::size_t>(size));
    received_.resize(static_cast<std::size_t>(size));
    if (size == 1) return;
    try {
      mesh_ = std::make_unique<GlooMesh>(site_.device, *site_.store, prefix_ + "/mesh", rank, size, site_.timeout_seconds);
    } catch (const GlooFault& fault) {
      const std::string who = fault.peer() < 0 ? "the other ranks" : "rank " + std::to_string(fault.peer());
      const bool late = fault.kind() == GlooFault::Kind::Late;
      throw Error(ErrorCode::CommunicationFailed,
                  ErrorText{late ? who + " did not come within " + seconds_text(site_.timeout_seconds) : "connecting failed", place(), fault.what(), "",
                            late ? "look at the last lines of " + who : "see that the ranks reach each other at the addresses they give"});
    }
    worker_ = std::make_unique<Stream>("gloo " + label);
  }

  const char* backend() const override { return "gloo"; }

  void abort(const std::string& reason) override {
    const std::string text = reason.empty() ? "aborted" : reason;
    note(Error(ErrorCode::CommunicationFailed, ErrorText{"the group was ended", place(), text, "", ""}));
    if (!mesh_) return;
    mesh_->end();  // first of all: the store may be slow, or gone
    publish("the group was ended: " + text);
    mesh_->close();
  }

  std::shared_ptr<Communicator> split_group(Context&, int colour, const std::string& label) override {
    std::int64_t mine = colour;
    std::vector<std::int64_t> colours(static_cast<std::size_t>(size()), mine);
    if (size() > 1) {
      give({.kind = CollectiveKind::AllGather, .dtype = DType::I64, .send = &mine, .receive = colours.data(), .count = 1, .what = "split"}).wait();
      check_health();
    }
    int place = 0, members = 0;
    for (int other = 0; other < size(); ++other) {
      if (colours[static_cast<std::size_t>(other)] != mine) continue;
      if (other < rank()) ++place;
      ++members;
    }
    const std::string prefix = prefix_ + "/" + std::to_string(splits_++) + "." + std::to_string(colour);
    return std::make_shared<GlooCommunicator>(site_, place, members, label, prefix);
  }

 protected:
  Event start(Context& ctx, const Collective& call, bool later) override {
    DELTRON_CHECK(!ctx.is_meta(), "nothing moves on meta");
    check_health();
    if (ctx.device() == DeviceKind::Cuda) return staged(ctx, call);
    const Event event = give(call);
    if (!later) {
      event.wait();
      check_health();
    }
    return event;
  }

  void check_health() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) throw *ended_;
  }

 private:
  std::string place() const { return "group " + label() + ", rank " + std::to_string(rank()) + " of " + std::to_string(size()); }

  // What ended the group first stays.
  void note(const Error& fault) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ended_) ended_ = fault;
  }

  // Host memory, on the worker. The event is complete when the call has run or failed; check_health() tells which.
  Event give(const Collective& call) {
    const Event event;
    worker_->enqueue([this, call, event] {
      try {
        check_health();
        exchange(call);
      } catch (const GlooFault& fault) {
        fail(call, fault);
      } catch (const Error& fault) {
        note(fault);
        mesh_->close();
      } catch (const std::exception& fault) {
        note(Error(ErrorCode::CommunicationFailed, ErrorText{describe(call) + " failed", place(), fault.what(), "", ""}));
        mesh_->close();
      }
      event.signal();
    });
    return event;
  }

  // Down to pinned memory, exchanged there, and back up; host and compute wait.
  Event staged(Context& ctx, const Collective& call) {
    const std::int64_t part = call.count * static_cast<std::int64_t>(dtype_size(call.dtype)), all = part * size();
    std::int64_t down = 0, up = 0;
    switch (call.kind) {
      case CollectiveKind::AllReduce: down = up = part; break;
      case CollectiveKind::AllGather: down = part, up = all; break;
      case CollectiveKind::ReduceScatter: down = all, up = part; break;
      case CollectiveKind::AllToAll: down = up = all; break;
      case CollectiveKind::Broadcast: (rank() == call.peer ? down : up) = part; break;
      case CollectiveKind::Send: down = part; break;
      case CollectiveKind::Receive: up = part; break;
      case CollectiveKind::Barrier: ctx.synchronize(); break;
    }
    const std::shared_ptr<Allocator> memory = ctx.host_memory();
    const auto lease = [&](std::int64_t bytes) {
      const MemoryScope scope = ctx.scope();
      const auto give_back = [memory, bytes, scope](void* data) { memory->release(data, bytes, MemoryTag::Communication, scope); };
      return std::unique_ptr<void, decltype(give_back)>(bytes > 0 ? memory->allocate(bytes, MemoryTag::Communication, scope) : nullptr, give_back);
    };
    const auto below = lease(down), above = lease(up);
    if (down > 0) ctx.download(below.get(), call.send, down);
    Collective host = call;
    host.send = down > 0 ? below.get() : nullptr;
    host.receive = up > 0 ? above.get() : below.get();
    give(host).wait();
    check_health();
    if (up > 0) ctx.upload(call.receive, above.get(), up);
    return ctx.compute_point();
  }

  void exchange(const Collective& call) {
    const std::int64_t element = static_cast<std::int64_t>(dtype_size(call.dtype)), part = call.count * element;
    std::uint8_t* const from = static_cast<std::uint8_t*>(const_cast<void*>(call.send));
    std::uint8_t* const to = static_cast<std::uint8_t*>(call.receive);
    std::vector<GlooPiece> sends, receives;
    const auto with_others = [&](const auto& visit) {
      for (int other = 0; other < size(); ++other) {
        if (other != rank()) visit(other);
      }
    };
    switch (call.kind) {
      case CollectiveKind::AllReduce: return part <= kSmallSum ? sum(call, call.count, false) : all_reduce(call);
      case CollectiveKind::ReduceScatter: return sum(call, call.count, true);
      case CollectiveKind::AllGather:
        with_others([&](int other) {
          sends.push_back({other, from, part});
          receives.push_back({other, to + other * part, part});
        });
        move(call, sends, receives);
        if (part > 0 && to + rank() * part != from) std::memmove(to + rank() * part, from, static_cast<std::size_t>(part));
        return;
      case CollectiveKind::AllToAll:
        with_others([&](int other) {
          sends.push_back({other, from + other * part, part});
          receives.push_back({other, to + other * part, part});
        });
        move(call, sends, receives);
        if (part > 0) std::memmove(to + rank() * part, from + rank() * part, static_cast<std::size_t>(part));
        return;
      case CollectiveKind::Broadcast:
        if (rank() == call.peer) {
          with_others([&](int other) { sends.push_back({other, from, part}); });
        } else {
          receives.push_back({call.peer, to, part});
        }
        return move(call, sends, receives);
      case CollectiveKind::Send:
        return mesh_->exchange(pair_slot(call, sent_), {{call.peer, from, part}}, {}, site_.timeout_seconds);
      case CollectiveKind::Receive:
        return mesh_->exchange(pair_slot(call, received_), {}, {{call.peer, to, part}}, site_.timeout_seconds);
      case CollectiveKind::Barrier: {
        std::vector<std::uint8_t> marks(static_cast<std::size_t>(size()));
        with_others([&](int other) {
          sends.push_back({other, &marks[static_cast<std::size_t>(rank())], 1});
          receives.push_back({other, &marks[static_cast<std::size_t>(other)], 1});
        });
        return move(call, sends, receives);
      }
    }
  }

  void move(const Collective& call, const std::vector<GlooPiece>& sends, const std::vector<GlooPiece>& receives) {
    mesh_->exchange((++turn_ << 20 | fingerprint(call)) & ~kPairSlots, sends, receives, site_.timeout_seconds);
  }

  std::uint64_t pair_slot(const Collective& call, std::vector<std::uint64_t>& counts) {
    return kPairSlots | ++counts[static_cast<std::size_t>(call.peer)] << 20 | fingerprint(call);
  }

  // Sums `count` elements of every rank into call.receive: of part r of what they send for rank r, or of one and the same part for all.
  void sum(const Collective& call, std::int64_t count, bool own_parts) {
    const std::int64_t bytes = count * static_cast<std::int64_t>(dtype_size(call.dtype));
    std::uint8_t* const from = static_cast<std::uint8_t*>(const_cast<void*>(call.send));
    scratch_.resize(static_cast<std::size_t>(bytes * (size() + 1)));
    std::vector<GlooPiece> sends, receives;
    std::vector<const void*> operands;
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) {
        operands.push_back(from + (own_parts ? rank() * bytes : 0));
        continue;
      }
      sends.push_back({other, from + (own_parts ? other * bytes : 0), bytes});
      receives.push_back({other, scratch_.data() + other * bytes, bytes});
      operands.push_back(receives.back().data);
    }
    move(call, sends, receives);
    std::uint8_t* const result = scratch_.data() + size() * bytes;
    ordered_reduce(operands, call.dtype, call.op, count, result);
    if (bytes > 0) std::memcpy(call.receive, result, static_cast<std::size_t>(bytes));
  }

  // Every rank sums its share of the elements and hands it to all. The last shares may be short or empty.
  void all_reduce(const Collective& call) {
    const std::int64_t element = static_cast<std::int64_t>(dtype_size(call.dtype)), share = (call.count + size() - 1) / size();
    const auto begin = [&](int owner) { return std::min(call.count, owner * share); };
    const auto count = [&](int owner) { return begin(owner + 1) - begin(owner); };
    std::uint8_t* const from = static_cast<std::uint8_t*>(const_cast<void*>(call.send));
    std::uint8_t* const to = static_cast<std::uint8_t*>(call.receive);
    const std::int64_t mine = count(rank()) * element;
    scratch_.resize(static_cast<std::size_t>(mine * (size() + 1)));
    std::vector<GlooPiece> sends, receives;
    std::vector<const void*> operands;
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) {
        operands.push_back(from + begin(rank()) * element);
        continue;
      }
      sends.push_back({other, from + begin(other) * element, count(other) * element});
      receives.push_back({other, scratch_.data() + other * mine, mine});
      operands.push_back(receives.back().data);
    }
    move(call, sends, receives);
    std::uint8_t* const result = scratch_.data() + size() * mine;
    ordered_reduce(operands, call.dtype, call.op, count(rank()), result);
    if (mine > 0) std::memcpy(to + begin(rank()) * element, result, static_cast<std::size_t>(mine));
    sends.clear();
    receives.clear();
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      sends.push_back({other, to + begin(rank()) * element, mine});
      receives.push_back({other, to + begin(other) * element, count(other) * element});
    }
    move(call, sends, receives);
  }

  // The call that failed, the rank that was waited for, and what others have left in the store about it.
  void fail(const Collective& call, const GlooFault& fault) {
    const std::string rank_text = "rank " + std::to_string(fault.peer());
    if (fault.kind() == GlooFault::Kind::Late) {
      const std::string waited = "waited " + seconds_text(site_.timeout_seconds) + " for " + rank_text;
      leave_word("at/" + std::to_string(rank()), describe(call));
      publish(describe(call) + " " + waited);
      const std::string there = word("at/" + std::to_string(fault.peer()));
      note(Error(ErrorCode::CommunicationFailed, ErrorText{describe(call) + " failed", place(), waited + (there.empty() ? "" : ", which is at " + there), "",
                                                           "look at the last lines of " + rank_text}));
    } else if (fault.kind() == GlooFault::Kind::Lost) {
      const std::string cause = word("fault");
      if (cause.empty()) publish(describe(call) + " lost " + rank_text);
      note(Error(ErrorCode::CommunicationFailed, ErrorText{describe(call) + " lost " + rank_text, place(), cause.empty() ? fault.what() : cause, "",
                                                           "look at the last lines of the rank that is named"}));
    } else {
      note(Error(ErrorCode::CommunicationFailed, ErrorText{describe(call) + " was ended", place(), fault.what(), "", ""}));
    }
    mesh_->close();
  }

  void publish(const std::string& text) { leave_word("fault", "rank " + std::to_string(rank()) + ": " + text); }
  void leave_word(const std::string& key, const std::string& text) {
    try {
      site_.store->set(prefix_ + "/" + key, text);
    } catch (const std::exception&) {
      // The store may be what is gone; the fault itself is told without it.
    }
  }
  std::string word(const std::string& key) {
    try {
      return site_.store->get(prefix_ + "/" + key, kCauseSeconds);
    } catch (const std::exception&) {
      return "";
    }
  }

  const Site site_;
  const std::string prefix_;
  std::unique_ptr<GlooMesh> mesh_;  // null in a group of one
  int splits_ = 0;
  std::mutex mutex_;
  std::optional<Error> ended_;
  // Of the worker:
  std::uint64_t turn_ = 0;
  std::vector<std::uint64_t> sent_, received_;  // sends and receives by rank
  std::vector<std::uint8_t> scratch_;
  std::unique_ptr<Stream> worker_;
};

}  // namespace

std::shared_ptr<Communicator> make_gloo_group(std::shared_ptr<RendezvousStore> store, int rank, int size, const GlooOptions& options) {
  DELTRON_CHECK(size > 0 && rank >= 0 && rank < size, "rank ", rank, " of ", size);
  const Site site{std::move(store), open_gloo_device(options.address), options.timeout_seconds};
  return std::make_shared<GlooCommunicator>(site, rank, size, options.label, options.key_prefix);
}

}  // namespace deltron
