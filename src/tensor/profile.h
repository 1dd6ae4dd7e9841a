// Named ranges of a rank's work with their times: steps, forward and backward, regions of layers, replays, copies, the optimizer. Kept by
// the context while Context::start_recording() is on; each is also a range for nsys and ncu (NVTX). On the CPU the times are the host's;
// on cuda the host's (launching) and the device's, by events on its streams, without a wait. Must not know layers nor files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/tensor/context.h"

namespace deltron {

enum class RangeKind { Step, MicroBatch, Forward, Backward, Replay, Part, Offload, Optimizer, Communication };
const char* range_kind_name(RangeKind kind);

// Where work runs: the calling thread with the compute stream, or one of the copy streams.
enum class RangeLane { Compute, CopyOut, CopyIn };

struct Span {
  double begin = 0, end = 0;  // seconds since the recording began
};

struct RecordedRange {
  RangeKind kind = RangeKind::Part;
  RangeKind phase = RangeKind::Step;  // of the nearest forward, backward, replay or optimizer around it, or itself; Step: none
  RangeLane lane = RangeLane::Compute;
  std::string name, operation;
  int layer = -1;
  int parent = -1;             // index of the range around it
  std::optional<Span> host;    // compute lane
  std::optional<Span> device;  // on cuda, and of copies
};

class RangeRecorder {
 public:
  explicit RangeRecorder(Context& ctx);  // waits for the device: both clocks begin here
  ~RangeRecorder();
  RangeRecorder(const RangeRecorder&) = delete;
  RangeRecorder& operator=(const RangeRecorder&) = delete;

  void begin(RangeKind kind, const char* name, int layer, const char* operation);
  void end();  // the innermost
  // A copy on another stream: the name, and the marks around it.
  void copied(RangeLane lane, const std::string& name, int layer, const TimeMark& before, const TimeMark& after);

  // Waits for the device and reads the marks. Nothing begins after it.
  void finish();
  bool finished() const { return finished_; }
  const std::vector<RecordedRange>& ranges() const { return ranges_; }

 private:
  struct Marks {
    TimeMark begin, end;
  };
  Context& ctx_;
  bool device_marks_;
  bool finished_ = false;
  TimeMark host_zero_, device_zero_;
  std::vector<RecordedRange> ranges_;
  std::vector<std::optional<Marks>> marks_;  // of the device, read at the end
  std::vector<int> open_;
};

// A range that is no region of a layer; `name` is read at once.
class ProfileRange {
 public:
  ProfileRange(Context& ctx, RangeKind kind, const char* name) : ctx_(ctx), active_(ctx.ranges() != nullptr) {
    if (active_) ctx.ranges()->begin(kind, name, ctx.scope().layer, "");
  }
  ~ProfileRange() {
    if (active_ && ctx_.ranges() != nullptr) ctx_.ranges()->end();
  }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  Context& ctx_;
  bool active_;
};

// Times spent in ranges themselves, without those inside them, summed by phase and name. The sum over all rows is the sum over the
// outermost ranges. Device times where there are any, else the host's; copies beside compute are rows of their own, in no sum.
struct RangeTotal {
  std::string phase, name;
  bool copy = false;
  std::int64_t count = 0;
  double seconds = 0;
};
std::vector<RangeTotal> self_times(const std::vector<RecordedRange>& ranges);  // longest first, copies last

}  // namespace deltron
