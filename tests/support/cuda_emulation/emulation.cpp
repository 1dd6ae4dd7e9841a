// Fibers, barriers and the few runtime calls behind emulation.h.
#include <cstdio>
#include <cstdlib>

#include "emulation.h"

emulation::Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {
namespace {

enum class State { Ready, AtWarp, AtBlock, Done };
struct Copy {
  void* to;
  const void* from;
  unsigned valid;
};
struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  State state = State::Ready;
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
};
constexpr std::size_t kStack = 128 * 1024;
std::vector<Fiber> fibers;
void* scheduler_pointer = nullptr;
unsigned current = 0;
const std::function<void()>* body_of_kernel = nullptr;
std::vector<char> shared;
alignas(64) char exchange_buffer[2][32][32][64];
unsigned exchange_turn[1024];

extern "C" void emulation_switch(void** save, void* load);
asm(R"(
.globl emulation_switch
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

void pause(State why) {
  fibers[current].state = why;
  emulation_switch(&fibers[current].stack_pointer, scheduler_pointer);
}
extern "C" void emulation_entry() {
  (*body_of_kernel)();
  pause(State::Done);
  std::abort();
}
void resume(unsigned index) {
  current = index;
  threadIdx.x = index % blockDim.x;
  threadIdx.y = index / blockDim.x;
  fibers[index].state = State::Ready;
  emulation_switch(&scheduler_pointer, fibers[index].stack_pointer);
}

}  // namespace

char* dynamic_shared() { return reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(shared.data()) + 127) / 128 * 128); }
void block_barrier() { pause(State::AtBlock); }
void warp_barrier() { pause(State::AtWarp); }
const char* exchange(const void* mine, std::size_t bytes) {
  const unsigned turn = exchange_turn[current]++ & 1, warp = current / 32;
  std::memcpy(exchange_buffer[turn][warp][current & 31], mine, bytes);
  warp_barrier();
  return exchange_buffer[turn][warp][0];
}
void async_copy(void* to, const void* from, unsigned valid) {
  if (reinterpret_cast<std::uintptr_t>(to) % 16 != 0 || (valid > 0 && reinterpret_cast<std::uintptr_t>(from) % 16 != 0)) {
    std::fprintf(stderr, "cp.async: misaligned\n");
    std::abort();
  }
  fibers[current].open.push_back({to, from, valid});
}
void async_commit() {
  fibers[current].groups.push_back(std::move(fibers[current].open));
  fibers[current].open.clear();
}
void async_wait(unsigned pending) {
  auto& groups = fibers[current].groups;
  while (groups.size() > pending) {
    for (const Copy& c : groups.front()) {
      std::memset(c.to, 0, 16);
      std::memcpy(c.to, c.from, c.valid);
    }
    groups.erase(groups.begin());
  }
}

void run(unsigned blocks, unsigned threads, std::size_t shared_bytes, const std::function<void()>& body) {
  if (shared_bytes > 227 * 1024) std::fprintf(stderr, "too much shared memory: %zu\n", shared_bytes), std::abort();
  shared.resize(shared_bytes + 256);
  run_grid(dim3(blocks), dim3(threads), body);
}

void run_grid(dim3 grid, dim3 block_size, const std::function<void()>& body) {
  const unsigned blocks = grid.x * grid.y, threads = block_size.x * block_size.y;
  blockDim = {block_size.x, block_size.y, 1}, gridDim = {grid.x, grid.y, 1};
  body_of_kernel = &body;
  while (fibers.size() < threads) {
    fibers.emplace_back();
    fibers.back().stack = static_cast<char*>(std::malloc(kStack));
  }
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx.x = block % grid.x, blockIdx.y = block / grid.x;
    std::memset(shared.data(), 0xff, shared.size());
    for (unsigned t = 0; t < threads; ++t) {
      std::uintptr_t top =
          (reinterpret_cast<std::uintptr_t>(fibers[t].stack) + kStack) / 64 * 64 - 72;  // the entry sees the alignment of a call
      void** slot = reinterpret_cast<void**>(top);
      *slot = nullptr;  // return address of the entry, never used
      *--slot = reinterpret_cast<void*>(&emulation_entry);
      for (int i = 0; i < 6; ++i) *--slot = nullptr;
      fibers[t].stack_pointer = slot;
      fibers[t].state = State::Ready;
      fibers[t].groups.clear(), fibers[t].open.clear();
      exchange_turn[t] = 0;
    }
    for (;;) {
      bool all_done = true;
      for (unsigned first = 0; first < threads; first += 32) {
        const unsigned last = first + 32 < threads ? first + 32 : threads;
        for (;;) {
          bool any_ready = false, any_warp = false, any_block = false;
          for (unsigned t = first; t < last; ++t) {
            if (fibers[t].state == State::Ready) resume(t), any_ready = true;
          }
          for (unsigned t = first; t < last; ++t) {
            any_warp |= fibers[t].state == State::AtWarp;
            any_block |= fibers[t].state == State::AtBlock;
          }
          if (any_warp && any_block)
            std::fprintf(stderr, "divergent barriers in block %u warp %u\n", block, first / 32), std::abort();
          if (!any_warp) break;
          for (unsigned t = first; t < last; ++t) {
            if (fibers[t].state == State::AtWarp) fibers[t].state = State::Ready;
          }
          (void)any_ready;
        }
      }
      for (unsigned t = 0; t < threads; ++t) {
        if (fibers[t].state == State::AtBlock) fibers[t].state = State::Ready, all_done = false;
      }
      if (all_done) break;
    }
  }
}

}  // namespace emulation

extern "C" {
cudaError_t cudaMalloc(void** p, size_t n) { return *p = std::aligned_alloc(256, (n + 255) / 256 * 256 + 256), cudaSuccess; }
cudaError_t cudaFree(void* p) { return std::free(p), cudaSuccess; }
cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) { return std::memcpy(to, from, n), cudaSuccess; }
cudaError_t cudaMemset(void* p, int value, size_t n) { return std::memset(p, value, n), cudaSuccess; }
cudaError_t cudaMemsetAsync(void* p, int value, size_t n, cudaStream_t) { return std::memset(p, value, n), cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 232448, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
}
