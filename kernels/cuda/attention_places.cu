// See attention_places.h. One block walks the documents in order and counts those of the call's lengths by a scan: integers, in a
// fixed order.
#include "kernels/cuda/attention_places.h"

#include "kernels/cuda/common.cuh"

namespace deltron::kernels::cuda {
namespace {

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads) places_kernel(AttentionPlacesArgs a) {
  __shared__ int counts[kThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t entries = a.call.batch + 1;
  for (std::int64_t b = a.call.taken + threadIdx.x; b < entries; b += kThreads) {
    if (b < a.call.batch) a.lengths[b] = 0;
    for (std::int64_t j = 0; j < kFusedTensors; ++j) a.offsets[j * entries + b] = a.tokens * a.strides[j];
  }
  std::int64_t seen = 0;
  for (std::int64_t start = 0; start < a.documents.count && seen < a.call.first + a.call.taken; start += kThreads) {
    const std::int64_t n = start + threadIdx.x;
    std::int64_t begin = 0, length = 0;
    if (n < a.documents.count) {
      begin = a.documents.cu_seqlens[n];
      length = a.documents.cu_seqlens[n + 1] - begin;
    }
    const bool member = length > a.call.above && length <= a.call.length;
    const unsigned members = __ballot_sync(0xffffffffu, member);
    __syncthreads();
    if (lane == 0) counts[warp] = __popc(members);
    __syncthreads();
    std::int64_t before = seen;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) before += counts[w];
      seen += counts[w];
    }
    const std::int64_t b = before + __popc(members & ((1u << lane) - 1)) - a.call.first;
    if (member && b >= 0 && b < a.call.taken) {
      a.lengths[b] = static_cast<std::int32_t>(length);
      for (std::int64_t j = 0; j < kFusedTensors; ++j) a.offsets[j * entries + b] = begin * a.strides[j];
    }
  }
}

}  // namespace

void attention_places(const AttentionPlacesArgs& args, void* stream) {
  places_kernel<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(args);
  check_launch("attention_places");
}

}  // namespace deltron::kernels::cuda
