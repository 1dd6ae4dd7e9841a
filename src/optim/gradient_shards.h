// How main gradients are cut for data parallelism: the buffer into buckets, which are reduced while backward still runs, and each bucket into
// one shard a rank. Integer code: every rank of a group finds the same cut. Shards end at rows (ZeRO-1: Rajbhandari et al. 2020; buckets as in
// PyTorch's DDP, Li et al. 2020).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deltron {

// A parameter in the gradient buffer, row-major, from element `begin`. Its sections are runs of rows that no shard mixes.
struct ShardedParameter {
  std::int64_t begin = 0, row_elements = 1;
  std::vector<std::int64_t> section_rows;
  std::int64_t rows() const;
};

// Rows of one section of one parameter.
struct ShardPiece {
  std::size_t parameter = 0, section = 0;
  std::int64_t row_begin = 0, rows = 0;  // in the parameter
};

struct GradientShard {
  std::int64_t begin = 0, end = 0;  // in the buffer
  std::vector<ShardPiece> pieces;
};

struct GradientBucket {
  std::vector<GradientShard> shards;         // one a rank, one after the other; perhaps empty
  std::vector<std::size_t> parameters;       // that have rows here
  std::int64_t capacity() const;             // elements of the largest shard
};

// Consecutive buckets of at least `bucket_elements` (the last: what is left) that cover the buffer, in its order, for `ranks` shards each.
std::vector<GradientBucket> cut_gradients(const std::vector<ShardedParameter>& parameters, std::int64_t bucket_elements, int ranks);

}  // namespace deltron
