// See cuda_device.h: a build without CUDA. Everything but the question whether there is a device ends in the same error.
#include "src/base/check.h"
#include "src/tensor/cuda_device.h"

namespace deltron {
namespace {

constexpr const char* kProblem = "this build has no CUDA back end";
constexpr const char* kFix = "build with -DDELTRON_CUDA=ON where nvcc is installed";

[[noreturn]] void refuse() {
  throw Error(ErrorCode::DeviceUnavailable,
              ErrorText{"device cuda cannot be used", "training.device or --device", kProblem,
                        "a build with CUDA, a GPU and its driver", std::string(kFix) + ", or set training.device: cpu"});
}

}  // namespace

CudaStatus cuda_status() {
  CudaStatus status;
  status.problem = kProblem;
  status.fix = kFix;
  return status;
}
void require_cuda() { refuse(); }
void cuda_use_device(int) { refuse(); }
void* cuda_make_stream() { refuse(); }
void cuda_free_stream(void*) {}
void* cuda_make_event() { refuse(); }
void cuda_free_event(void*) {}
void cuda_record(void*, void*) { refuse(); }
void cuda_stream_waits(void*, void*) { refuse(); }
bool cuda_event_complete(void*) { refuse(); }
void cuda_event_wait(void*) { refuse(); }
void cuda_stream_synchronize(void*) { refuse(); }
void* cuda_make_timed_event() { refuse(); }
double cuda_seconds_between(void*, void*) { refuse(); }
void cuda_delay(void*, double) { refuse(); }
void cuda_begin_capture(void*) { refuse(); }
void* cuda_end_capture(void*) { refuse(); }
void cuda_launch_graph(void*, void*) { refuse(); }
void cuda_free_graph(void*) {}
void push_profiler_range(const char*) {}
void pop_profiler_range() {}
void start_profiler_window() {}
void stop_profiler_window() {}
void cuda_copy(void*, const void*, std::int64_t, void*) { refuse(); }
void cuda_set_bytes(void*, int, std::int64_t, void*) { refuse(); }
std::unique_ptr<RawMemory> make_cuda_memory() { refuse(); }
std::unique_ptr<RawMemory> make_pinned_memory() { refuse(); }
CudaTransfers::~CudaTransfers() = default;
std::int64_t CudaTransfers::upload(void*, const void*, std::int64_t, void*) { refuse(); }
std::int64_t CudaTransfers::download_later(void*, const void*, std::int64_t, void*) { refuse(); }

}  // namespace deltron
