// `deltron train` as one rank of a job: from the launcher's variables to the ranks that the training loop sees, and what each rank says and
// returns when the job ends before its time.
#pragma once

#include <functional>
#include <memory>

#include "distributed/process_world.h"
#include "src/config/run_config.h"
#include "src/train/job_ranks.h"

namespace deltron::tools {

class TrainRanks {
 public:
  explicit TrainRanks(const RankEnvironment& place) : place_(place) {}
  bool several() const { return place_.world_size > 1; }
  const RankEnvironment& place() const { return place_; }

  // Meets the other ranks; those but the first are quiet from then on. Nothing for one rank.
  void meet(const RunConfig& config);
  JobRanks ranks() const;
  // Tests: "rank=1;at=step 3, backward;how=kill" (or sleep): what that rank does where it says so. "": nothing.
  void inject_fault(const std::string& text);
  // Runs `work`. What it throws is told to the other ranks; what was thrown because another rank failed says so.
  void run(const std::function<void()>& work);

 private:
  RankEnvironment place_;
  std::unique_ptr<ProcessWorld> world_;
  std::string fault_place_, fault_kind_;
};

}  // namespace deltron::tools
