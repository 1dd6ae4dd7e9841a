// See nccl_communicator.h.
#include "distributed/nccl_communicator.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "distributed/nccl_library.h"
#include "src/base/check.h"
#include "src/tensor/cuda_device.h"

namespace deltron {
namespace {

using Clock = std::chrono::steady_clock;
using Functions = std::shared_ptr<const NcclFunctions>;
constexpr double kGoodbyeSeconds = 10;  // how long a group that ends waits for calls under way and for NCCL's own farewell

Clock::time_point after(double seconds) { return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)); }

std::string seconds_text(double seconds) {
  std::ostringstream text;
  text << seconds << " s";
  return text.str();
}

std::string describe(const Collective& call) {
  return std::string(collective_name(call.kind)) + " '" + call.what + "' of " + std::to_string(call.count) + " " + dtype_name(call.dtype);
}

ncclDataType_t data_type(DType dtype, const char* what) {
  switch (dtype) {
    case DType::F32: return ncclFloat32;
    case DType::F64: return ncclFloat64;
    case DType::BF16: return ncclBfloat16;
    case DType::F16: return ncclFloat16;
    case DType::I32: return ncclInt32;
    case DType::I64: return ncclInt64;
    case DType::U8:
    case DType::Bool: return ncclUint8;
    case DType::U16: break;
  }
  DELTRON_CHECK(false, "'", what, "': NCCL exchanges no ", dtype_name(dtype));
  return ncclUint8;
}

// NCCL's own words for a failure, with our advice where the cause is known.
ErrorText failure_text(const NcclFunctions& f, ncclResult_t result, const std::string& what, const std::string& place) {
  std::string details = f.error_string(result);
  if (const char* last = f.last_error(nullptr); last != nullptr && *last != '\0') details += std::string(": ") + last;
  while (!details.empty() && (details.back() == '\n' || details.back() == ' ')) details.pop_back();
  if (details.find("uplicate GPU") != std::string::npos) {
    return {what + ": two ranks use one GPU", place, details, "one rank a GPU",
            "give every rank its GPU, use Gloo, or, to test only, set NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30 or newer)"};
  }
  return {what + " failed", place, details, "", "NCCL_DEBUG=WARN makes NCCL tell more"};
}

