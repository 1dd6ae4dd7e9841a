// Ranks as processes (or threads) on the CPU, and ranks that share one GPU: exchanges over TCP through Gloo. Sums are formed by ordered_reduce:
// the same bits on every rank, in every run, and as the thread back end forms them. Tensors on cuda are staged through pinned host memory; the
// host waits for that, also in the `later` forms: right, not quick.
#pragma once

#include <memory>
#include <string>

#include "distributed/communicator.h"
#include "distributed/rendezvous_store.h"

namespace deltron {

struct GlooOptions {
  std::string address = "127.0.0.1";        // name or number of this machine that the other ranks reach
  double timeout_seconds = 600;             // of connecting and of every call
  std::string label = "world";
  std::string key_prefix = "gloo/world";    // in the store; one group, one prefix
};

// Meets the other ranks in `store` and connects with them; every rank of the group calls it. All calls of the group run on one thread of
// its own, in the order in which they were made. A rank that is lost or does not come before the deadline is thrown as
// Error(CommunicationFailed), which names the call, the group and the rank; the group has then ended, here and on the others.
std::shared_ptr<Communicator> make_gloo_group(std::shared_ptr<RendezvousStore> store, int rank, int size, const GlooOptions& options = {});

}  // namespace deltron
