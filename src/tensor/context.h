// Everything a rank owns: device, memory, pool, streams, seed, and typed slots that higher layers fill (autograd state,
// communicators, offload manager). There are no mutable globals, so several ranks can live as threads of one process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <typeindex>

#include "kernels/views.h"
#include "src/base/stream.h"
#include "src/base/thread_pool.h"
#include "src/tensor/memory.h"
#include "src/tensor/stream.h"

namespace deltron {

class CudaContext;
class RangeRecorder;

struct ContextOptions {
  DeviceKind device = DeviceKind::Cpu;
  DeviceKind planned_device = DeviceKind::Cpu;  // meta: whose workspaces are counted
  int device_index = 0;                         // cuda: which one
  int threads = 0;                              // 0: all cores this process may use
  bool pin_threads = true;
  std::int64_t memory_capacity = 0;             // bytes; 0: what the device has
  std::uint64_t seed = 1234;
};

class Context {
 public:
  explicit Context(const ContextOptions& options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  DeviceKind device() const { return options_.device; }
  bool is_meta() const { return options_.device == DeviceKind::Meta; }
  // The device whose kernels are run, or on meta: whose workspaces are counted.
  DeviceKind kernel_device() const { return is_meta() ? options_.planned_device : options_.device; }
  std::uint64_t seed() const { return options_.seed; }
  const ContextOptions& options() const { return options_; }

  ThreadPool& pool() { return *pool_; }
  StreamHandle stream();
  const std::shared_ptr<Allocator>& memory() const { return memory_; }
  const std::shared_ptr<Allocator>& host_memory() const { return host_memory_; }  // the host offload pool
  Stream& copy_out_stream();  // device to host, made on first use
  Stream& copy_in_stream();   // host to device

  // The point that compute has reached, and letting compute go on only after an event. On the CPU compute is the calling thread.
  Event compute_point();
  void compute_waits(const Event& event);
  // Bytes between the host and this context's device memory, in the order of compute. `upload` returns at once; `download` waits.
  void upload(void* to, const void* from, std::int64_t bytes);
  void download(void* to, const void* from, std::int64_t bytes);
  // Writes `to` when compute comes there, without a wait; complete with the event. `to` must live until then.
  Event download_later(void* to, const void* from, std::int64_t bytes);
  void set_bytes(void* data, int value, std::int64_t bytes);
  void synchronize();  // everything given to compute has run; faults of kernels are thrown here
  // How often the host has waited for the device. Zero on the CPU. A training step is to add nothing.
  std::int64_t host_synchronizations() const;

  // The same point with its time, for measurements.
  TimeMark compute_mark();

  const MemoryScope& scope() const { return scope_; }

  // Named ranges with their times (profile.h) are kept while recording; null: off, and then nothing is done for them.
  RangeRecorder* ranges() const { return ranges_.get(); }
  void start_recording();
  std::unique_ptr<RangeRecorder> stop_recording();

  // One object of type T for this rank, made on first use.
  template <class T>
  T& slot() {
    std::shared_ptr<void>& entry = slots_[std::type_index(typeid(T))];
    if (!entry) entry = std::make_shared<T>();
    return *static_cast<T*>(entry.get());
  }

 private:
  friend class ScopeGuard;
  ContextOptions options_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<CudaContext> cuda_;  // null but on cuda
  std::shared_ptr<Allocator> memory_;
  std::shared_ptr<Allocator> host_memory_;
  std::unique_ptr<Stream> copy_out_;
  std::unique_ptr<Stream> copy_in_;
  MemoryScope scope_;
  std::unique_ptr<RangeRecorder> ranges_;
  std::map<std::type_index, std::shared_ptr<void>> slots_;
};

// The instruction set that the CPU kernels chose: bits depend on it, so every run records it.
const char* instruction_set();

// Allocations below this guard are counted under (layer, region); while ranges are recorded it is one of them. `region` must be a string
// literal. `operation`, for the range: what of the region runs here.
class ScopeGuard {
 public:
  ScopeGuard(Context& ctx, int layer, const char* region, const char* operation = "") : ctx_(ctx), before_(ctx.scope_) {
    ctx.scope_ = {layer, region};
    if (ctx.ranges_) begin_range(operation);
  }
  ScopeGuard(Context& ctx, const char* region) : ScopeGuard(ctx, ctx.scope_.layer, region) {}
  ~ScopeGuard() {
    if (in_range_) end_range();
    ctx_.scope_ = before_;
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  void begin_range(const char* operation);
  void end_range();
  Context& ctx_;
  MemoryScope before_;
  bool in_range_ = false;
};

// Workspace for one kernel call, counted; released at the end of the scope.
class WorkspaceLease {
 public:
  WorkspaceLease(Context& ctx, std::int64_t bytes);
  ~WorkspaceLease();
  WorkspaceLease(const WorkspaceLease&) = delete;
  WorkspaceLease& operator=(const WorkspaceLease&) = delete;
  kernels::Workspace workspace() const { return {data_, bytes_}; }

 private:
  std::shared_ptr<Allocator> memory_;
  void* data_ = nullptr;
  std::int64_t bytes_;
};

}  // namespace deltron
