// See cuda_device.h: the CUDA run-time library behind it.
#include "src/tensor/cuda_device.h"

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/cuda/error.h"
#include "src/base/build_options.h"
#include "src/base/check.h"

namespace deltron {
namespace {

void check(cudaError_t status, const char* what) { kernels::cuda::check_status(static_cast<int>(status), what); }
cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t as_event(void* event) { return static_cast<cudaEvent_t>(event); }

std::string version_text(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) cudaGetLastError();
  return value;
}

CudaDeviceInfo describe(int index) {
  CudaDeviceInfo info;
  info.index = index;
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, index) == cudaSuccess) {
    info.name = properties.name;
    info.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  }
  info.major = attribute(cudaDevAttrComputeCapabilityMajor, index);
  info.minor = attribute(cudaDevAttrComputeCapabilityMinor, index);
  info.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
  info.l2_bytes = attribute(cudaDevAttrL2CacheSize, index);
  info.shared_bytes_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
  info.clock_khz = attribute(cudaDevAttrClockRate, index);
  info.memory_clock_khz = attribute(cudaDevAttrMemoryClockRate, index);
  info.memory_bus_bits = attribute(cudaDevAttrGlobalMemoryBusWidth, index);
  char pci[32] = "";
  if (cudaDeviceGetPCIBusId(pci, sizeof(pci), index) == cudaSuccess) info.pci = pci;
  return info;
}

class CudaMemory : public RawMemory {
 public:
  void* allocate(std::int64_t bytes) override {
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(status, "device memory");
    return data;
  }
  // A process that is ending may have no driver left; there is nobody to tell then.
  void release(void* data, std::int64_t) override { cudaFree(data); }
  const char* name() const override { return "cuda"; }
};

class PinnedMemory : public RawMemory {
 public:
  void* allocate(std::int64_t bytes) override {
    void* data = nullptr;
    const cudaError_t status = cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(status, "pinned memory");
    return data;
  }
  void release(void* data, std::int64_t) override { cudaFreeHost(data); }
  const char* name() const override { return "pinned"; }
};

struct Delay {
  double seconds;
};
void CUDART_CB sleep_on_host(void* data) {
  const std::unique_ptr<Delay> delay(static_cast<Delay*>(data));
  std::this_thread::sleep_for(std::chrono::duration<double>(delay->seconds));
}

struct Landing {
  void* to;
  const void* from;
  std::size_t bytes;
};
void CUDART_CB land_on_host(void* data) {
  const std::unique_ptr<Landing> landing(static_cast<Landing*>(data));
  std::memcpy(landing->to, landing->from, landing->bytes);
}

}  // namespace

CudaStatus cuda_status() {
  CudaStatus status;
  status.built = true;
  cudaRuntimeGetVersion(&status.runtime_version);
  if (cudaDriverGetVersion(&status.driver_version) != cudaSuccess) status.driver_version = 0;
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  cudaGetLastError();
  const std::string needed = version_text(status.runtime_version);
  if (status.driver_version == 0) {
    status.problem = "no NVIDIA driver is installed";
    status.fix = "install the NVIDIA driver for CUDA " + needed + " or newer";
  } else if (found == cudaErrorInsufficientDriver) {
    status.problem = "the driver serves CUDA " + version_text(status.driver_version) + ", this build needs " + needed;
    status.fix = "install a newer NVIDIA driver";
  } else if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0)) {
    status.problem = "the driver sees no GPU";
    status.fix = "check CUDA_VISIBLE_DEVICES and nvidia-smi";
  } else if (found != cudaSuccess) {
    status.problem = std::string(cudaGetErrorString(found)) + " (" + cudaGetErrorName(found) + ")";
    status.fix = "check nvidia-smi";
  } else {
    for (int i = 0; i < count; ++i) status.devices.push_back(describe(i));
    status.usable = true;
  }
  return status;
}

void require_cuda() {
  const CudaStatus status = cuda_status();
  if (status.usable) return;
  throw Error(ErrorCode::DeviceUnavailable,
              ErrorText{"device cuda cannot be used", "training.device or --device", status.problem,
                        "a GPU, and a driver for CUDA " + version_text(status.runtime_version) + " or newer",
                        status.fix + ", or set training.device: cpu"});
}

void cuda_use_device(int index) {
  const CudaStatus status = cuda_status();
  if (index >= static_cast<int>(status.devices.size())) {
    throw Error(ErrorCode::DeviceUnavailable, ErrorText{"there is no GPU " + std::to_string(index), "this machine", std::to_string(status.devices.size()) + " visible",
                                                        "GPUs count from 0", "check nvidia-smi and CUDA_VISIBLE_DEVICES"});
  }
  check(cudaSetDevice(index), "choose the device");
}

void* cuda_make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  return stream;
}
void cuda_free_stream(void* stream) { cudaStreamDestroy(as_stream(stream)); }

void* cuda_make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  return event;
}
void cuda_free_event(void* event) { cudaEventDestroy(as_event(event)); }
void cuda_record(void* event, void* stream) { check(cudaEventRecord(as_event(event), as_stream(stream)), "event"); }
void cuda_stream_waits(void* stream, void* event) {
  check(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0), "wait for an event");
}

