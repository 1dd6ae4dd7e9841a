// Error measures of tests: RMS ratio against expected values, and pseudo-random inputs that depend on a seed alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace deltron::test {

// RMS(ours - expected) / RMS(expected); where the expected values are all zero, the largest |ours|. NaN anywhere gives NaN.
inline double error_ratio(const std::vector<double>& ours, const std::vector<double>& expected) {
  if (ours.size() != expected.size()) return std::nan("");
  double error = 0, norm = 0, largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double difference = ours[i] - expected[i];
    if (!std::isfinite(difference)) return std::nan("");
    error += difference * difference;
    norm += expected[i] * expected[i];
    largest = std::max(largest, std::fabs(ours[i]));
  }
  return norm == 0 ? largest : std::sqrt(error / norm);
}

// Uniform in [-1, 1), from a 64-bit mix (no library generator: the same everywhere).
class TestRandom {
 public:
  explicit TestRandom(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  double next() {
    state_ += 0x9e3779b97f4a7c15ull;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return static_cast<double>(z >> 11) * (2.0 / 9007199254740992.0) - 1.0;
  }
  std::vector<double> values(std::int64_t count, double scale = 1, double shift = 0) {
    std::vector<double> result(static_cast<std::size_t>(count));
    for (double& value : result) value = next() * scale + shift;
    return result;
  }

 private:
  std::uint64_t state_;
};

}  // namespace deltron::test
