// The heap of a GPU test binary: operator new hands out pinned memory that host and device see at one address, so that the CPU's
// kernel tests run their kernels on the device as they are. Until open_pinned_heap() found a device it is the ordinary heap.
#include "tests/support/pinned_heap.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

namespace {

constexpr std::size_t kArena = std::size_t{1} << 30;
constexpr std::size_t kHeader = 64;   // before each block: its class; keeps blocks on 64 bytes
constexpr std::size_t kClasses = 40;  // blocks are powers of two

struct Heap {
  std::mutex mutex;
  char* begin = nullptr;
  std::size_t used = 0;
  char* free[kClasses] = {};  // each points to the next in its own first bytes
};
Heap& heap() {
  alignas(Heap) static char memory[sizeof(Heap)];
  static Heap* const only = new (memory) Heap;
  return *only;
}

void* allocate(std::size_t bytes) {
  Heap& h = heap();
  if (h.begin != nullptr) {
    std::size_t which = 7;
    while ((std::size_t{1} << which) < bytes + kHeader) ++which;
    const std::lock_guard<std::mutex> lock(h.mutex);
    if (char* block = h.free[which]) {
      h.free[which] = *reinterpret_cast<char**>(block + kHeader);
      return block + kHeader;
    }
    if (h.used + (std::size_t{1} << which) <= kArena) {
      char* block = h.begin + h.used;
      h.used += std::size_t{1} << which;
      *reinterpret_cast<std::size_t*>(block) = which;
      return block + kHeader;
    }
  }
  void* data = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

void release(void* data) {
  Heap& h = heap();
  char* at = static_cast<char*>(data);
  if (h.begin == nullptr || at < h.begin || at >= h.begin + kArena) return std::free(data);
  char* block = at - kHeader;
  const std::size_t which = *reinterpret_cast<std::size_t*>(block);
  const std::lock_guard<std::mutex> lock(h.mutex);
  *reinterpret_cast<char**>(at) = h.free[which];
  h.free[which] = block;
}

}  // namespace

namespace deltron::test {

bool open_pinned_heap() {
  void* data = nullptr;
  const bool opened = cudaHostAlloc(&data, kArena, cudaHostAllocPortable) == cudaSuccess;
  cudaGetLastError();
  if (opened) heap().begin = static_cast<char*>(data);
  return opened;
}

}  // namespace deltron::test

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* data) noexcept { release(data); }
void operator delete[](void* data) noexcept { release(data); }
void operator delete(void* data, std::size_t) noexcept { release(data); }
void operator delete[](void* data, std::size_t) noexcept { release(data); }
