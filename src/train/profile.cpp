// See profile.h.
#include "src/train/profile.h"

#include <nlohmann/json.hpp>

#include "src/base/file.h"
#include "src/base/human.h"
#include "src/tensor/cuda_device.h"

namespace deltron {
namespace {

using nlohmann::ordered_json;

// Threads of the trace.
enum Row { kHost = 1, kDevice = 2, kCopyOut = 3, kCopyIn = 4 };

std::string label(const RecordedRange& range) {
  std::string text = range.name;
  if (range.kind == RangeKind::Replay) text = "replay of " + text;
  if (range.layer >= 0) text += " (layer " + std::to_string(range.layer) + ")";
  if (!range.operation.empty()) text += ": " + range.operation;
  return text;
}

ordered_json event(const RecordedRange& range, const Span& span, Row row) {
  ordered_json one = {{"name", label(range)}, {"cat", range_kind_name(range.kind)}, {"ph", "X"}, {"ts", 1e6 * span.begin},
                      {"dur", 1e6 * (span.end - span.begin)}, {"pid", 1}, {"tid", static_cast<int>(row)}};
  one["args"] = {{"phase", range_kind_name(range.phase)}, {"region", range.name}, {"layer", range.layer}, {"operation", range.operation}};
  return one;
}

ordered_json row_name(Row row, const char* name) {
  return {{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", static_cast<int>(row)}, {"args", {{"name", name}}}};
}

}  // namespace

std::string trace_json(const std::vector<RecordedRange>& ranges, const TraceInfo& info) {
  ordered_json events = ordered_json::array();
  events.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", "deltron"}}}});
  events.push_back(row_name(kHost, "host"));
  if (info.device == DeviceKind::Cuda) events.push_back(row_name(kDevice, "device, compute"));
  bool copies = false;
  for (const RecordedRange& range : ranges) {
    copies = copies || range.lane != RangeLane::Compute;
    if (range.host) events.push_back(event(range, *range.host, kHost));
    const Row row = range.lane == RangeLane::CopyOut ? kCopyOut : range.lane == RangeLane::CopyIn ? kCopyIn : kDevice;
    if (range.device) events.push_back(event(range, *range.device, row));
  }
  if (copies) {
    events.push_back(row_name(kCopyOut, "copies to the host"));
    events.push_back(row_name(kCopyIn, "copies to the device"));
  }
  ordered_json totals = ordered_json::array();
  for (const RangeTotal& total : self_times(ranges)) {
    totals.push_back({{"phase", total.phase}, {"name", total.name}, {"count", total.count}, {"ms", 1e3 * total.seconds}, {"copy", total.copy}});
  }
  ordered_json trace;
  trace["displayTimeUnit"] = "ms";
  trace["deltron"] = {{"first_step", info.first_step}, {"last_step", info.last_step}, {"device", device_name(info.device)}, {"self_times", totals}};
  trace["traceEvents"] = std::move(events);
  return trace.dump() + "\n";
}

std::vector<std::string> self_time_lines(const std::vector<RecordedRange>& ranges) {
  constexpr std::size_t kMostLines = 16;
  const std::vector<RangeTotal> rows = self_times(ranges);
  double whole = 0, shown = 0;
  for (const RangeTotal& row : rows) whole += row.copy ? 0 : row.seconds;
  std::vector<std::string> lines;
  for (const RangeTotal& row : rows) {
    if (row.copy || lines.size() >= kMostLines) continue;
    shown += row.seconds;
    lines.push_back(row.phase + ", " + row.name + ": " + fixed(1e3 * row.seconds, 2) + " ms, " + fixed(100 * row.seconds / whole, 1) + " %");
  }
  if (whole - shown > 1e-3 * whole) {
    lines.push_back("everything else: " + fixed(1e3 * (whole - shown), 2) + " ms, " + fixed(100 * (whole - shown) / whole, 1) + " %");
  }
  for (const RangeTotal& row : rows) {
    if (row.copy) lines.push_back("beside it, " + row.phase + ", " + row.name + ": " + fixed(1e3 * row.seconds, 2) + " ms");
  }
  return lines;
}

void StepProfile::begin(Context& ctx) {
  ctx.start_recording();
  start_profiler_window();
  recording_ = true;
}

std::vector<std::string> StepProfile::end(Context& ctx, std::int64_t last_step, std::string& path) {
  recording_ = false;
  const std::unique_ptr<RangeRecorder> recorder = ctx.stop_recording();
  stop_profiler_window();
  const std::string folder = join_path(run_, kProfileFolder);
  make_directories(folder);
  path = join_path(folder, "steps_" + std::to_string(config_.profile_step_start) + "_" + std::to_string(last_step) + ".json");
  write_file_atomically(path, trace_json(recorder->ranges(), {config_.profile_step_start + 1, last_step, ctx.device()}));
  std::vector<std::string> lines = {"profile of steps " + std::to_string(config_.profile_step_start + 1) + " to " + std::to_string(last_step) + ": " + path +
                                    " (chrome://tracing, ui.perfetto.dev). Without what lies inside, they took:"};
  for (const std::string& line : self_time_lines(recorder->ranges())) lines.push_back("  " + line);
  return lines;
}

}  // namespace deltron
