// See ceilings.h.
#include "tools/bench/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "src/base/cpu_info.h"
#include "src/base/file.h"
#include "src/tensor/cuda_device.h"
#include "src/tensor/ops.h"
#include "src/train/reporter.h"

namespace deltron::tools {

double measure_copy(Context& ctx) {
  const std::int64_t count = ctx.device() == DeviceKind::Cuda ? std::int64_t{1} << 28 : std::int64_t{1} << 24;
  double best = 0;
  {
    const Tensor from = Tensor::zeros(ctx, {count}, DType::F32, "copy", MemoryTag::Workspace);
    const Tensor to = Tensor::zeros(ctx, {count}, DType::F32, "copy", MemoryTag::Workspace);
    for (int i = 0; i < 10; ++i) {
      ctx.synchronize();
      const auto start = std::chrono::steady_clock::now();
      convert(ctx, from, to);
      ctx.synchronize();
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      best = std::max(best, 2.0 * static_cast<double>(from.bytes()) / seconds);
    }
  }
  ctx.memory()->release_cached();
  return best;
}

Ceilings measure_ceilings(Context& ctx) {
  Ceilings ceilings;
  ceilings.copy = measure_copy(ctx);
  ceilings.products = measure_matmul_ceiling(ctx);
  return ceilings;
}

HostLink measure_host_link(Context& ctx) {
  constexpr std::int64_t kBytes = std::int64_t{1} << 26;
  HostLink link;
  void* const host = ctx.host_memory()->allocate(kBytes, MemoryTag::Activations, {});
  {
    const Tensor device = Tensor::zeros(ctx, {kBytes}, DType::U8, "link", MemoryTag::Workspace);
    ctx.synchronize();
    const auto best_of = [&](Stream& stream, void* to, const void* from) {
      double best = 0;
      for (int i = 0; i < 6; ++i) {
        const TimeMark before = stream.mark();
        stream.copy(to, from, kBytes);
        const TimeMark after = stream.mark();
        stream.synchronize();
        best = std::max(best, static_cast<double>(kBytes) / after.seconds_after(before));
      }
      return best;
    };
    link.out = best_of(ctx.copy_out_stream(), host, device.data());
    link.in = best_of(ctx.copy_in_stream(), device.data(), host);
  }
  ctx.host_memory()->release(host, kBytes, MemoryTag::Activations, {});
  ctx.memory()->release_cached();
  ctx.host_memory()->release_cached();
  return link;
}

std::int64_t cache_bytes(Context& ctx) {
  if (ctx.device() == DeviceKind::Cuda) {
    for (const CudaDeviceInfo& device : cuda_status().devices) return device.l2_bytes;
  }
  constexpr std::int64_t kUsual = std::int64_t{32} << 20;
  const std::string path = "/sys/devices/system/cpu/cpu0/cache/index3/size";  // "32768K"
  if (!file_exists(path)) return kUsual;
  const std::int64_t kilobytes = std::atoll(read_file(path).c_str());
  return kilobytes > 0 ? kilobytes << 10 : kUsual;
}

std::string device_text(Context& ctx) {
  if (ctx.device() == DeviceKind::Cuda) {
    for (const CudaDeviceInfo& device : cuda_status().devices) return device.name;
  }
  return cpu_model_name();
}

}  // namespace deltron::tools
