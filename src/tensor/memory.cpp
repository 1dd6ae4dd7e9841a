// See memory.h.
#include "src/tensor/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "src/base/check.h"
#include "src/base/human.h"

namespace deltron {
namespace {

constexpr std::int64_t kGranule = 512;

class CpuMemory : public RawMemory {
 public:
  void* allocate(std::int64_t bytes) override { return std::aligned_alloc(kGranule, static_cast<std::size_t>(bytes)); }
  void release(void* data, std::int64_t) override { std::free(data); }
  const char* name() const override { return "cpu"; }
};

class MetaMemory : public RawMemory {
 public:
  void* allocate(std::int64_t) override { return nullptr; }
  void release(void*, std::int64_t) override {}
  const char* name() const override { return "meta"; }
};

}  // namespace

const char* memory_tag_name(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::Weights: return "weights";
    case MemoryTag::MainGradients: return "main gradients";
    case MemoryTag::OptimizerState: return "optimizer state";
    case MemoryTag::Activations: return "activations";
    case MemoryTag::Workspace: return "workspace";
    case MemoryTag::Communication: return "communication";
    case MemoryTag::Data: return "data";
  }
  return "?";
}

std::unique_ptr<RawMemory> make_cpu_memory() { return std::make_unique<CpuMemory>(); }
std::unique_ptr<RawMemory> make_meta_memory() { return std::make_unique<MetaMemory>(); }

bool Allocator::ScopeLess::operator()(const MemoryScope& a, const MemoryScope& b) const {
  if (a.layer != b.layer) return a.layer < b.layer;
  return std::strcmp(a.region, b.region) < 0;
}

Allocator::Allocator(std::unique_ptr<RawMemory> raw, std::int64_t capacity) : raw_(std::move(raw)), capacity_(capacity) {}

Allocator::~Allocator() { release_cached(); }

std::int64_t Allocator::rounded(std::int64_t bytes) { return std::max<std::int64_t>(kGranule, (bytes + kGranule - 1) / kGranule * kGranule); }

