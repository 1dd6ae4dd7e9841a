// One rank a GPU: exchanges through NCCL, on a stream of the group's own that events order with compute; the host waits for nothing but
// NCCL's taking of a call. Sums are formed in NCCL's order and rounded where its algorithm passes partial sums on: the same on every rank
// and in every run of one job on one set of machines, but not the bits of the other back ends. Builds without NCCL say so when one is asked for.
#pragma once

#include <memory>
#include <string>

#include "distributed/communicator.h"
#include "distributed/rendezvous_store.h"

namespace deltron {

struct NcclInfo {
  bool built = false;  // this binary can use NCCL
  bool found = false;  // and its library is here
  std::string path, version, problem;
};
NcclInfo nccl_info();  // looks, throws nothing

struct NcclOptions {
  double timeout_seconds = 600;           // of meeting, and of every call, from its making; check() and finish() judge calls
  std::string label = "world";
  std::string key_prefix = "nccl/world";  // in the store; one group, one prefix
  bool exercise_single = false;           // a group of one calls NCCL, too, instead of copying (tests)
};

// Every rank of the group calls it, with its GPU current; contexts are on cuda. Throws Error(CommunicationFailed) where ranks do not come or
// NCCL fails (two ranks on one GPU, for one), Error(DeviceUnavailable) where there is no NCCL.
std::shared_ptr<Communicator> make_nccl_group(Context& ctx, std::shared_ptr<RendezvousStore> store, int rank, int size, const NcclOptions& options = {});

}  // namespace deltron
