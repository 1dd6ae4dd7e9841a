// numpy's legacy RandomState(seed).shuffle, bit for bit: what Megatron's sample order rests on.
#pragma once

#include <cstdint>
#include <random>
#include <utility>

#include "src/base/signals.h"

namespace deltron {

class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed) : engine_(seed) {}

  // Uniform integer in [0, max]: masked rejection, one 32-bit word a draw (two, high first, beyond 2^32-1).
  std::uint64_t interval(std::uint64_t max) {
    if (max == 0) return 0;
    std::uint64_t mask = max;
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    std::uint64_t value;
    do {
      value = engine_();
      if (max > 0xffffffffull) value = (value << 32) | engine_();
      value &= mask;
    } while (value > max);
    return value;
  }

  template <class T>
  void shuffle(T* values, std::int64_t count) {
    for (std::int64_t i = count - 1; i >= 1; --i) {
      if ((i & 0xfffff) == 0) poll_stop("shuffling samples");
      std::swap(values[i], values[interval(static_cast<std::uint64_t>(i))]);
    }
  }

 private:
  std::mt19937 engine_;
};

}  // namespace deltron
