// Counted, caching memory of one device. Every byte has a tag; activations also carry layer and region. The same rounding and the
// same counters serve cpu, cuda and meta (where nothing is allocated), so that a plan and a run count alike.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/dtype.h"

namespace deltron {

enum class MemoryTag : std::uint8_t { Weights, MainGradients, OptimizerState, Activations, Workspace, Communication, Data };
inline constexpr int kMemoryTags = 7;
const char* memory_tag_name(MemoryTag tag);

// Where an activation belongs: layer number (-1: outside the layers) and region name (a string literal).
struct MemoryScope {
  int layer = -1;
  const char* region = "";
};

using TagBytes = std::array<std::int64_t, kMemoryTags>;

struct ScopeBytes {
  int layer;
  std::string region;
  std::int64_t bytes;
};

// One storage that nodes hold for their backward.
struct SavedStorage {
  std::string name;     // as what the first holder saved it
  std::int64_t bytes = 0;
  MemoryTag tag = MemoryTag::Activations;
  MemoryScope scope;
  std::string storage;  // the storage's own name, and the tensor that it was made for
  DType dtype = DType::U8;
  std::vector<std::int64_t> shape = {};
};

struct MemoryStats {
  std::int64_t current = 0;
  std::int64_t peak = 0;          // of the sum over tags
  TagBytes by_tag{};              // current
  TagBytes by_tag_at_peak{};      // at the moment of `peak`
  TagBytes peak_by_tag{};         // each tag's own peak
  std::int64_t saved = 0;         // bytes of storages saved for backward, weights left out
  std::int64_t peak_saved = 0;
  std::int64_t cached = 0;        // freed and kept for reuse, not counted in `current`
  std::int64_t allocations = 0;
};

// Raw memory below the cache. `allocate` returns null when the device is full.
class RawMemory {
 public:
  virtual ~RawMemory() = default;
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void release(void* data, std::int64_t bytes) = 0;
  virtual const char* name() const = 0;
};
std::unique_ptr<RawMemory> make_cpu_memory();
// Nothing behind it: null pointers, counted bytes.
std::unique_ptr<RawMemory> make_meta_memory();

class Allocator {
 public:
  // `capacity` in bytes, 0: what the device has. A capacity makes out-of-memory reachable on any machine.
  explicit Allocator(std::unique_ptr<RawMemory> raw, std::int64_t capacity = 0);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // Throws ErrorCode::OutOfMemory with the table by tag.
  void* allocate(std::int64_t bytes, MemoryTag tag, const MemoryScope& scope);
  void release(void* data, std::int64_t bytes, MemoryTag tag, const MemoryScope& scope);
  // Moves a live allocation's bytes from one tag and scope to another.
  void retag(std::int64_t bytes, MemoryTag from, const MemoryScope& from_scope, MemoryTag to, const MemoryScope& to_scope);
  static std::int64_t rounded(std::int64_t bytes);  // what a request of `bytes` is counted as

  MemoryStats stats() const;
  void reset_peak();
  std::vector<ScopeBytes> activations_by_scope() const;  // current bytes
  std::vector<SavedStorage> saved_storages() const;      // in the order of saving
  void release_cached();
  std::string table() const;  // bytes by tag, for error messages

  // Called by Storage when nodes start and stop to hold it. `memory` identifies the block: storages that share one count once.
  void note_saved(const void* memory, const SavedStorage& what);
  void note_unsaved(const void* memory);

 private:
  struct ScopeLess {
    bool operator()(const MemoryScope& a, const MemoryScope& b) const;
  };
  void count(std::int64_t bytes, MemoryTag tag, const MemoryScope& scope);
  std::string table_locked() const;
  [[noreturn]] void throw_full(std::int64_t bytes, MemoryTag tag, const MemoryScope& scope) const;

  std::unique_ptr<RawMemory> raw_;
  std::int64_t capacity_;
  mutable std::mutex mutex_;
  MemoryStats stats_;
  std::unordered_map<std::int64_t, std::vector<void*>> free_;
  std::map<MemoryScope, std::int64_t, ScopeLess> by_scope_;
  std::map<std::uint64_t, SavedStorage> saved_;
  struct SavedBlock {
    std::uint64_t order;
    int holders;
  };
  std::unordered_map<const void*, SavedBlock> saved_blocks_;
  std::uint64_t next_saved_ = 0;
};

}  // namespace deltron
