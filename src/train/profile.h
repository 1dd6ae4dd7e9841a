// Recorded steps of a run: when recording begins and ends, and the Chrome-trace file (chrome://tracing, Perfetto) that it becomes.
// Must not know the loop.
#pragma once

#include <string>

#include "src/config/run_config.h"
#include "src/tensor/profile.h"

namespace deltron {

inline constexpr const char* kProfileFolder = "profile";

class StepProfile {
 public:
  StepProfile(const LoggingConfig& config, std::string run) : config_(config), run_(std::move(run)) {}

  // `step`: the next one to run. Before begin() every earlier step has been read.
  bool begins_with(std::int64_t step) const { return config_.profile && step == config_.profile_step_start + 1; }
  bool ends_with(std::int64_t step) const { return recording_ && step == config_.profile_step_end; }
  bool recording() const { return recording_; }
  // The next step of a run that goes on at `done` lies behind the beginning: nothing will be recorded.
  bool missed(std::int64_t done) const { return config_.profile && done > config_.profile_step_start; }

  void begin(Context& ctx);
  // Waits for the device, writes the file `path`, and says where it is and where the time went, a line each. `last_step`: the last one
  // that was read; a run that is stopped has fewer steps than it was to record.
  std::vector<std::string> end(Context& ctx, std::int64_t last_step, std::string& path);

 private:
  LoggingConfig config_;
  std::string run_;
  bool recording_ = false;
};

struct TraceInfo {
  std::int64_t first_step = 0, last_step = 0;
  DeviceKind device = DeviceKind::Cpu;
};
// {"traceEvents": [complete events in microseconds, one thread a lane], "deltron": {steps, device, self_times}}.
std::string trace_json(const std::vector<RecordedRange>& ranges, const TraceInfo& info);
// Shares of self_times(), the largest first, and the copies.
std::vector<std::string> self_time_lines(const std::vector<RecordedRange>& ranges);

}  // namespace deltron