// Polls until NCCL is done with what `result` came from. `ask` gives the newest result; it is asked at least once, since some calls (splits) say
// that they have succeeded when they have only begun.
template <class Ask>
ncclResult_t settled(ncclResult_t result, Clock::time_point limit, const Ask& ask) {
  if (result == ncclSuccess) result = ask();
  for (int polls = 0; result == ncclInProgress && Clock::now() < limit; ++polls) {
    if (polls > 100) std::this_thread::sleep_for(std::chrono::microseconds(polls > 1000 ? 1000 : 20));
    result = ask();
  }
  return result;
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(Functions f, ncclComm_t comm, int rank, int size, const NcclOptions& options)
      : Communicator(rank, size, options.label), f_(std::move(f)), options_(options), comm_(comm), stream_(cuda_make_stream()) {}

  ~NcclCommunicator() override {
    say_goodbye();
    if (mark_ != nullptr) mark_memory_->release(mark_, kMarkBytes);
    cuda_free_stream(stream_);
  }

  const char* backend() const override { return "nccl"; }

  void abort(const std::string& reason) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    end({"the group was ended", place(), reason.empty() ? "aborted" : reason, "", ""});
  }

  std::shared_ptr<Communicator> split_group(Context&, int colour, const std::string& label) override {
    DELTRON_CHECK(colour >= 0, "colour ", colour);
    ncclComm_t made = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    settle("split '" + label + "'", [&](ncclComm_t comm) { return f_->split(comm, colour, rank(), &made, &config); });
    // NCCL's own thread writes the new handle.
    const ncclResult_t result = settled(ncclInProgress, after(options_.timeout_seconds), [&] {
      const ncclComm_t handle = std::atomic_ref<ncclComm_t>(made).load();
      return handle == nullptr ? ncclInProgress : state_of(handle);
    });
    int place = 0, members = 0;
    if (result != ncclSuccess || f_->count(made, &members) != ncclSuccess || f_->user_rank(made, &place) != ncclSuccess) {
      const ErrorText text = failure_text(*f_, result, "split '" + label + "'", this->place());
      if (made != nullptr) f_->abort(made);
      throw Error(ErrorCode::CommunicationFailed, text);
    }
    NcclOptions options = options_;
    options.label = label;
    return std::make_shared<NcclCommunicator>(f_, made, place, members, options);
  }

  ncclResult_t state_of(ncclComm_t comm) const {
    ncclResult_t state = ncclInternalError;
    const ncclResult_t asked = f_->async_error(comm, &state);
    return asked == ncclSuccess ? state : asked;
  }

 protected:
  Event start(Context& ctx, const Collective& call, bool later) override {
    DELTRON_CHECK(ctx.device() == DeviceKind::Cuda, "'", call.what, "': NCCL exchanges memory of GPUs");
    const ncclDataType_t type = data_type(call.dtype, call.what);
    if (call.kind == CollectiveKind::Barrier && mark_ == nullptr) {
      mark_memory_ = make_cuda_memory();
      mark_ = mark_memory_->allocate(kMarkBytes);
      if (mark_ != nullptr) cuda_set_bytes(mark_, 0, kMarkBytes, stream_);
    }
    cuda_stream_waits(stream_, ctx.compute_point().native());
    settle(describe(call), [&](ncclComm_t comm) { return give(comm, call, type); });
    const Event event = Event::on_device(stream_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      while (!under_way_.empty() && under_way_.front().event.complete()) under_way_.pop_front();
      under_way_.push_back({event, describe(call), after(options_.timeout_seconds)});
    }
    if (!later) ctx.compute_waits(event);
    return event;
  }

  // NCCL's own state, and calls whose deadline has passed.
  void check_health() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) throw *ended_;
    const ncclResult_t state = state_of(comm_);
    while (!under_way_.empty() && under_way_.front().event.complete()) under_way_.pop_front();
    const std::string oldest = under_way_.empty() ? "communication" : under_way_.front().text;
    if (state != ncclSuccess && state != ncclInProgress) {
      end(failure_text(*f_, state, oldest, place()));
    } else if (!under_way_.empty() && Clock::now() > under_way_.front().limit) {
      end({oldest + " failed", place(), "not done within " + seconds_text(options_.timeout_seconds), "", "look at the last lines of the other ranks"});
    }
    if (ended_) throw *ended_;
  }

  bool calls_alone() const override { return options_.exercise_single; }

 private:
  struct UnderWay {
    Event event;
    std::string text;
    Clock::time_point limit;
  };
  static constexpr std::int64_t kMarkBytes = 4;  // what a barrier sums

  std::string place() const { return "group " + label() + ", rank " + std::to_string(rank()) + " of " + std::to_string(size()); }

  // Below the lock. Kernels under way on the device end, too, and with them the events that wait for them.
  void end(const ErrorText& text) {
    if (!ended_) ended_ = Error(ErrorCode::CommunicationFailed, text);
    if (comm_ != nullptr) f_->abort(comm_);
    comm_ = nullptr;
  }

  // Makes one call of NCCL and waits, at most until the deadline, for NCCL to have taken it. Others may end the group meanwhile.
  template <class Call>
  void settle(const std::string& what, const Call& call) {
    const auto with_comm = [&](const auto& ask) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (ended_) throw *ended_;
      return ask(comm_);
    };
    const ncclResult_t result = settled(with_comm(call), after(options_.timeout_seconds),
                                        [&] { return with_comm([&](ncclComm_t comm) { return state_of(comm); }); });
    if (result == ncclSuccess) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (result == ncclInProgress) {
      end({what + " failed", place(), "NCCL did not take it within " + seconds_text(options_.timeout_seconds), "", "look at the last lines of the other ranks"});
    } else {
      end(failure_text(*f_, result, what, place()));
    }
    throw *ended_;
  }

  ncclResult_t give(ncclComm_t comm, const Collective& call, ncclDataType_t type) const {
    const auto count = static_cast<std::size_t>(call.count);
    const auto stream = static_cast<cudaStream_t>(stream_);
    const ncclRedOp_t op = call.op == ReduceOp::Sum ? ncclSum : ncclMax;
    switch (call.kind) {
      case CollectiveKind::AllReduce: return f_->all_reduce(call.send, call.receive, count, type, op, comm, stream);
      case CollectiveKind::AllGather: return f_->all_gather(call.send, call.receive, count, type, comm, stream);
      case CollectiveKind::ReduceScatter: return f_->reduce_scatter(call.send, call.receive, count, type, op, comm, stream);
      case CollectiveKind::Broadcast: return f_->broadcast(call.send, call.receive, count, type, call.peer, comm, stream);
      case CollectiveKind::Send: return f_->send(call.send, count, type, call.peer, comm, stream);
      case CollectiveKind::Receive: return f_->receive(call.receive, count, type, call.peer, comm, stream);
      case CollectiveKind::Barrier: return f_->all_reduce(mark_, mark_, 1, ncclInt32, ncclSum, comm, stream);
      case CollectiveKind::AllToAll: {
        const std::size_t part = count * dtype_size(call.dtype);
        ncclResult_t worst = f_->group_start();
        const auto take = [&](ncclResult_t result) {
          if (worst == ncclSuccess && result != ncclInProgress) worst = result;
        };
        for (std::size_t other = 0; other < static_cast<std::size_t>(size()); ++other) {
          take(f_->send(static_cast<const char*>(call.send) + other * part, count, type, static_cast<int>(other), comm, stream));
          take(f_->receive(static_cast<char*>(call.receive) + other * part, count, type, static_cast<int>(other), comm, stream));
        }
        const ncclResult_t ended = f_->group_end();
        return worst == ncclSuccess ? ended : worst;
      }
    }
    return ncclInternalError;
  }

  // A healthy group ends as NCCL wants it, when its calls have run; one that does not come to an end is broken off.
  void say_goodbye() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return;
    const Clock::time_point limit = after(kGoodbyeSeconds);
    try {
      for (const UnderWay& call : under_way_) {
        while (!call.event.complete() && Clock::now() < limit) std::this_thread::sleep_for(std::chrono::microseconds(100));
        if (!call.event.complete()) return end({"the group ended", place(), call.text + " was under way", "", ""});
      }
    } catch (const std::exception& fault) {  // of the device
      return end({"the group ended", place(), fault.what(), "", ""});
    }
    if (settled(f_->finalize(comm_), limit, [&] { return state_of(comm_); }) != ncclSuccess) return end({"the group ended", place(), "", "", ""});
    f_->destroy(comm_);
    comm_ = nullptr;
  }

  const Functions f_;
  const NcclOptions options_;
  std::mutex mutex_;
  ncclComm_t comm_;  // null once the group has ended
  std::optional<Error> ended_;
  std::deque<UnderWay> under_way_;
  void* const stream_;
  std::unique_ptr<RawMemory> mark_memory_;
  void* mark_ = nullptr;
};

}  // namespace

