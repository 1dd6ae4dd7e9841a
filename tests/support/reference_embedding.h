// Plain embedding in double.
#pragma once

#include <cstdint>
#include <vector>

namespace deltron::test {

// table [vocab, hidden], ids [tokens]; y [tokens, hidden].
inline std::vector<double> reference_embedding(const std::vector<double>& table, const std::vector<std::int32_t>& ids, std::int64_t hidden) {
  std::vector<double> y;
  for (const std::int32_t id : ids) {
    for (std::int64_t i = 0; i < hidden; ++i) y.push_back(table[static_cast<std::size_t>(id * hidden + i)]);
  }
  return y;
}

// start [vocab, hidden] plus the sum over tokens of dy.
inline std::vector<double> reference_embedding_gradient(std::vector<double> start, const std::vector<std::int32_t>& ids,
                                                        const std::vector<double>& dy, std::int64_t hidden) {
  for (std::size_t token = 0; token < ids.size(); ++token) {
    for (std::int64_t i = 0; i < hidden; ++i) {
      start[static_cast<std::size_t>(ids[token] * hidden + i)] += dy[token * static_cast<std::size_t>(hidden) + static_cast<std::size_t>(i)];
    }
  }
  return start;
}

}  // namespace deltron::test
