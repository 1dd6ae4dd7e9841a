// A CUDA device as the tensor layer sees it: is there one, its memory, streams, events, copies. No CUDA type shows here;
// cuda_device.cpp is the real one, cuda_device_absent.cpp serves builds without CUDA. Knows no tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/tensor/memory.h"

namespace deltron {

struct CudaDeviceInfo {
  int index = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0, free_bytes = 0, l2_bytes = 0, shared_bytes_per_block = 0;
  std::int64_t clock_khz = 0, memory_clock_khz = 0, memory_bus_bits = 0;
  std::string pci;
};

struct CudaStatus {
  bool built = false;        // this binary has CUDA code
  bool usable = false;       // and there is a device that it runs on
  std::string problem, fix;  // why not
  int driver_version = 0;    // as CUDA counts: 13000 is 13.0; 0: no driver
  int runtime_version = 0;   // what the binary was built with
  std::vector<CudaDeviceInfo> devices;
};

// Looks, changes nothing, never throws.
CudaStatus cuda_status();
// Throws ErrorCode::DeviceUnavailable, with the reason, unless the device can be used.
void require_cuda();
// Which device the calling thread means from now on. Throws ErrorCode::DeviceUnavailable where there are fewer.
void cuda_use_device(int index);

// Streams and events are native handles behind void*; every failure is thrown (kernels/cuda/error.h).
void* cuda_make_stream();
void cuda_free_stream(void* stream);
void* cuda_make_event();
void cuda_free_event(void* event);
void cuda_record(void* event, void* stream);
void cuda_stream_waits(void* stream, void* event);
bool cuda_event_complete(void* event);
void cuda_event_wait(void* event);              // blocks the calling thread
void cuda_stream_synchronize(void* stream);     // blocks the calling thread
void* cuda_make_timed_event();                  // freed as the others; recorded with its time
double cuda_seconds_between(void* earlier, void* later);  // two timed events; blocks until the later one has happened
void cuda_delay(void* stream, double seconds);  // later work on the stream starts that much later (tests of slow copies)
// Any two of: device memory, pinned host memory. Ordered on the stream; returns at once.
void cuda_copy(void* to, const void* from, std::int64_t bytes, void* stream);
void cuda_set_bytes(void* data, int value, std::int64_t bytes, void* stream);

// What a stream is given between begin and end runs only as a whole, by launching the graph, as often as wanted.
void cuda_begin_capture(void* stream);
void* cuda_end_capture(void* stream);
void cuda_launch_graph(void* graph, void* stream);
void cuda_free_graph(void* graph);

// Profiling by other programs (nsys, ncu): named ranges of the calling thread, and the window that `-c cudaProfilerApi` looks at. They do
// nothing where no such program runs, nor in a build without CUDA.
void push_profiler_range(const char* name);
void pop_profiler_range();
void start_profiler_window();
void stop_profiler_window();

std::unique_ptr<RawMemory> make_cuda_memory();    // cudaMalloc on the current device
std::unique_ptr<RawMemory> make_pinned_memory();  // host memory that copies run from and to asynchronously

// Small and large copies between the device and any host memory, through pinned slots, so that nobody waits unless the device is
// kSlots copies behind. Each call returns how often it had to wait.
class CudaTransfers {
 public:
  CudaTransfers() = default;
  ~CudaTransfers();
  CudaTransfers(const CudaTransfers&) = delete;
  CudaTransfers& operator=(const CudaTransfers&) = delete;
  // The caller's memory is free again when this returns.
  std::int64_t upload(void* to, const void* from, std::int64_t bytes, void* stream);
  // `to` is written when the stream comes there; it must live until then.
  std::int64_t download_later(void* to, const void* from, std::int64_t bytes, void* stream);

 private:
  static constexpr std::size_t kSlots = 64;
  static constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;  // of one slot; more is cut
  struct Slot {
    void* data = nullptr;
    std::int64_t bytes = 0;
    void* event = nullptr;
    bool in_flight = false;
  };
  Slot& next_slot(std::int64_t bytes, std::int64_t& waits);
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
};

}  // namespace deltron
