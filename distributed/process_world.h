// One process of a job of several: meets the others over rank 0's store, makes the groups, and watches that all stay alive. Must not know what
// the ranks compute.
#pragma once

#include <memory>
#include <string>

#include "distributed/communicator.h"
#include "distributed/rank_environment.h"
#include "distributed/watchdog.h"

namespace deltron {

struct ProcessWorldOptions {
  bool nccl = false;              // what carries tensors of GPUs; else Gloo
  double timeout_seconds = 600;   // of meeting, and of every call
};

class ProcessWorld {
 public:
  // Comes back when all ranks are there. Throws Error(CommunicationFailed) past the deadline.
  ProcessWorld(const RankEnvironment& place, const ProcessWorldOptions& options);
  ~ProcessWorld();
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  const std::shared_ptr<Communicator>& control() const { return control_; }  // host memory, over Gloo
  // The group for tensors of this context; every rank calls it, once.
  std::shared_ptr<Communicator> connect(Context& ctx);
  void note(const std::string& what) { watchdog_->note(what); }
  // Why the watchdog has ended the job; "": it has not.
  std::string reason() const { return watchdog_->reason(); }
  // This rank ends. With `fault`, by an error of its own: the other ranks are told and end too.
  void leave(const std::string& fault = "");

 private:
  ProcessWorldOptions options_;
  RankEnvironment place_;
  std::string own_address_;
  std::unique_ptr<TcpStoreServer> server_;  // rank 0; outlives the others' connections
  std::shared_ptr<TcpStore> store_;
  std::shared_ptr<Communicator> control_, world_;
  std::mutex groups_;                       // what abort may end meanwhile
  std::shared_ptr<Watchdog> watchdog_;
};

}  // namespace deltron