void* Allocator::allocate(std::int64_t bytes, MemoryTag tag, const MemoryScope& scope) {
  DELTRON_CHECK_GE(bytes, 0, "allocation size");
  const std::int64_t size = rounded(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  const bool is_meta = std::strcmp(raw_->name(), "meta") == 0;
  void* data = nullptr;
  auto entry = free_.find(size);
  if (entry != free_.end() && !entry->second.empty()) {
    data = entry->second.back();
    entry->second.pop_back();
    stats_.cached -= size;
  } else if (!is_meta) {
    const auto over_capacity = [&] { return capacity_ > 0 && stats_.current + stats_.cached + size > capacity_; };
    if (!over_capacity()) data = raw_->allocate(size);
    if (data == nullptr) {  // give the cache back and try once more
      for (auto& [cached_size, blocks] : free_) {
        for (void* block : blocks) raw_->release(block, cached_size);
        stats_.cached -= cached_size * static_cast<std::int64_t>(blocks.size());
        blocks.clear();
      }
      if (!over_capacity()) data = raw_->allocate(size);
    }
    if (data == nullptr) throw_full(bytes, tag, scope);
  } else if (capacity_ > 0 && stats_.current + size > capacity_) {
    throw_full(bytes, tag, scope);
  }
  stats_.allocations++;
  count(size, tag, scope);
  return data;
}

void Allocator::throw_full(std::int64_t bytes, MemoryTag tag, const MemoryScope& scope) const {
  ErrorText text;
  text.what = "asked " + human_bytes(static_cast<std::uint64_t>(bytes)) + " for '" + memory_tag_name(tag) + "'";
  text.where = std::string(raw_->name()) + (scope.layer >= 0 ? " layer " + std::to_string(scope.layer) : "") +
               (scope.region[0] != '\0' ? std::string(" ") + scope.region : "");
  text.values = table_locked() + (capacity_ > 0 ? "; capacity " + human_bytes(static_cast<std::uint64_t>(capacity_)) : "");
  text.rule = "all tensors of a step must fit";
  text.fix = "lower training.micro_batch_size or training.seq_length; 'deltron plan' shows the table before a run";
  throw Error(ErrorCode::OutOfMemory, text);
}

void Allocator::release(void* data, std::int64_t bytes, MemoryTag tag, const MemoryScope& scope) {
  const std::int64_t size = rounded(bytes);
  std::lock_guard<std::mutex> lock(mutex_);
  count(-size, tag, scope);
  if (data != nullptr) {
    free_[size].push_back(data);
    stats_.cached += size;
  }
}

void Allocator::retag(std::int64_t bytes, MemoryTag from, const MemoryScope& from_scope, MemoryTag to, const MemoryScope& to_scope) {
  std::lock_guard<std::mutex> lock(mutex_);
  count(-rounded(bytes), from, from_scope);
  count(rounded(bytes), to, to_scope);
}

void Allocator::count(std::int64_t bytes, MemoryTag tag, const MemoryScope& scope) {
  const auto index = static_cast<std::size_t>(tag);
  stats_.current += bytes;
  stats_.by_tag[index] += bytes;
  if (tag == MemoryTag::Activations) by_scope_[scope] += bytes;
  stats_.peak_by_tag[index] = std::max(stats_.peak_by_tag[index], stats_.by_tag[index]);
  if (stats_.current > stats_.peak) {
    stats_.peak = stats_.current;
    stats_.by_tag_at_peak = stats_.by_tag;
  }
}

MemoryStats Allocator::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void Allocator::reset_peak() {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.peak = stats_.current;
  stats_.by_tag_at_peak = stats_.by_tag;
  stats_.peak_by_tag = stats_.by_tag;
  stats_.peak_saved = stats_.saved;
}

std::vector<ScopeBytes> Allocator::activations_by_scope() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<ScopeBytes> rows;
  for (const auto& [scope, bytes] : by_scope_) {
    if (bytes != 0) rows.push_back({scope.layer, scope.region, bytes});
  }
  return rows;
}

std::vector<SavedStorage> Allocator::saved_storages() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SavedStorage> rows;
  for (const auto& [order, what] : saved_) rows.push_back(what);
  return rows;
}

void Allocator::note_saved(const void* memory, const SavedStorage& what) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto known = saved_blocks_.find(memory);
  if (known != saved_blocks_.end()) {
    known->second.holders++;
    saved_[known->second.order] = what;  // named by its latest holder: an adopter
    return;
  }
  saved_blocks_[memory] = {next_saved_, 1};
  saved_[next_saved_++] = what;
  if (what.tag != MemoryTag::Weights) stats_.saved += what.bytes;
  stats_.peak_saved = std::max(stats_.peak_saved, stats_.saved);
}

void Allocator::note_unsaved(const void* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto known = saved_blocks_.find(memory);
  if (known == saved_blocks_.end() || --known->second.holders > 0) return;
  const auto what = saved_.find(known->second.order);
  if (what->second.tag != MemoryTag::Weights) stats_.saved -= what->second.bytes;
  saved_.erase(what);
  saved_blocks_.erase(known);
}

void Allocator::release_cached() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [size, blocks] : free_) {
    for (void* block : blocks) raw_->release(block, size);
    stats_.cached -= size * static_cast<std::int64_t>(blocks.size());
    blocks.clear();
  }
}

std::string Allocator::table() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return table_locked();
}

std::string Allocator::table_locked() const {
  std::string text = "in use " + human_bytes(static_cast<std::uint64_t>(stats_.current)) + ":";
  for (int tag = 0; tag < kMemoryTags; ++tag) {
    const std::int64_t bytes = stats_.by_tag[static_cast<std::size_t>(tag)];
    if (bytes != 0) text += std::string(" ") + memory_tag_name(static_cast<MemoryTag>(tag)) + " " + human_bytes(static_cast<std::uint64_t>(bytes));
  }
  return text;
}

}  // namespace deltron