void* cuda_make_timed_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "event");
  return event;
}
double cuda_seconds_between(void* earlier, void* later) {
  check(cudaEventSynchronize(as_event(later)), "wait for an event");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, as_event(earlier), as_event(later)), "time between events");
  return static_cast<double>(milliseconds) / 1000;
}

bool cuda_event_complete(void* event) {
  const cudaError_t status = cudaEventQuery(as_event(event));
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(status, "event");
  return true;
}
void cuda_event_wait(void* event) { check(cudaEventSynchronize(as_event(event)), "wait for an event"); }
void cuda_stream_synchronize(void* stream) { check(cudaStreamSynchronize(as_stream(stream)), "work on the device"); }

void cuda_delay(void* stream, double seconds) {
  auto delay = std::make_unique<Delay>(Delay{seconds});
  check(cudaLaunchHostFunc(as_stream(stream), sleep_on_host, delay.get()), "delay");
  delay.release();
}

void cuda_copy(void* to, const void* from, std::int64_t bytes, void* stream) {
  if (bytes > 0) check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, as_stream(stream)), "copy");
}

void cuda_set_bytes(void* data, int value, std::int64_t bytes, void* stream) {
  if (bytes > 0) check(cudaMemsetAsync(data, value, static_cast<std::size_t>(bytes), as_stream(stream)), "fill");
}

void cuda_begin_capture(void* stream) {
  check(cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeThreadLocal), "begin of a graph");
}
void* cuda_end_capture(void* stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(as_stream(stream), &graph), "end of a graph");
  cudaGraphExec_t runnable = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&runnable, graph, 0);
  cudaGraphDestroy(graph);
  check(made, "graph");
  return runnable;
}
void cuda_launch_graph(void* graph, void* stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), as_stream(stream)), "launch of a graph");
}
void cuda_free_graph(void* graph) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); }

void push_profiler_range(const char* name) { nvtxRangePushA(name); }
void pop_profiler_range() { nvtxRangePop(); }
// Without a driver there is nothing to look at, and the error has no reader.
void start_profiler_window() {
  if (cudaProfilerStart() != cudaSuccess) cudaGetLastError();
}
void stop_profiler_window() {
  if (cudaProfilerStop() != cudaSuccess) cudaGetLastError();
}

std::unique_ptr<RawMemory> make_cuda_memory() { return std::make_unique<CudaMemory>(); }
std::unique_ptr<RawMemory> make_pinned_memory() { return std::make_unique<PinnedMemory>(); }

CudaTransfers::~CudaTransfers() {
  for (Slot& slot : slots_) {
    if (slot.in_flight) cudaEventSynchronize(as_event(slot.event));
    if (slot.event != nullptr) cudaEventDestroy(as_event(slot.event));
    if (slot.data != nullptr) cudaFreeHost(slot.data);
  }
}

CudaTransfers::Slot& CudaTransfers::next_slot(std::int64_t bytes, std::int64_t& waits) {
  if (slots_.empty()) slots_.resize(kSlots);
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % kSlots;
  if (slot.event == nullptr) slot.event = cuda_make_event();
  if (slot.in_flight && !cuda_event_complete(slot.event)) {
    cuda_event_wait(slot.event);
    ++waits;
  }
  slot.in_flight = true;
  if (slot.bytes < bytes) {
    if (slot.data != nullptr) check(cudaFreeHost(slot.data), "pinned memory");
    slot.data = nullptr;
    slot.bytes = 4096;
    while (slot.bytes < bytes) slot.bytes *= 2;
    check(cudaHostAlloc(&slot.data, static_cast<std::size_t>(slot.bytes), cudaHostAllocPortable), "pinned memory for copies");
  }
  return slot;
}

std::int64_t CudaTransfers::upload(void* to, const void* from, std::int64_t bytes, void* stream) {
  std::int64_t waits = 0;
  for (std::int64_t done = 0; done < bytes; done += kMostBytes) {
    const std::int64_t part = std::min(kMostBytes, bytes - done);
    Slot& slot = next_slot(part, waits);
    std::memcpy(slot.data, static_cast<const char*>(from) + done, static_cast<std::size_t>(part));
    cuda_copy(static_cast<char*>(to) + done, slot.data, part, stream);
    cuda_record(slot.event, stream);
  }
  return waits;
}

std::int64_t CudaTransfers::download_later(void* to, const void* from, std::int64_t bytes, void* stream) {
  std::int64_t waits = 0;
  for (std::int64_t done = 0; done < bytes; done += kMostBytes) {
    const std::int64_t part = std::min(kMostBytes, bytes - done);
    Slot& slot = next_slot(part, waits);
    cuda_copy(slot.data, static_cast<const char*>(from) + done, part, stream);
    auto landing = std::make_unique<Landing>(Landing{static_cast<char*>(to) + done, slot.data, static_cast<std::size_t>(part)});
    check(cudaLaunchHostFunc(as_stream(stream), land_on_host, landing.get()), "copy to the host");
    landing.release();
    cuda_record(slot.event, stream);
  }
  return waits;
}

}  // namespace deltron
