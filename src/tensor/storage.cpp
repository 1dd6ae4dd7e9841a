// See storage.h.
#include "src/tensor/storage.h"

#include <utility>

#include "src/base/check.h"

namespace deltron {

const char* storage_state_name(StorageState state) {
  switch (state) {
    case StorageState::Resident: return "Resident";
    case StorageState::Discarded: return "Discarded";
    case StorageState::OnHost: return "OnHost";
    case StorageState::Reloading: return "Reloading";
  }
  return "?";
}

Storage::Block::Block(std::shared_ptr<Allocator> from, std::int64_t size, MemoryTag as, MemoryScope in)
    : allocator(std::move(from)), bytes(size), tag(as), scope(in), data(allocator->allocate(size, as, in)) {}

Storage::Block::~Block() { allocator->release(data, bytes, tag, scope); }

Storage::Storage(std::shared_ptr<Allocator> allocator, DeviceKind device, std::int64_t bytes, MemoryTag tag, MemoryScope scope,
                 std::string name)
    : allocator_(std::move(allocator)), bytes_(bytes), device_(device), tag_(tag), scope_(scope), name_(std::move(name)) {
  block_ = std::make_shared<Block>(allocator_, bytes_, tag_, scope_);
}

Storage::~Storage() {
  if (saved_count_ > 0 && holds_memory()) note_unsaved();
}

void Storage::note_saved() {
  allocator_->note_saved(block_.get(), {saved_as_, bytes_, tag_, scope_, name_, made_dtype_, made_shape_});
}
void Storage::note_unsaved() { allocator_->note_unsaved(block_.get()); }

void Storage::refuse(const char* wish) const {
  throw Error(ErrorCode::InternalFault,
              ErrorText{"storage of '" + name_ + "' is " + storage_state_name(state_) + wish,
                        "layer " + std::to_string(scope_.layer) + " " + scope_.region, std::to_string(bytes_) + " bytes",
                        "a storage that recompute or offload has freed must be restored, once, before it is read",
                        "this is a wrong order of hooks, a fault of ours"});
}

void* Storage::data() const {
  if (state_ != StorageState::Resident) refuse(", not Resident");
  return block_->data;
}

void Storage::discard(StorageState next) {
  DELTRON_CHECK(next == StorageState::Discarded || next == StorageState::OnHost, "'", name_, "' freed into ", storage_state_name(next));
  if (state_ != StorageState::Resident) refuse(" and cannot be freed");
  if (saved_count_ > 0) note_unsaved();
  block_.reset();
  state_ = next;
}

void Storage::reallocate(StorageState next) {
  DELTRON_CHECK(next == StorageState::Resident || next == StorageState::Reloading, "'", name_, "' refilled into ", storage_state_name(next));
  if (holds_memory()) refuse(" and has its memory");
  block_ = std::make_shared<Block>(allocator_, bytes_, tag_, scope_);
  state_ = next;
  if (saved_count_ > 0) note_saved();
}

void* Storage::reload_target() const {
  if (state_ != StorageState::Reloading) refuse(" and is not being reloaded");
  return block_->data;
}

void Storage::set_resident() {
  if (state_ != StorageState::Reloading) refuse(" and is not being reloaded");
  state_ = StorageState::Resident;
}

void Storage::adopt(Storage& other) {
  if (state_ != StorageState::Discarded) refuse(" and cannot adopt");
  if (other.state_ != StorageState::Resident) other.refuse(" and cannot be adopted");
  DELTRON_CHECK_EQ(bytes_, other.bytes_, "adopting '", other.name_, "' into '", name_, "'");
  DELTRON_CHECK(allocator_.get() == other.allocator_.get(), "storages of one allocator");
  block_ = other.block_;
  allocator_->retag(bytes_, block_->tag, block_->scope, tag_, scope_);
  block_->tag = tag_;
  block_->scope = scope_;
  state_ = StorageState::Resident;
  if (saved_count_ > 0) note_saved();
}

void Storage::add_saved(const std::string& as) {
  if (saved_count_++ == 0) {
    saved_as_ = as;
    if (holds_memory()) note_saved();
  }
}

void Storage::remove_saved() {
  DELTRON_CHECK(saved_count_ > 0, "storage of '", name_, "' is not saved");
  if (--saved_count_ == 0 && holds_memory()) note_unsaved();
}

}  // namespace deltron
