// See kernel_report.h.
#include "tools/bench/kernel_report.h"

#include <algorithm>
#include <ostream>

#include "src/base/signals.h"
#include "tools/bench/columns.h"

namespace deltron::tools {

KernelResult run_case(Context& ctx, const KernelCase& one, const KernelRun& run) {
  constexpr std::int64_t kMostSets = 256;
  poll_stop("the benchmark");
  KernelResult result{one.family, one.name, one.shape, one.kernel, one.work, {}, 0};
  {
    CaseMemory memory(ctx);
    std::vector<std::function<void()>> sets = {one.make(memory)};
    const std::int64_t bytes = std::max<std::int64_t>(memory.bytes(), 1);
    const std::int64_t wanted = std::clamp<std::int64_t>((2 * run.cache_bytes + bytes - 1) / bytes, 2, kMostSets);
    while (static_cast<std::int64_t>(sets.size()) < wanted) sets.push_back(one.make(memory));
    ctx.synchronize();
    result.sets = wanted;
    result.timing = measure(ctx, sets, run.repeats);
  }
  ctx.memory()->release_cached();
  return result;
}

nlohmann::ordered_json to_json(const KernelBench& bench) {
  nlohmann::ordered_json json;
  json["device"] = bench.device;
  json["dtype"] = dtype_name(bench.dtype);
  const KernelSizes& s = bench.sizes;
  json["sizes"] = {{"tokens", s.tokens},         {"documents", s.documents}, {"hidden", s.hidden},           {"ffn", s.ffn},
                   {"vocab", s.vocab},           {"key_heads", s.key_heads}, {"value_heads", s.value_heads}, {"key_dim", s.key_dim},
                   {"value_dim", s.value_dim},   {"conv_kernel", s.conv_kernel}, {"query_heads", s.query_heads}, {"kv_heads", s.kv_heads},
                   {"head_dim", s.head_dim},     {"rotary_dim", s.rotary_dim}};
  json["ceilings"] = {{"copy_bytes_per_second", bench.ceilings.copy}, {"flops_per_second", bench.ceilings.products}};
  json["cache_bytes"] = bench.cache_bytes;
  json["cases"] = nlohmann::ordered_json::array();
  for (const KernelResult& result : bench.results) {
    const double seconds = result.timing.seconds.median;
    nlohmann::ordered_json one;
    one["family"] = result.family;
    one["name"] = result.name;
    one["shape"] = result.shape;
    if (!result.kernel.empty()) one["kernel"] = result.kernel;
    one["microseconds"] = spread_json(result.timing.seconds, 1e6);
    one["timed_by"] = result.timing.method;
    one["sets"] = result.sets;
    one["bytes"] = result.work.bytes;
    one["flops"] = result.work.flops;
    one["bytes_per_second"] = result.work.bytes / seconds;
    one["flops_per_second"] = result.work.flops / seconds;
    one["bound_by"] = result.work.bound_by_flops(bench.ceilings) ? "flops" : "bytes";
    one["share_of_ceiling"] = result.work.seconds(bench.ceilings) / seconds;
    json["cases"].push_back(one);
  }
  return json;
}

void write_table(std::ostream& out, const KernelBench& bench) {
  out << bench.device << ", " << dtype_name(bench.dtype) << "; ceilings: copy " << human_bytes(static_cast<std::uint64_t>(bench.ceilings.copy))
      << "/s, products " << human_count(bench.ceilings.products) << "FLOP/s; inputs rotated past "
      << human_bytes(static_cast<std::uint64_t>(bench.cache_bytes)) << " of cache\n";
  std::size_t names = 6, shapes = 6;
  for (const KernelResult& result : bench.results) {
    names = std::max(names, result.name.size());
    shapes = std::max(shapes, result.shape.size());
  }
  out << left("kernel", names + 2) << left("shape", shapes + 2) << "    median us  (p10 to p90)            GB    GFLOP      GB/s   TFLOP/s  of the ceiling\n";
  for (const KernelResult& result : bench.results) {
    const Spread& t = result.timing.seconds;
    const Work& work = result.work;
    const std::string spread = "(" + fixed(1e6 * t.p10, 1) + " to " + fixed(1e6 * t.p90, 1) + ")";
    out << left(result.name, names + 2) << left(result.shape, shapes + 2) << right(fixed(1e6 * t.median, 1), 13) << "  " << left(spread, 22)
        << right(fixed(work.bytes / 1e9, 4), 8) << right(fixed(work.flops / 1e9, 2), 9) << right(fixed(work.bytes / t.median / 1e9, 1), 10)
        << right(fixed(work.flops / t.median / 1e12, 3), 10) << right(fixed(100 * work.seconds(bench.ceilings) / t.median, 1), 8) << " % of "
        << (work.bound_by_flops(bench.ceilings) ? "products" : "copy") << ", by " << result.timing.method;
    if (!result.kernel.empty()) out << ", " << result.kernel;
    out << "\n";
  }
}

}  // namespace deltron::tools
