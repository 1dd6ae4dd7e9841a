// See measure.h.
#include "tools/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "src/base/check.h"
#include "src/tensor/cuda_device.h"

namespace deltron::tools {
namespace {

using Clock = std::chrono::steady_clock;
using Sets = std::vector<std::function<void()>>;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Timing by_clock(const Sets& sets, std::int64_t repeats) {
  constexpr double kLeast = 200e-6;
  std::size_t next = 0;
  const auto call = [&] { sets[next++ % sets.size()](); };
  for (std::size_t i = 0; i < sets.size(); ++i) call();  // touches all memory
  const auto start = Clock::now();
  call();
  const double once = std::max(since(start), 1e-9);
  const auto calls = static_cast<std::int64_t>(std::clamp(std::ceil(kLeast / once), 1.0, 1000.0));
  std::vector<double> samples;
  for (std::int64_t i = 0; i < repeats; ++i) {
    const auto begin = Clock::now();
    for (std::int64_t k = 0; k < calls; ++k) call();
    samples.push_back(since(begin) / static_cast<double>(calls));
  }
  return {spread_of(std::move(samples)), "clock"};
}

// The device is given everything at once and is never idle between calls, so that the events are apart by the calls alone.
std::vector<double> between_events(Context& ctx, std::int64_t warm_up, std::int64_t repeats, const std::function<void()>& call) {
  for (std::int64_t i = 0; i < warm_up; ++i) call();
  std::vector<TimeMark> marks = {ctx.compute_mark()};
  for (std::int64_t i = 0; i < repeats; ++i) {
    call();
    marks.push_back(ctx.compute_mark());
  }
  ctx.synchronize();
  std::vector<double> samples;
  for (std::size_t i = 1; i < marks.size(); ++i) samples.push_back(marks[i].seconds_after(marks[i - 1]));
  return samples;
}

class Graph {
 public:
  Graph(Context& ctx, const std::function<void()>& work) : stream_(ctx.stream().native) {
    cuda_begin_capture(stream_);
    work();
    graph_ = cuda_end_capture(stream_);
  }
  ~Graph() { cuda_free_graph(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() const { cuda_launch_graph(graph_, stream_); }

 private:
  void* stream_;
  void* graph_ = nullptr;
};

Timing by_events(Context& ctx, const Sets& sets, std::int64_t repeats) {
  std::size_t next = 0;
  const auto call = [&] { sets[next++ % sets.size()](); };
  for (std::size_t i = 0; i < sets.size(); ++i) call();
  // Clocks follow the power that a kernel draws, within some tens of milliseconds: what ran before is not to count.
  constexpr double kSettled = 0.05;
  const auto start = Clock::now();
  Spread first;
  do first = spread_of(between_events(ctx, 0, 5, call));
  while (since(start) < kSettled);
  if (first.median >= kGraphBelow) return {spread_of(between_events(ctx, 1, repeats, call)), "events"};
  const auto wanted = static_cast<std::int64_t>(std::ceil(2 * kGraphBelow / std::max(first.median, 1e-6)));
  const auto rounds = (wanted + static_cast<std::int64_t>(sets.size()) - 1) / static_cast<std::int64_t>(sets.size());
  const std::int64_t calls = rounds * static_cast<std::int64_t>(sets.size());
  const Graph graph(ctx, [&] {
    for (std::int64_t i = 0; i < calls; ++i) call();
  });
  std::vector<double> samples = between_events(ctx, 2, repeats, [&] { graph.launch(); });
  for (double& sample : samples) sample /= static_cast<double>(calls);
  return {spread_of(std::move(samples)), "graph"};
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  DELTRON_CHECK(!values.empty(), "the spread of no samples");
  std::sort(values.begin(), values.end());
  // Nearest rank.
  const auto at = [&](double share) {
    const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<std::size_t>(rank, 1) - 1];
  };
  const std::size_t half = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, at(0.1), at(0.9), values.front(), values.back(), static_cast<std::int64_t>(values.size())};
}

nlohmann::ordered_json spread_json(const Spread& spread, double factor) {
  return {{"median", factor * spread.median}, {"p10", factor * spread.p10},         {"p90", factor * spread.p90},
          {"fastest", factor * spread.fastest}, {"slowest", factor * spread.slowest}, {"samples", spread.samples}};
}

Timing measure(Context& ctx, const Sets& sets, std::int64_t repeats) {
  DELTRON_CHECK(!sets.empty() && repeats > 0, "nothing to measure");
  return ctx.device() == DeviceKind::Cuda ? by_events(ctx, sets, repeats) : by_clock(sets, repeats);
}

}  // namespace deltron::tools
