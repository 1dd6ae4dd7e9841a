// Did-you-mean: the nearest of the known words by edit distance.
#pragma once

#include <string>
#include <vector>

namespace deltron {

// Levenshtein distance with adjacent transpositions.
int edit_distance(const std::string& a, const std::string& b);
// Up to `most` candidates near `word`, nearest first; empty where nothing is near.
std::vector<std::string> nearest_words(const std::string& word, const std::vector<std::string>& known, int most = 3);
// "; did you mean 'x'?" or "".
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace deltron
