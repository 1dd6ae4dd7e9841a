// The heap of a GPU test binary: operator new hands out pinned memory that host and device see at one address, so that the CPU's
// kernel tests run their kernels on the device as they are. Until open_pinned_heap() found a device it is the ordinary heap. Every block
// lies between bytes of 0xff (NaN in any floating type), which written_guards() looks at after each kernel: what reads outside of a
// buffer spreads NaN, what writes there is found.
#include "tests/support/pinned_heap.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace {

constexpr std::size_t kArena = std::size_t{1} << 30;
constexpr std::size_t kHeader = 64;   // before each block: its class and bytes
constexpr std::size_t kGuard = 192;   // at least so much 0xff on either side; data begins on 256 bytes
constexpr std::size_t kFront = kHeader + kGuard;
constexpr std::size_t kFilled = 4096; // at most so much behind a block
constexpr std::size_t kClasses = 40;  // blocks are powers of two
constexpr std::size_t kFree = ~std::size_t{0};

struct Block {
  std::size_t which = 0;
  std::size_t bytes = kFree;
  Block* next = nullptr;  // of the free ones of its class
  char* data() { return reinterpret_cast<char*>(this) + kFront; }
  std::size_t size() const { return std::size_t{1} << which; }
  std::size_t behind() const { return std::min(size() - kFront - bytes, kFilled); }
};
static_assert(sizeof(Block) <= kHeader);

struct Heap {
  std::mutex mutex;
  char* begin = nullptr;
  std::size_t used = 0;
  Block* free[kClasses] = {};
};
Heap& heap() {
  alignas(Heap) static char memory[sizeof(Heap)];
  static Heap* const only = new (memory) Heap;
  return *only;
}

void* hand_out(Block* block, std::size_t bytes) {
  block->bytes = bytes;
  std::memset(block->data() - kGuard, 0xff, kGuard);
  std::memset(block->data() + bytes, 0xff, block->behind());
  return block->data();
}

void* allocate(std::size_t bytes) {
  Heap& h = heap();
  if (h.begin != nullptr) {
    std::size_t which = 9;
    while ((std::size_t{1} << which) < bytes + kFront + kGuard) ++which;
    const std::lock_guard<std::mutex> lock(h.mutex);
    if (Block* block = h.free[which]) {
      h.free[which] = block->next;
      return hand_out(block, bytes);
    }
    if (h.used + (std::size_t{1} << which) <= kArena) {
      Block* block = new (h.begin + h.used) Block;
      h.used += std::size_t{1} << which;
      block->which = which;
      return hand_out(block, bytes);
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
  Block* block = reinterpret_cast<Block*>(at - kFront);
  const std::lock_guard<std::mutex> lock(h.mutex);
  block->bytes = kFree;
  block->next = h.free[block->which];
  h.free[block->which] = block;
}

bool is_filled(const char* from, std::size_t bytes) {
  return std::all_of(from, from + bytes, [](char c) { return c == '\xff'; });
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

std::size_t written_guards() {
  Heap& h = heap();
  const std::lock_guard<std::mutex> lock(h.mutex);
  std::size_t written = 0;
  for (std::size_t at = 0; h.begin != nullptr && at < h.used;) {
    Block* block = reinterpret_cast<Block*>(h.begin + at);
    if (block->bytes != kFree) {
      const bool whole = is_filled(block->data() - kGuard, kGuard) && is_filled(block->data() + block->bytes, block->behind());
      written += whole ? 0 : 1;
    }
    at += block->size();
  }
  return written;
}

}  // namespace deltron::test

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* data) noexcept { release(data); }
void operator delete[](void* data) noexcept { release(data); }
void operator delete(void* data, std::size_t) noexcept { release(data); }
void operator delete[](void* data, std::size_t) noexcept { release(data); }
