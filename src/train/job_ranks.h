// The ranks of a job as the training loop sees them: one group for the tensors of their devices, one for short texts and numbers between
// their hosts. Must not know how they were made.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "distributed/communicator.h"

namespace deltron {

struct JobRanks {
  std::shared_ptr<Communicator> world;           // null: one rank alone
  std::shared_ptr<Communicator> control;         // the same ranks; host memory, whatever the device
  std::function<void(const std::string&)> note;  // what this rank is about to do ("step 12"), for whoever watches it; may be empty
  std::string launcher;                          // where rank and size come from ("torchrun")
  int local_size = 1;                            // ranks on this machine, which share its memory and processors
  int planned = 1;                               // without `world`, on meta: ranks of the job that is only counted

  int rank() const { return world ? world->rank() : 0; }
  int size() const { return world ? world->size() : planned; }
  bool leads() const { return rank() == 0; }     // writes what is written once a job
  void says(const std::string& what) const {
    if (note) note(what);
  }
};

}  // namespace deltron
