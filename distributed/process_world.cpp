// See process_world.h.
#include "distributed/process_world.h"

#include <thread>

#include "distributed/gloo_communicator.h"
#include "distributed/nccl_communicator.h"
#include "src/base/error.h"

namespace deltron {
namespace {

// The watchdog judges first: it knows what the other ranks do.
constexpr double kAfterWatchdog = 15;

}  // namespace

ProcessWorld::ProcessWorld(const RankEnvironment& place, const ProcessWorldOptions& options) : options_(options), place_(place) {
  const bool one_machine = place.local_size == place.world_size;
  if (place.rank == 0) server_ = std::make_unique<TcpStoreServer>(place.port, place.job_id, place.world_size);
  const std::string store_address = place.rank == 0 || one_machine ? "127.0.0.1" : place.address;
  store_ = std::make_shared<TcpStore>(store_address, place.port, place.job_id, place.rank, place.world_size, options.timeout_seconds);
  // Where the others reach this machine: rank 0 is known, another one by the way it takes to rank 0.
  own_address_ = one_machine ? "127.0.0.1" : place.rank == 0 ? place.address : store_->own_address();
  WatchdogOptions watch;
  watch.deadline_seconds = options.timeout_seconds;
  watch.abort = [this](const std::string& reason) {
    std::shared_ptr<Communicator> control, world;
    {
      const std::lock_guard<std::mutex> lock(groups_);
      control = control_;
      world = world_;
    }
    if (world) world->abort_all(reason);
    if (control && control != world) control->abort_all(reason);
  };
  watch.check = [this] {
    std::shared_ptr<Communicator> world;
    {
      const std::lock_guard<std::mutex> lock(groups_);
      world = world_;
    }
    if (world) world->check_all();
  };
  watchdog_ = std::make_shared<Watchdog>(store_, watch);
  GlooOptions gloo;
  gloo.address = own_address_;
  gloo.timeout_seconds = options.timeout_seconds + kAfterWatchdog;
  gloo.label = "hosts";
  gloo.key_prefix = "gloo/hosts";
  const std::shared_ptr<Communicator> control = make_gloo_group(store_, place.rank, place.world_size, gloo);
  control->set_observer(watchdog_);
  const std::lock_guard<std::mutex> lock(groups_);
  control_ = control;
}

ProcessWorld::~ProcessWorld() { leave(); }

std::shared_ptr<Communicator> ProcessWorld::connect(Context& ctx) {
  std::shared_ptr<Communicator> world;
  if (options_.nccl) {
    NcclOptions nccl;
    nccl.timeout_seconds = options_.timeout_seconds + kAfterWatchdog;
    world = make_nccl_group(ctx, store_, place_.rank, place_.world_size, nccl);
  } else {
    GlooOptions gloo;
    gloo.address = own_address_;
    gloo.timeout_seconds = options_.timeout_seconds + kAfterWatchdog;
    world = make_gloo_group(store_, place_.rank, place_.world_size, gloo);
  }
  world->set_observer(watchdog_);
  const std::lock_guard<std::mutex> lock(groups_);
  world_ = world;
  return world;
}

void ProcessWorld::leave(const std::string& fault) {
  watchdog_->leave(fault);
  // Rank 0's store goes last: the others still say goodbye, or hear of the fault.
  if (server_) server_->wait_for_goodbyes(fault.empty() ? options_.timeout_seconds : 5.0, place_.rank);
}

}  // namespace deltron
