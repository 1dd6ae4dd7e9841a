// The ranks of a job as the training loop sees them: how the group for the tensors of their devices is made, one for short texts and numbers
// between their hosts, and whom to tell what this rank does. Must not know what carries them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "distributed/communicator.h"

namespace deltron {

struct JobRanks {
  int own_rank = 0, count = 1;
  int local_rank = 0, local_size = 1;            // among those on this machine, which share its memory, processors and GPUs
  std::shared_ptr<Communicator> control;         // all ranks; host memory, whatever the device. Null for one rank, and on meta
  std::function<std::shared_ptr<Communicator>(Context& ctx)> connect = {};  // makes the group for tensors of `ctx`
  std::function<void(const std::string&)> note = {};  // what this rank is about to do ("step 12"); may be empty
  std::string launcher = {};                     // where rank and size come from ("torchrun")

  int rank() const { return own_rank; }
  int size() const { return count; }
  bool leads() const { return own_rank == 0; }   // writes what is written once a job
  void says(const std::string& what) const {
    if (note) note(what);
  }
};

// For thread ranks (tests): both groups are `world`, which carries host memory.
inline JobRanks job_of(const std::shared_ptr<Communicator>& world) {
  JobRanks ranks;
  ranks.own_rank = world->rank();
  ranks.count = ranks.local_size = world->size();
  ranks.local_rank = world->rank();
  if (world->size() == 1) return ranks;
  ranks.control = world;
  ranks.connect = [world](Context&) { return world; };
  return ranks;
}

}  // namespace deltron
