// See suggest.h.
#include "src/base/suggest.h"

#include <algorithm>

namespace deltron {

int edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<int>> cost(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

std::vector<std::string> nearest_words(const std::string& word, const std::vector<std::string>& known, int most) {
  std::vector<std::pair<int, std::string>> ranked;
  const int limit = std::max<int>(2, static_cast<int>(word.size()) / 2);
  for (const std::string& candidate : known) {
    const int distance = edit_distance(word, candidate);
    if (distance <= limit) ranked.emplace_back(distance, candidate);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> words;
  for (const auto& [distance, candidate] : ranked) {
    if (static_cast<int>(words.size()) == most) break;
    words.push_back(candidate);
  }
  return words;
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::vector<std::string> words = nearest_words(word, known, 1);
  return words.empty() ? "" : "; did you mean '" + words.front() + "'?";
}

}  // namespace deltron
