// How packed documents are cut into attention blocks, and how the blocks are handed to the pool. Integer code only; knows no
// vectors. Scratch memory belongs to a slot, one a thread; which slot runs an item depends on timing, what the item computes does
// not.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/views.h"
#include "src/base/thread_pool.h"

namespace deltron::kernels::cpu {

inline constexpr std::int64_t kAttentionBlock = 64;  // queries, and keys, of a tile
inline constexpr std::int64_t kAttentionPad = 16;    // queries of a block are padded to a multiple of any target's lanes
inline constexpr std::int64_t kAttentionStrip = 32;  // grain at which the masked triangle of a diagonal tile is skipped

inline std::int64_t pad_to(std::int64_t value, std::int64_t grain) { return (value + grain - 1) / grain * grain; }

// One block of queries (or keys) of one document.
struct AttentionBlock {
  std::int64_t document;
  std::int64_t document_begin;  // first token of the document among all tokens
  std::int64_t document_length;
  std::int64_t first;         // position of the block's first token in the document; a multiple of kAttentionBlock
  std::int64_t rows;          // tokens of the block
  std::int64_t padded_begin;  // first row of the block where every block is padded to kAttentionPad
  std::int64_t padded_rows() const { return pad_to(rows, kAttentionPad); }
};

// Upper bounds that need no look at the offsets, so that a plan can be made without the data.
inline std::int64_t most_attention_blocks(std::int64_t tokens, std::int64_t documents) {
  return tokens / kAttentionBlock + documents;
}
inline std::int64_t most_padded_rows(std::int64_t tokens, std::int64_t documents) {
  return tokens + documents * (kAttentionPad - 1);
}

// Blocks in ascending order of document and position; returns their number.
inline std::int64_t cut_attention_blocks(const Documents& documents, AttentionBlock* blocks) {
  std::int64_t count = 0, padded = 0;
  for (std::int64_t n = 0; n < documents.count; ++n) {
    const std::int64_t begin = documents.cu_seqlens[n], length = documents.cu_seqlens[n + 1] - begin;
    for (std::int64_t first = 0; first < length; first += kAttentionBlock) {
      blocks[count] = AttentionBlock{n, begin, length, first, std::min(kAttentionBlock, length - first), padded};
      padded += blocks[count].padded_rows();
      ++count;
    }
  }
  return count;
}

// Address of position `position` of a document.
template <class S>
const S* at(const HeadView& view, const AttentionBlock& block, std::int64_t position, std::int64_t head) {
  const std::int64_t start =
      view.sequence_stride == 0 ? block.document_begin * view.token_stride : block.document * view.sequence_stride;
  return static_cast<const S*>(view.data) + start + position * view.token_stride + head * view.head_stride;
}
template <class S>
S* at(const MutableHeadView& view, const AttentionBlock& block, std::int64_t position, std::int64_t head) {
  const HeadView read{view.data, view.sequence_stride, view.token_stride, view.head_stride};
  return const_cast<S*>(at<S>(read, block, position, head));
}

// Carves typed arrays out of a workspace, each on a cache line; with no memory behind it, it only counts.
class AttentionCarver {
 public:
  explicit AttentionCarver(void* data) : data_(static_cast<char*>(data)) {}
  static constexpr std::int64_t kLine = 64;
  // First address of a workspace on a cache line; callers are asked for kLine bytes more than are used.
  static char* align(void* data) {
    return reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(data) + kLine - 1) / kLine * kLine);
  }
  template <class T>
  T* take(std::int64_t count) {
    char* here = data_ == nullptr ? nullptr : data_ + bytes_;
    bytes_ += pad_to(count * static_cast<std::int64_t>(sizeof(T)), kLine);
    return reinterpret_cast<T*>(here);
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  char* data_;
  std::int64_t bytes_ = 0;
};

// function(item, slot) for every item; slot < threads, and no two items share a slot at a time.
template <class F>
void run_in_slots(ThreadPool& pool, std::int64_t items, const F& function) {
  std::atomic<std::int64_t> next{0};
  pool.run(std::min<std::int64_t>(pool.threads(), items), [&](std::int64_t slot) {
    for (std::int64_t item = next.fetch_add(1); item < items; item = next.fetch_add(1)) function(item, slot);
  });
}

}  // namespace deltron::kernels::cpu
