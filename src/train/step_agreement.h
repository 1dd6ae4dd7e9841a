// What all ranks have to know before a step: how many tokens of the whole global batch count in the loss, and whether the job stops
// instead. Asked for while the step before it runs, so that no device waits for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/train/step.h"

namespace deltron {

struct AgreedStep {
  BatchCounts counts;  // of the global batch, all ranks together
  std::string stop;  // why the job stops before this step; "": it goes on
};

class StepAgreement {
 public:
  explicit StepAgreement(HostChannel& channel) : channel_(channel) {}
  // `mine`: of this rank's own micro-batches. `copies`: ranks that hold the same ones (tp x cp), so that each is counted once. A stop
  // signal that has arrived here, or `limit_reached` on rank 0, stops all.
  void begin(const BatchCounts& mine, std::int64_t copies, bool limit_reached);
  AgreedStep finish();
  bool begun() const { return begun_; }

 private:
  HostChannel& channel_;
  bool begun_ = false;
};

// One agreed decision, at once: does any rank have a stop signal? Throws StopRequested on all of them.
void agree_on_stop(HostChannel& channel, const char* during);

}  // namespace deltron
