// See host_waits.h. The linker sends every call of these functions here (tests/gpu/CMakeLists.txt), so that the count owes nothing to
// the bookkeeping of the code under test.
#include "tests/support/host_waits.h"

#include <cuda_runtime_api.h>

#include <atomic>

namespace {
std::atomic<std::int64_t>& waits() {
  static std::atomic<std::int64_t> count{0};
  return count;
}
}  // namespace

namespace deltron::test {
std::int64_t host_waits() { return waits(); }
}  // namespace deltron::test

extern "C" {
cudaError_t __real_cudaDeviceSynchronize();
cudaError_t __wrap_cudaDeviceSynchronize() {
  ++waits();
  return __real_cudaDeviceSynchronize();
}
cudaError_t __real_cudaStreamSynchronize(cudaStream_t stream);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  ++waits();
  return __real_cudaStreamSynchronize(stream);
}
cudaError_t __real_cudaEventSynchronize(cudaEvent_t event);
cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) {
  ++waits();
  return __real_cudaEventSynchronize(event);
}
cudaError_t __real_cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t __wrap_cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  ++waits();
  return __real_cudaMemcpy(to, from, bytes, kind);
}
cudaError_t __real_cudaMalloc(void** data, std::size_t bytes);
cudaError_t __wrap_cudaMalloc(void** data, std::size_t bytes) {
  ++waits();  // may wait for the device
  return __real_cudaMalloc(data, bytes);
}
cudaError_t __real_cudaFree(void* data);
cudaError_t __wrap_cudaFree(void* data) {
  ++waits();
  return __real_cudaFree(data);
}
}
