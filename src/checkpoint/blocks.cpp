// See blocks.h.
#include "src/checkpoint/blocks.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace deltron {
namespace {

std::string block_text(const Block& block) {
  std::string text;
  for (std::size_t d = 0; d < block.shape.size(); ++d) {
    text += (d == 0 ? "[" : "x[") + std::to_string(block.offset[d]) + "," + std::to_string(block.offset[d] + block.shape[d]) + ")";
  }
  return text.empty() ? "[]" : text;
}

bool overlap(const Block& a, const Block& b) {
  for (std::size_t d = 0; d < a.shape.size(); ++d) {
    if (a.offset[d] >= b.offset[d] + b.shape[d] || b.offset[d] >= a.offset[d] + a.shape[d]) return false;
  }
  return true;
}

}  // namespace

Block whole_block(const std::vector<std::int64_t>& shape) { return {std::vector<std::int64_t>(shape.size(), 0), shape}; }

bool is_whole(const Block& block, const std::vector<std::int64_t>& shape) { return block.shape == shape; }

std::string block_name(const std::string& name, const Block& block, const std::vector<std::int64_t>& shape) {
  if (is_whole(block, shape)) return name;
  std::string text = name + "@";
  for (std::size_t d = 0; d < block.offset.size(); ++d) text += (d == 0 ? "" : ",") + std::to_string(block.offset[d]);
  return text;
}

std::string why_not_tiling(const std::vector<std::int64_t>& shape, const std::vector<Block>& blocks) {
  std::int64_t covered = 0;
  for (const Block& block : blocks) {
    if (block.offset.size() != shape.size() || block.shape.size() != shape.size()) return "a block of another rank than " + shape_text(shape);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      // Written so that no sum can overflow.
      if (block.offset[d] < 0 || block.shape[d] < 0 || block.offset[d] > shape[d] || block.shape[d] > shape[d] - block.offset[d]) {
        return "offset " + shape_text(block.offset) + " with shape " + shape_text(block.shape) + " reaches beyond " + shape_text(shape);
      }
    }
    covered += element_count(block.shape);
  }
  // Sorted by rows: a block can only meet those that begin before it ends, so ranks that hold row ranges cost n log n.
  std::vector<const Block*> sorted;
  for (const Block& block : blocks) {
    if (element_count(block.shape) > 0) sorted.push_back(&block);
  }
  if (!shape.empty()) {
    std::sort(sorted.begin(), sorted.end(), [](const Block* a, const Block* b) { return a->offset < b->offset; });
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      for (std::size_t j = i + 1; j < sorted.size() && sorted[j]->offset[0] < sorted[i]->offset[0] + sorted[i]->shape[0]; ++j) {
        if (overlap(*sorted[i], *sorted[j])) return "overlap of " + block_text(*sorted[i]) + " and " + block_text(*sorted[j]);
      }
    }
  }
  if (covered != element_count(shape)) return "blocks hold " + std::to_string(covered) + " of " + std::to_string(element_count(shape)) + " elements";
  return "";
}

std::int64_t copy_common(const Block& from, const std::uint8_t* from_data, const Block& to, std::uint8_t* to_data, std::int64_t element_bytes) {
  const std::size_t rank = from.shape.size();
  if (rank == 0) {
    std::memcpy(to_data, from_data, static_cast<std::size_t>(element_bytes));
    return 1;
  }
  std::vector<std::int64_t> begin(rank), count(rank);
  for (std::size_t d = 0; d < rank; ++d) {
    begin[d] = std::max(from.offset[d], to.offset[d]);
    count[d] = std::min(from.offset[d] + from.shape[d], to.offset[d] + to.shape[d]) - begin[d];
    if (count[d] <= 0) return 0;
  }
  const auto place = [&](const Block& block, const std::vector<std::int64_t>& index) {
    std::int64_t flat = 0;
    for (std::size_t d = 0; d < rank; ++d) flat = flat * block.shape[d] + (index[d] - block.offset[d]);
    return flat * element_bytes;
  };
  // Runs along the last dimension; the others count up like digits.
  std::vector<std::int64_t> index = begin;
  for (;;) {
    std::memcpy(to_data + place(to, index), from_data + place(from, index), static_cast<std::size_t>(count[rank - 1] * element_bytes));
    std::size_t d = rank - 1;
    while (d > 0 && ++index[d - 1] == begin[d - 1] + count[d - 1]) {
      index[d - 1] = begin[d - 1];
      --d;
    }
    if (d == 0) break;
  }
  return std::accumulate(count.begin(), count.end(), std::int64_t{1}, [](std::int64_t a, std::int64_t b) { return a * b; });
}

}  // namespace deltron
