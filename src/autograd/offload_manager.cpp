// See offload_manager.h.
#include "src/autograd/offload_manager.h"

#include <algorithm>
#include <set>
#include <utility>

#include "src/autograd/node.h"
#include "src/base/check.h"

namespace deltron {

OffloadManager::~OffloadManager() { wait_for_copies(); }

void OffloadManager::wait_for_copies() {
  for (auto& [storage, moved] : away_) {
    if (moved->place == MovedStorage::Place::Draining) moved->copied_out.wait();
    if (moved->place == MovedStorage::Place::Reloading) moved->reloaded.wait();
  }
}

void OffloadManager::configure(Context& ctx, const OffloadOptions& options) {
  DELTRON_CHECK(chunks_.empty() && away_.empty(), "offload is configured in the middle of an iteration");
  options_ = options;
  device_memory_ = ctx.memory();
  pool_ = std::make_unique<OffloadPool>(ctx.host_memory(), options.faults.poison);
  stats_ = last_iteration_ = OffloadStats{};
  warming_up_ = true;
  rows_.clear();
  learned_.clear();
  largest_.clear();
}

bool OffloadManager::handles(const std::string& module) const {
  return std::find(options_.modules.begin(), options_.modules.end(), module) != options_.modules.end();
}

void OffloadManager::begin_micro_batch(Context& ctx) {
  if (options_.modules.empty() || !ctx.slot<AutogradState>().grad_enabled) return;
  DELTRON_CHECK(open_.empty(), "offload group '", open_.front()->name, "' of the micro-batch before was never committed");
  chunks_.emplace_back();
  infos_.push_back({-1, backwards_begun_});
  forward_open_ = true;
}

std::shared_ptr<OffloadGroup> OffloadManager::start_group(Context& ctx, const std::string& name) {
  DELTRON_CHECK(!chunks_.empty(), "offload group '", name, "' outside a micro-batch: begin_micro_batch() opens one");
  DELTRON_CHECK(forward_open_, "offload group '", name, "' (layer ", ctx.scope().layer,
                ") started during backward: its layer is replayed by a recompute region, which the combination table refuses");
  DELTRON_CHECK(open_group(name) == nullptr, "offload group '", name, "' started twice without a commit");
  auto group = std::make_shared<OffloadGroup>();
  group->name = name;
  group->layer = ctx.scope().layer;
  group->iteration = iteration_;
  group->chunk = static_cast<int>(chunks_.size()) - 1;
  group->ordinal = chunks_.back().groups_started++;
  group->move = policy_moves(*group);
  open_.push_back(group);
  return group;
}

// Micro-batches beyond those of the warm-up follow the last one that it saw.
bool OffloadManager::policy_moves(const OffloadGroup& group) const {
  if (warming_up_) return true;
  const int chunk = std::min(group.chunk, static_cast<int>(learned_.size()) - 1);
  for (const OffloadRow& row : rows_) {
    if (row.chunk != chunk || row.ordinal != group.ordinal) continue;
    DELTRON_CHECK_EQ(row.name, group.name, "group ", group.ordinal, " of the offload table is another module than in the warm-up");
    return row.decision == OffloadDecision::Move;
  }
  DELTRON_CHECK(false, "offload group ", group.ordinal, " ('", group.name, "') was not there in the warm-up");
  return false;
}

std::shared_ptr<OffloadGroup> OffloadManager::open_group(const std::string& name) const {
  for (const auto& group : open_) {
    if (group->name == name) return group;
  }
  return nullptr;
}

namespace {

std::int64_t elements(const Storage& storage, DType dtype) { return storage.bytes() / static_cast<std::int64_t>(dtype_size(dtype)); }

}  // namespace

bool OffloadManager::eligible(const Storage& storage, DType dtype) const {
  return storage.tag() == MemoryTag::Activations && &storage.allocator() == device_memory_.get() &&
         elements(storage, dtype) >= std::max<std::int64_t>(options_.min_offloaded_tensor_size, 1);
}

std::int64_t OffloadManager::largest_storage(const std::string& module) const {
  const auto entry = largest_.find(module);
  return entry == largest_.end() ? 0 : entry->second;
}

void OffloadManager::capture(OffloadGroup& group, const Tensor& tensor) {
  if (!eligible(*tensor.storage(), tensor.dtype())) return;
  for (CapturedStorage& captured : group.captured) {
    if (captured.storage != tensor.storage()) continue;
    captured.saves++;
    group.duplicates++;
    stats_.duplicates++;
    return;
  }
  group.captured.push_back({tensor.storage(), tensor.dtype(), 1});
}

// What the layer named, then what only the saved tensors hold.
std::vector<CapturedStorage> OffloadManager::releasable(const OffloadGroup& group, const std::vector<Tensor>& releases) const {
  std::vector<CapturedStorage> result;
  std::set<const Storage*> seen;
  for (const Tensor& tensor : releases) {
    DELTRON_CHECK(tensor.defined(), "offload group '", group.name, "' is to free an undefined tensor");
    const Storage* storage = tensor.storage().get();
    if (!eligible(*storage, tensor.dtype()) || !seen.insert(storage).second) continue;
    if (away_.count(storage) != 0) continue;  // an inner or earlier group has it: its copy serves this one too
    const auto captured = std::find_if(group.captured.begin(), group.captured.end(), [&](const auto& c) { return c.storage.get() == storage; });
    DELTRON_CHECK(captured != group.captured.end(), "'", storage->name(), "' is to be freed by offload group '", group.name, "' (layer ",
                  group.layer, "), but nothing in the group saved it");
    DELTRON_CHECK(storage->state() == StorageState::Resident, "'", storage->name(), "' of offload group '", group.name, "' (layer ",
                  group.layer, ") is ", storage_state_name(storage->state()), ": recompute and offload of one storage exclude each other");
    result.push_back(*captured);
  }
  for (const CapturedStorage& captured : group.captured) {
    const Storage* storage = captured.storage.get();
    if (seen.count(storage) != 0 || away_.count(storage) != 0 || storage->state() != StorageState::Resident) continue;
    if (captured.is_private()) result.push_back(captured);
  }
  return result;
}

void OffloadManager::commit(Context& ctx, const std::shared_ptr<OffloadGroup>& group, const std::vector<Tensor>& releases) {
  OffloadRow row{group->chunk, group->ordinal, group->name, group->layer, 0, 0, group->duplicates, OffloadDecision::Move};
  if (warming_up_) {
    for (const Tensor& tensor : releases) largest_[group->name] = std::max(largest_[group->name], elements(*tensor.storage(), tensor.dtype()));
  }
  for (const CapturedStorage& captured : releasable(*group, releases)) {
    const std::shared_ptr<Storage>& storage = captured.storage;
    row.bytes += storage->bytes();
    row.storages++;
    if (!group->move) continue;
    auto moved = std::make_shared<MovedStorage>();
    moved->storage = storage;
    moved->version = storage->version();
    moved->host = pool_->acquire(storage->bytes(), captured.dtype);
    moved->copied_out = start_copy_out(ctx, *storage, moved->host, options_.faults);
    away_[storage.get()] = moved;
    group->moved.push_back(std::move(moved));
    stats_.bytes_out += storage->bytes();
  }
  group->captured.clear();
  group->phase = OffloadGroup::Phase::Committed;
  open_.erase(std::find(open_.begin(), open_.end(), group));
  if (!group->moved.empty()) stats_.groups_moved++;
  if (warming_up_) rows_.push_back(row);
  chunks_[static_cast<std::size_t>(group->chunk)].to_return.push_back(group);
  in_flight_[group->name].push_back(group);
  release_down_to(ctx, group->name, options_.max_inflight_offloads < 0 ? 1 : static_cast<std::size_t>(options_.max_inflight_offloads));
}

// The fixed points at which sources of copies are freed. A group that is kept counts as one whose copy is done.
void OffloadManager::release_down_to(Context& ctx, const std::string& name, std::size_t in_flight) {
  std::deque<std::shared_ptr<OffloadGroup>>& queue = in_flight_[name];
  for (; queue.size() > in_flight; queue.pop_front()) {
    for (const auto& moved : queue.front()->moved) free_source(ctx, *moved);
  }
}

void OffloadManager::end_forward(Context& ctx) {
  if (!ctx.slot<AutogradState>().grad_enabled) return;
  for (auto& [name, queue] : in_flight_) release_down_to(ctx, name, 0);
}

void OffloadManager::free_source(Context& ctx, MovedStorage& moved) {
  if (moved.place != MovedStorage::Place::Draining) return;
  compute_waits(ctx, moved.copied_out);
  DELTRON_CHECK_EQ(moved.storage->version(), moved.version, "'", moved.storage->name(), "' was written while it was being offloaded");
  if (options_.faults.poison) poison(ctx, moved.storage->data(), moved.storage->bytes());
  moved.storage->discard(StorageState::OnHost);
  moved.place = MovedStorage::Place::OnHost;
}

void OffloadManager::start_reload(Context& ctx, MovedStorage& moved) {
  if (moved.place != MovedStorage::Place::OnHost) return;
  moved.storage->reallocate(StorageState::Reloading);
  if (options_.faults.poison) poison(ctx, moved.storage->reload_target(), moved.storage->bytes());
  moved.reloaded = start_copy_in(ctx, moved.host, *moved.storage, moved.copied_out, options_.faults);
  moved.place = MovedStorage::Place::Reloading;
  stats_.bytes_in += moved.storage->bytes();
}

// When this returns, the storage is Resident and its host buffer is free.
void OffloadManager::restore(Context& ctx, MovedStorage& moved) {
  switch (moved.place) {
    case MovedStorage::Place::Back: return;
    case MovedStorage::Place::Draining:  // still there; the copy must be done before anything may write or free it
      compute_waits(ctx, moved.copied_out);
      stats_.kept_while_draining++;
      break;
    case MovedStorage::Place::OnHost:
      stats_.reloads_at_once++;
      start_reload(ctx, moved);
      [[fallthrough]];
    case MovedStorage::Place::Reloading:
      compute_waits(ctx, moved.reloaded);
      moved.storage->set_resident();
      break;
  }
  forget(moved);
}

void OffloadManager::forget(MovedStorage& moved) {
  if (options_.faults.poison && moved.place == MovedStorage::Place::Reloading) moved.reloaded.wait();  // the host writes the buffer next
  pool_->release(std::exchange(moved.host, nullptr));
  moved.place = MovedStorage::Place::Back;
  const std::shared_ptr<Storage> storage = std::exchange(moved.storage, nullptr);
  away_.erase(storage.get());  // may destroy `moved`
}

void OffloadManager::restore(Context& ctx, const Storage* storage) {
  const auto entry = away_.find(storage);
  if (entry == away_.end()) return;
  const std::shared_ptr<MovedStorage> moved = entry->second;
  stats_.read_before_wait++;
  restore(ctx, *moved);
}

void OffloadManager::begin_group_backward(Context& ctx, OffloadGroup& group) {
  DELTRON_CHECK_EQ(group.iteration, iteration_, "backward through offload group '", group.name, "' after its iteration was reset");
  DELTRON_CHECK(group.phase == OffloadGroup::Phase::Committed, "offload group '", group.name, "' (layer ", group.layer,
                ") has run backward before");
  OffloadChunkInfo& info = infos_[static_cast<std::size_t>(group.chunk)];
  if (info.backward_index < 0) info.backward_index = backwards_begun_++;
  forward_open_ = false;
  auto& to_return = chunks_[static_cast<std::size_t>(group.chunk)].to_return;
  to_return.erase(std::remove_if(to_return.begin(), to_return.end(), [&](const auto& other) { return other.get() == &group; }), to_return.end());
  for (const auto& moved : group.moved) restore(ctx, *moved);
  group.moved.clear();
  group.phase = OffloadGroup::Phase::Returned;
}

void OffloadManager::end_group_backward(Context& ctx, const OffloadGroup& group) {
  if (group.iteration == iteration_) prefetch(ctx, group.chunk);
}

// One group for every group that has run backward, whether it moves or not: with a fraction of them kept, the reloads do not run ahead.
void OffloadManager::prefetch(Context& ctx, int chunk) {
  OffloadChunk* from = &chunks_[static_cast<std::size_t>(chunk)];
  if (from->to_return.empty()) {
    // The chunk whose backward comes next, as the warm-up saw it, if its forward is done.
    if (warming_up_) return;
    const int next = infos_[static_cast<std::size_t>(chunk)].backward_index + 1;
    const auto found = std::find_if(learned_.begin(), learned_.end(), [&](const OffloadChunkInfo& info) { return info.backward_index == next; });
    const auto index = static_cast<std::size_t>(found - learned_.begin());
    if (found == learned_.end() || index >= chunks_.size() || infos_[index].backward_index >= 0) return;
    if (index + 1 == chunks_.size() && forward_open_) return;
    from = &chunks_[index];
    if (from->to_return.empty()) return;
  }
  const std::shared_ptr<OffloadGroup> group = from->to_return.back();
  from->to_return.pop_back();
  for (const auto& moved : group->moved) start_reload(ctx, *moved);
}

void OffloadManager::end_warm_up(const std::vector<OffloadChunkInfo>& infos) {
  std::string missing;
  for (const std::string& module : options_.modules) {
    const bool ran = std::any_of(rows_.begin(), rows_.end(), [&](const OffloadRow& row) { return row.name == module; });
    if (!ran) missing += (missing.empty() ? "'" : ", '") + module + "'";
  }
  if (!missing.empty()) {
    throw Error(ErrorCode::ConfigModuleNeverRan,
                ErrorText{missing + " never ran", "offload.offload_modules", "after the first iteration",
                          "a module that is asked for is there", "remove it from the list, or give the model a layer that has it"});
  }
  std::stable_sort(rows_.begin(), rows_.end(), [](const OffloadRow& a, const OffloadRow& b) {
    return a.chunk != b.chunk ? a.chunk < b.chunk : a.ordinal < b.ordinal;
  });
  learned_ = infos;
  decide_offload(rows_, learned_, options_.activation_offload_fraction);
  warming_up_ = false;
}

void OffloadManager::reset(Context& ctx) {
  // What an abandoned graph left behind goes first, so that an error below leaves a clean state. A storage that is on the host stays
  // there: reading it is an error.
  wait_for_copies();
  while (!away_.empty()) {
    const std::shared_ptr<MovedStorage> moved = away_.begin()->second;
    if (moved->place == MovedStorage::Place::Reloading) moved->storage->set_resident();
    forget(*moved);
  }
  // On the CPU a failed copy is rethrown here; a device's faults show at its next synchronisation, so the host does not wait.
  if (ctx.device() == DeviceKind::Cpu && stats_.bytes_out > 0) ctx.copy_out_stream().synchronize();
  if (ctx.device() == DeviceKind::Cpu && stats_.bytes_in > 0) ctx.copy_in_stream().synchronize();
  const std::string never_committed = open_.empty() ? "" : open_.front()->name;
  const bool ran_backward = std::exchange(backwards_begun_, 0) > 0;
  const std::vector<OffloadChunkInfo> infos = std::exchange(infos_, {});
  open_.clear();
  in_flight_.clear();
  chunks_.clear();
  forward_open_ = false;
  iteration_++;
  last_iteration_ = std::exchange(stats_, OffloadStats{});
  DELTRON_CHECK(never_committed.empty(), "offload group '", never_committed, "' was never committed");
  if (!warming_up_) return;
  if (ran_backward) {
    end_warm_up(infos);
  } else {
    rows_.clear();
  }
}

}  // namespace deltron
