// See context.h.
#include "src/tensor/context.h"

#include "kernels/isa.h"
#include "src/base/check.h"

namespace deltron {

Context::Context(const ContextOptions& options) : options_(options) {
  DELTRON_CHECK(options.device != DeviceKind::Cuda, "this build has no CUDA device");
  const int threads = options.threads > 0 ? options.threads : available_cores();
  // A plan needs the number of threads for workspace sizes, but no running workers beyond it: they sleep.
  pool_ = std::make_unique<ThreadPool>(threads, options.pin_threads && !is_meta());
  memory_ = std::make_shared<Allocator>(is_meta() ? make_meta_memory() : make_cpu_memory(), options.memory_capacity);
  host_memory_ = std::make_shared<Allocator>(is_meta() ? make_meta_memory() : make_cpu_memory());
}

Context::~Context() = default;

Stream& Context::copy_out_stream() {
  if (!copy_out_) copy_out_ = std::make_unique<Stream>("copy out");
  return *copy_out_;
}

Stream& Context::copy_in_stream() {
  if (!copy_in_) copy_in_ = std::make_unique<Stream>("copy in");
  return *copy_in_;
}

const char* instruction_set() { return kernels::cpu::instruction_set(); }

WorkspaceLease::WorkspaceLease(Context& ctx, std::int64_t bytes) : memory_(ctx.memory()), bytes_(bytes) {
  if (bytes_ > 0) data_ = memory_->allocate(bytes_, MemoryTag::Workspace, ctx.scope());
}

WorkspaceLease::~WorkspaceLease() {
  if (bytes_ > 0) memory_->release(data_, bytes_, MemoryTag::Workspace, MemoryScope{});
}

}  // namespace deltron
