// A reference-counted allocation with a state. Recompute and offload free and refill storages while views of them live on;
// taking a data pointer of a storage that is not Resident is an internal error that names tensor, region and state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/tensor/memory.h"

namespace deltron {

enum class StorageState : std::uint8_t { Resident, Discarded, OnHost, Reloading };
const char* storage_state_name(StorageState state);

class Storage {
 public:
  Storage(std::shared_ptr<Allocator> allocator, DeviceKind device, std::int64_t bytes, MemoryTag tag, MemoryScope scope, std::string name);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const;  // throws unless Resident
  std::int64_t bytes() const { return bytes_; }
  DeviceKind device() const { return device_; }
  MemoryTag tag() const { return tag_; }
  const MemoryScope& scope() const { return scope_; }
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  // The tensor that the whole of it was made for: for reports of what is saved.
  void set_made_for(DType dtype, std::vector<std::int64_t> shape) {
    made_dtype_ = dtype;
    made_shape_ = std::move(shape);
  }
  StorageState state() const { return state_; }
  Allocator& allocator() const { return *allocator_; }

  // Frees the memory; views and graph links survive. Legal only when Resident.
  void discard(StorageState next = StorageState::Discarded);
  // Allocates anew (content undefined): Discarded/OnHost -> Resident or Reloading.
  void reallocate(StorageState next = StorageState::Resident);
  void* reload_target() const;  // where the copy writes; only while Reloading
  void set_resident();          // Reloading -> Resident: the copy has arrived
  // Takes the memory of `other` over, so that every view of this storage is valid again. Both storages refer to that one memory from
  // now on (what a replayed graph saved stays valid too); it is counted once, under this storage's tag and scope, and freed with the
  // last of them. No version bump: the values are those of before.
  void adopt(Storage& other);

  // In-place writes count up; saved tensors compare.
  std::uint64_t version() const { return version_; }
  void bump_version() { ++version_; }

  // How many saved tensors hold it.
  void add_saved(const std::string& as);
  void remove_saved();
  int saved_count() const { return saved_count_; }

 private:
  bool holds_memory() const { return state_ == StorageState::Resident || state_ == StorageState::Reloading; }
  [[noreturn]] void refuse(const char* wish) const;

  // The memory itself, shared by storages after adopt().
  struct Block {
    Block(std::shared_ptr<Allocator> from, std::int64_t size, MemoryTag as, MemoryScope in);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    std::shared_ptr<Allocator> allocator;
    std::int64_t bytes;
    MemoryTag tag;
    MemoryScope scope;
    void* data;
  };
  void note_saved();
  void note_unsaved();

  std::shared_ptr<Allocator> allocator_;
  std::shared_ptr<Block> block_;
  std::int64_t bytes_;
  DeviceKind device_;
  MemoryTag tag_;
  MemoryScope scope_;
  std::string name_;
  StorageState state_ = StorageState::Resident;
  std::uint64_t version_ = 0;
  int saved_count_ = 0;
  std::string saved_as_;
  DType made_dtype_ = DType::U8;
  std::vector<std::int64_t> made_shape_;
};

}  // namespace deltron
