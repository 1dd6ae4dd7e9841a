// See gradient_shards.h.
#include "src/optim/gradient_shards.h"

#include <algorithm>
#include <numeric>

namespace deltron {
namespace {

constexpr std::int64_t kUnit = 65536;  // elements a unit at most, but for longer rows: what may be moved from one shard to the next

struct Unit {
  ShardPiece piece;
  std::int64_t begin = 0, end = 0;  // in the buffer
};

std::vector<Unit> units_of(const std::vector<ShardedParameter>& parameters) {
  std::vector<Unit> units;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const ShardedParameter& parameter = parameters[p];
    const std::int64_t step = std::max<std::int64_t>(1, kUnit / parameter.row_elements);
    std::int64_t row = 0;
    for (std::size_t s = 0; s < parameter.section_rows.size(); ++s) {
      const std::int64_t end = row + parameter.section_rows[s];
      while (row < end) {
        const std::int64_t rows = std::min(step, end - row), begin = parameter.begin + row * parameter.row_elements;
        units.push_back({{p, s, row, rows}, begin, begin + rows * parameter.row_elements});
        row += rows;
      }
    }
  }
  return units;
}

GradientBucket bucket_of(const std::vector<Unit>& units, std::size_t first, std::size_t last, int ranks) {
  GradientBucket bucket;
  const std::int64_t begin = units[first].begin, size = units[last - 1].end - begin;
  std::size_t at = first;
  for (int rank = 0; rank < ranks; ++rank) {
    // A unit goes to the shard in whose share its middle lies.
    const std::int64_t until = begin + size * (rank + 1) / ranks;
    GradientShard shard;
    shard.begin = shard.end = rank == 0 ? begin : bucket.shards.back().end;
    for (; at < last && (rank == ranks - 1 || (units[at].begin + units[at].end) / 2 < until); ++at) {
      const Unit& unit = units[at];
      shard.end = unit.end;
      const bool goes_on = !shard.pieces.empty() && shard.pieces.back().parameter == unit.piece.parameter && shard.pieces.back().section == unit.piece.section;
      if (goes_on) {
        shard.pieces.back().rows += unit.piece.rows;
      } else {
        shard.pieces.push_back(unit.piece);
      }
      if (bucket.parameters.empty() || bucket.parameters.back() != unit.piece.parameter) bucket.parameters.push_back(unit.piece.parameter);
    }
    bucket.shards.push_back(shard);
  }
  return bucket;
}

}  // namespace

std::int64_t ShardedParameter::rows() const { return std::accumulate(section_rows.begin(), section_rows.end(), std::int64_t{0}); }

std::int64_t GradientBucket::capacity() const {
  std::int64_t most = 0;
  for (const GradientShard& shard : shards) most = std::max(most, shard.end - shard.begin);
  return most;
}

std::vector<GradientBucket> cut_gradients(const std::vector<ShardedParameter>& parameters, std::int64_t bucket_elements, int ranks) {
  const std::vector<Unit> units = units_of(parameters);
  std::vector<GradientBucket> buckets;
  std::size_t first = 0;
  for (std::size_t at = 0; at < units.size(); ++at) {
    const bool full = units[at].end - units[first].begin >= bucket_elements;
    if (!full && at + 1 < units.size()) continue;
    buckets.push_back(bucket_of(units, first, at + 1, ranks));
    first = at + 1;
  }
  return buckets;
}

}  // namespace deltron
