// What one iteration of activation offload consists of: chunks (micro-batches) of groups (one occurrence of a module) of moved storages.
// Plain state; offload_manager.h says when it changes.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "src/autograd/offload_pool.h"
#include "src/tensor/storage.h"
#include "src/tensor/stream.h"

namespace deltron {

// One storage on its way out, on the host, or on its way back.
struct MovedStorage {
  enum class Place { Draining, OnHost, Reloading, Back };
  std::shared_ptr<Storage> storage;  // held until the copy is done, so that nobody reuses its memory under the copy
  HostBuffer* host = nullptr;
  std::uint64_t version = 0;         // when the copy began: writing into it afterwards is an error
  Event copied_out;
  Event reloaded;
  Place place = Place::Draining;
};

struct CapturedStorage {
  std::shared_ptr<Storage> storage;
  DType dtype = DType::F32;
  long saves = 0;
  // Does nobody but the saved tensors (and this record) hold it? Then nothing in forward can read it any more.
  bool is_private() const { return storage.use_count() <= saves + 1; }
};

struct OffloadGroup {
  enum class Phase { Open, Committed, Returned };
  std::string name;
  int layer = -1;
  std::uint64_t iteration = 0;
  int chunk = 0;
  int ordinal = 0;
  bool move = true;  // false: the policy keeps it on the device
  int duplicates = 0;
  Phase phase = Phase::Open;
  std::vector<CapturedStorage> captured;             // until the commit, in the order of saving
  std::vector<std::shared_ptr<MovedStorage>> moved;    // from the commit until the commit's backward
};

struct OffloadChunk {
  int groups_started = 0;
  std::vector<std::shared_ptr<OffloadGroup>> to_return;  // committed, and neither back nor asked back; kept ones too: they pace the prefetch
};

}  // namespace deltron
