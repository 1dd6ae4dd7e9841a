// What this machine reaches at best, measured in this process: copies on the device, copies to and from host memory, matrix products.
#pragma once

#include "src/tensor/context.h"
#include "tools/bench/work.h"

namespace deltron::tools {

// Bytes a second of a large copy on the device, those read and those written counted.
double measure_copy(Context& ctx);
// The best of both; the products are fp32 on the CPU and bf16 on cuda whatever is measured against them.
Ceilings measure_ceilings(Context& ctx);

// Bytes a second of copies of activation offload, each way alone, on the context's copy streams.
struct HostLink {
  double out = 0, in = 0;
};
HostLink measure_host_link(Context& ctx);

// Bytes of the last-level cache that inputs have to be rotated past.
std::int64_t cache_bytes(Context& ctx);
std::string device_text(Context& ctx);  // "NVIDIA H200", or the processor's name

}  // namespace deltron::tools
