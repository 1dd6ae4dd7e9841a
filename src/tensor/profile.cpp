// See profile.h.
#include "src/tensor/profile.h"

#include <algorithm>
#include <map>

#include "src/base/check.h"
#include "src/tensor/cuda_device.h"

namespace deltron {
namespace {

bool is_phase(RangeKind kind) {
  return kind == RangeKind::Forward || kind == RangeKind::Backward || kind == RangeKind::Replay || kind == RangeKind::Optimizer;
}

// "backward, layer 3, gdn_qkv: l2_norm"
std::string full_name(const RecordedRange& range) {
  std::string text;
  if (range.phase != RangeKind::Step && range.phase != range.kind) text = std::string(range_kind_name(range.phase)) + ", ";
  if (range.layer >= 0) text += "layer " + std::to_string(range.layer) + ", ";
  if (range.kind == RangeKind::Replay) text += "replay of ";
  text += range.name;
  if (!range.operation.empty()) text += ": " + range.operation;
  return text;
}

double length(const Span& span) { return span.end - span.begin; }
const std::optional<Span>& time_of(const RecordedRange& range) { return range.device ? range.device : range.host; }

}  // namespace

const char* range_kind_name(RangeKind kind) {
  switch (kind) {
    case RangeKind::Step: return "step";
    case RangeKind::MicroBatch: return "micro-batch";
    case RangeKind::Forward: return "forward";
    case RangeKind::Backward: return "backward";
    case RangeKind::Replay: return "replay";
    case RangeKind::Part: return "region";
    case RangeKind::Offload: return "offload";
    case RangeKind::Optimizer: return "optimizer";
    case RangeKind::Communication: return "communication";
  }
  return "";
}

namespace {

// The device has nothing left to do where its clock begins.
Context& idle(Context& ctx) {
  ctx.synchronize();
  return ctx;
}

}  // namespace

RangeRecorder::RangeRecorder(Context& ctx)
    : ctx_(idle(ctx)), device_marks_(ctx.device() == DeviceKind::Cuda), host_zero_(TimeMark::now()), device_zero_(ctx.compute_mark()) {}

RangeRecorder::~RangeRecorder() = default;

void RangeRecorder::begin(RangeKind kind, const char* name, int layer, const char* operation) {
  RecordedRange range;
  range.kind = kind;
  range.name = name;
  range.operation = operation;
  range.layer = layer;
  range.parent = open_.empty() ? -1 : open_.back();
  range.phase = is_phase(kind) || range.parent < 0 ? kind : ranges_[static_cast<std::size_t>(range.parent)].phase;
  if (!is_phase(range.phase)) range.phase = RangeKind::Step;
  push_profiler_range(full_name(range).c_str());
  range.host = Span{TimeMark::now().seconds_after(host_zero_), 0};
  open_.push_back(static_cast<int>(ranges_.size()));
  ranges_.push_back(std::move(range));
  marks_.emplace_back();
  if (device_marks_) {
    const TimeMark mark = ctx_.compute_mark();
    marks_.back() = Marks{mark, mark};
  }
}

void RangeRecorder::end() {
  DELTRON_CHECK(!open_.empty(), "the end of a range that never began");
  const auto index = static_cast<std::size_t>(open_.back());
  open_.pop_back();
  if (marks_[index]) marks_[index]->end = ctx_.compute_mark();
  ranges_[index].host->end = TimeMark::now().seconds_after(host_zero_);
  pop_profiler_range();
}

void RangeRecorder::copied(RangeLane lane, const std::string& name, int layer, const TimeMark& before, const TimeMark& after) {
  RecordedRange range;
  range.kind = RangeKind::Offload;
  range.lane = lane;
  range.name = name;
  range.layer = layer;
  ranges_.push_back(std::move(range));
  marks_.push_back(Marks{before, after});
}

void RangeRecorder::finish() {
  DELTRON_CHECK(open_.empty(), "range '", open_.empty() ? "" : ranges_[static_cast<std::size_t>(open_.back())].name, "' is still open");
  ctx_.synchronize();
  const TimeMark& zero = device_marks_ ? device_zero_ : host_zero_;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (marks_[i]) ranges_[i].device = Span{marks_[i]->begin.seconds_after(zero), marks_[i]->end.seconds_after(zero)};
  }
  marks_.clear();
  finished_ = true;
}

std::vector<RangeTotal> self_times(const std::vector<RecordedRange>& ranges) {
  std::map<std::pair<std::string, std::string>, RangeTotal> totals;
  std::vector<double> inside(ranges.size(), 0.0);
  for (const RecordedRange& range : ranges) {
    if (range.parent >= 0) inside[static_cast<std::size_t>(range.parent)] += length(*time_of(range));
  }
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const RecordedRange& range = ranges[i];
    const bool copy = range.lane != RangeLane::Compute;
    // Ranges of single steps and micro-batches are told apart in the trace, not here.
    const bool numbered = range.kind == RangeKind::Step || range.kind == RangeKind::MicroBatch;
    const std::string phase = copy ? (range.lane == RangeLane::CopyOut ? "copy to host" : "copy to device") : range_kind_name(range.phase);
    const std::string name = numbered ? range_kind_name(range.kind) : range.name;
    RangeTotal& total = totals[{phase, name}];
    total.phase = phase;
    total.name = name;
    total.copy = copy;
    total.count++;
    total.seconds += length(*time_of(range)) - inside[i];
  }
  std::vector<RangeTotal> rows;
  for (const auto& [key, total] : totals) rows.push_back(total);
  std::stable_sort(rows.begin(), rows.end(), [](const RangeTotal& a, const RangeTotal& b) {
    return a.copy != b.copy ? b.copy : a.seconds > b.seconds;
  });
  return rows;
}

}  // namespace deltron
