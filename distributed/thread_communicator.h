// Ranks as threads of one process, for tests and for plans that compare layouts: exchanges through memory, sums in the order of the ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "distributed/communicator.h"

namespace deltron {

// One communicator a rank, all of one group; rank r is used by one thread. CPU contexts only. A rank that waits longer than
// `timeout_seconds` for the others throws Error(CommunicationFailed) that names who is missing.
std::vector<std::shared_ptr<Communicator>> make_thread_group(int size, const std::string& label = "world", double timeout_seconds = 60);

// Runs `body(rank, world)` on a thread a rank; a rank that throws aborts the group. Rethrows the first fault after all have ended.
void run_thread_ranks(int size, const std::function<void(int rank, const std::shared_ptr<Communicator>& world)>& body, double timeout_seconds = 60);

}  // namespace deltron
