// See context.h.
#include "src/tensor/context.h"

#include <cstring>

#include "kernels/isa.h"
#include "src/base/build_options.h"
#include "src/base/check.h"
#include "src/tensor/cuda_device.h"
#include "src/tensor/profile.h"
#if DELTRON_HAVE_CUDA
#include "kernels/cuda/attention_cudnn.h"
#include "kernels/cuda/products.h"
#endif

namespace deltron {

// The device side of a context: its compute stream, uploads, matrix products and fused attention.
class CudaContext {
 public:
  CudaContext() : stream_(cuda_make_stream()) {
#if DELTRON_HAVE_CUDA
    products_ = kernels::cuda::make_products();
    attention_ = kernels::cuda::make_fused_attention();
#endif
  }
  ~CudaContext() {
    attention_.reset();
    products_.reset();
    cuda_free_stream(stream_);
  }
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;
  void* stream() const { return stream_; }
  kernels::cuda::ProductLibrary* products() const { return products_.get(); }
  kernels::cuda::FusedAttention* attention() const { return attention_.get(); }
  void upload(void* to, const void* from, std::int64_t bytes) { synchronizations_ += transfers_.upload(to, from, bytes, stream_); }
  void download_later(void* to, const void* from, std::int64_t bytes) {
    synchronizations_ += transfers_.download_later(to, from, bytes, stream_);
  }
  void synchronize() {
    ++synchronizations_;
    cuda_stream_synchronize(stream_);
  }
  std::int64_t synchronizations() const { return synchronizations_; }

 private:
  void* stream_;
  std::shared_ptr<kernels::cuda::ProductLibrary> products_;
  std::shared_ptr<kernels::cuda::FusedAttention> attention_;
  CudaTransfers transfers_;
  std::int64_t synchronizations_ = 0;
};

Context::Context(const ContextOptions& options) : options_(options) {
  const bool cuda = options.device == DeviceKind::Cuda;
  if (cuda || (kernel_device() == DeviceKind::Cuda && !DELTRON_HAVE_CUDA)) require_cuda();  // a plan for cuda needs its kernels' sizes
  const int threads = options.threads > 0 ? options.threads : available_cores();
  // A plan needs the number of threads for workspace sizes, but no running workers beyond it: they sleep.
  pool_ = std::make_unique<ThreadPool>(threads, options.pin_threads && !is_meta());
  if (cuda) cuda_use_device(options.device_index);
  if (cuda) cuda_ = std::make_unique<CudaContext>();
  memory_ = std::make_shared<Allocator>(is_meta() ? make_meta_memory() : cuda ? make_cuda_memory() : make_cpu_memory(), options.memory_capacity);
  host_memory_ = std::make_shared<Allocator>(is_meta() ? make_meta_memory() : cuda ? make_pinned_memory() : make_cpu_memory());
}

Context::~Context() = default;

StreamHandle Context::stream() {
  return StreamHandle{options_.device, cuda_ ? cuda_->stream() : nullptr, pool_.get(), cuda_ ? cuda_->products() : nullptr,
                      cuda_ ? cuda_->attention() : nullptr};
}

Stream& Context::copy_out_stream() {
  if (!copy_out_) copy_out_ = std::make_unique<Stream>("copy out", options_.device);
  return *copy_out_;
}

Stream& Context::copy_in_stream() {
  if (!copy_in_) copy_in_ = std::make_unique<Stream>("copy in", options_.device);
  return *copy_in_;
}

Event Context::compute_point() {
  if (cuda_) return Event::on_device(cuda_->stream());
  Event event;
  event.signal();
  return event;
}

TimeMark Context::compute_mark() { return cuda_ ? TimeMark::on_device(cuda_->stream()) : TimeMark::now(); }

void Context::start_recording() {
  DELTRON_CHECK(!ranges_, "ranges are recorded already");
  ranges_ = std::make_unique<RangeRecorder>(*this);
}

std::unique_ptr<RangeRecorder> Context::stop_recording() {
  DELTRON_CHECK(ranges_ != nullptr, "no ranges are recorded");
  if (copy_out_) copy_out_->synchronize();
  if (copy_in_) copy_in_->synchronize();
  ranges_->finish();
  return std::move(ranges_);
}

void ScopeGuard::begin_range(const char* operation) {
  in_range_ = true;
  ctx_.ranges_->begin(RangeKind::Part, ctx_.scope_.region, ctx_.scope_.layer, operation);
}

void ScopeGuard::end_range() {
  if (ctx_.ranges_) ctx_.ranges_->end();
}

void Context::compute_waits(const Event& event) {
  if (cuda_ && event.native() != nullptr) return cuda_stream_waits(cuda_->stream(), event.native());
  event.wait();
}

void Context::upload(void* to, const void* from, std::int64_t bytes) {
  if (is_meta() || bytes == 0) return;
  if (cuda_) return cuda_->upload(to, from, bytes);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void Context::download(void* to, const void* from, std::int64_t bytes) {
  DELTRON_CHECK(!is_meta(), "a meta tensor holds no values");
  if (bytes == 0) return;
  if (cuda_) {
    cuda_copy(to, from, bytes, cuda_->stream());
    return cuda_->synchronize();
  }
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

Event Context::download_later(void* to, const void* from, std::int64_t bytes) {
  if (cuda_ && bytes > 0) {
    cuda_->download_later(to, from, bytes);
  } else if (!is_meta() && bytes > 0) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  return compute_point();
}

void Context::set_bytes(void* data, int value, std::int64_t bytes) {
  if (is_meta() || bytes == 0) return;
  if (cuda_) return cuda_set_bytes(data, value, bytes, cuda_->stream());
  std::memset(data, value, static_cast<std::size_t>(bytes));
}

void Context::synchronize() {
  if (cuda_) cuda_->synchronize();
}

std::int64_t Context::host_synchronizations() const { return cuda_ ? cuda_->synchronizations() : 0; }

const char* instruction_set() { return kernels::cpu::instruction_set(); }

WorkspaceLease::WorkspaceLease(Context& ctx, std::int64_t bytes) : memory_(ctx.memory()), bytes_(bytes) {
  if (bytes_ > 0) data_ = memory_->allocate(bytes_, MemoryTag::Workspace, ctx.scope());
}

WorkspaceLease::~WorkspaceLease() {
  if (bytes_ > 0) memory_->release(data_, bytes_, MemoryTag::Workspace, MemoryScope{});
}

}  // namespace deltron