std::shared_ptr<Communicator> make_nccl_group(Context& ctx, std::shared_ptr<RendezvousStore> store, int rank, int size, const NcclOptions& options) {
  DELTRON_CHECK(size > 0 && rank >= 0 && rank < size, "rank ", rank, " of ", size);
  DELTRON_CHECK(ctx.device() == DeviceKind::Cuda, "NCCL exchanges memory of GPUs");
  const Functions f = open_nccl();
  const std::string place = "group " + options.label + ", rank " + std::to_string(rank) + " of " + std::to_string(size);
  const auto fail = [&](ncclResult_t result) { return Error(ErrorCode::CommunicationFailed, failure_text(*f, result, "connecting", place)); };
  ncclUniqueId id;
  if (rank == 0) {
    if (const ncclResult_t result = f->get_unique_id(&id); result != ncclSuccess) throw fail(result);
    store->set(options.key_prefix + "/id", std::string(id.internal, sizeof(id.internal)));
  } else {
    std::string bytes;
    try {
      bytes = store->get(options.key_prefix + "/id", options.timeout_seconds);
    } catch (const Error& fault) {
      throw Error(ErrorCode::CommunicationFailed, ErrorText{"rank 0 did not come within " + seconds_text(options.timeout_seconds), place, fault.what(), "",
                                                            "look at the last lines of rank 0"});
    }
    DELTRON_CHECK_EQ(bytes.size(), sizeof(id.internal), "bytes of NCCL's id in the store");
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = settled(f->init_rank(&comm, size, id, rank, &config), after(options.timeout_seconds), [&] {
    ncclResult_t state = ncclInternalError;
    const ncclResult_t asked = f->async_error(comm, &state);
    return asked == ncclSuccess ? state : asked;
  });
  if (result == ncclSuccess) return std::make_shared<NcclCommunicator>(f, comm, rank, size, options);
  const Error fault = result == ncclInProgress
                          ? Error(ErrorCode::CommunicationFailed, ErrorText{"connecting failed", place, "not all ranks came within " + seconds_text(options.timeout_seconds),
                                                                            "", "look at the last lines of the other ranks"})
                          : fail(result);
  if (comm != nullptr) f->abort(comm);
  throw fault;
}

}  // namespace deltron
