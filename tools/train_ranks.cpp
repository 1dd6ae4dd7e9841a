// See train_ranks.h.
#include "tools/train_ranks.h"

#include <csignal>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "src/base/error.h"
#include "src/base/log.h"

namespace deltron::tools {
namespace {

bool uses_nccl(const RunConfig& config) {
  const DistributedBackend backend = config.parallel.distributed_backend;
  return backend == DistributedBackend::Nccl || (backend == DistributedBackend::Auto && config.training.device == DeviceKind::Cuda);
}

}  // namespace

void TrainRanks::meet(const RunConfig& config) {
  if (!several()) return;
  if (place_.rank != 0) set_log_level(LogLevel::Error);
  ProcessWorldOptions options;
  options.nccl = uses_nccl(config);
  options.timeout_seconds = 60 * config.parallel.distributed_timeout_minutes;
  log_info("rank 0 of " + std::to_string(place_.world_size) + " (" + place_.source + ") waits for the others at " + place_.address + ":" + std::to_string(place_.port));
  world_ = std::make_unique<ProcessWorld>(place_, options);
}

JobRanks TrainRanks::ranks() const {
  JobRanks ranks;
  if (!world_) return ranks;
  ranks.own_rank = place_.rank;
  ranks.count = place_.world_size;
  ranks.local_rank = place_.local_rank;
  ranks.local_size = place_.local_size;
  ranks.control = world_->control();
  ranks.connect = [world = world_.get()](Context& ctx) { return world->connect(ctx); };
  ranks.note = [world = world_.get(), place = fault_place_, kind = fault_kind_](const std::string& what) {
    world->note(what);
    if (place.empty() || what != place) return;
    if (kind == "kill") kill(getpid(), SIGKILL);
    std::this_thread::sleep_for(std::chrono::hours(1));
  };
  ranks.launcher = place_.source;
  return ranks;
}

void TrainRanks::inject_fault(const std::string& text) {
  std::string rank, place, kind;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(';', begin), text.size()), equals = text.find('=', begin);
    const std::string key = text.substr(begin, equals - begin), value = equals < end ? text.substr(equals + 1, end - equals - 1) : "";
    (key == "rank" ? rank : key == "at" ? place : kind) = value;
    begin = end + 1;
  }
  if (text.empty() || rank != std::to_string(place_.rank)) return;
  fault_place_ = place;
  fault_kind_ = kind;
}

void TrainRanks::run(const std::function<void()>& work) {
  if (!world_) return work();
  try {
    work();
    world_->leave();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::CommunicationFailed) {
      world_->leave(error.what());
      throw;
    }
    // A connection that broke is often noticed before the reason for it is known.
    for (int tries = 0; tries < 30 && world_->reason().empty(); ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const std::string reason = world_->reason();
    world_->leave();
    if (reason.empty()) throw;
    throw Error(ErrorCode::CommunicationFailed,
                ErrorText{reason, "rank " + std::to_string(place_.rank), "", "a job needs all of its ranks; the newest checkpoint is whole",
                          "look at that rank's own last lines; start the job again to go on from the checkpoint"});
  } catch (const StopRequested& stop) {
    world_->leave(std::string("stopped: ") + stop.what());
    throw;
  } catch (const std::exception& fault) {
    world_->leave(fault.what());
    throw;
  }
}

}  // namespace deltron::tools
