// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): a pure function of key and counter, so results depend
// neither on the rank layout nor on the order of calls, and recompute can replay them. Header only; usable in .cu files.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define DELTRON_HOST_DEVICE __host__ __device__
#else
#define DELTRON_HOST_DEVICE
#endif

namespace deltron {

struct Philox4 {
  std::uint32_t word[4];
};

DELTRON_HOST_DEVICE inline Philox4 philox4x32(std::uint64_t key, std::uint64_t counter_low, std::uint64_t counter_high) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_low), c1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_high), c3 = static_cast<std::uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(0xD2511F53u) * c0;
    const std::uint64_t p1 = static_cast<std::uint64_t>(0xCD9E8D57u) * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return Philox4{{c0, c1, c2, c3}};
}

// Where a random decision is made: the stream of numbers of one (seed, layer, site).
struct RngSite {
  std::uint64_t seed = 0;
  std::uint32_t layer = 0;
  std::uint32_t site = 0;
};

// Sites. Append only: their numbers are part of what makes a run repeatable.
enum : std::uint32_t {
  kRngSiteInit = 1,           // parameter initialisation
  kRngSiteHiddenDropoutMixer = 2,
  kRngSiteHiddenDropoutMlp = 3,
  kRngSiteAttentionDropout = 4,
  kRngSiteEmbeddingDropout = 5,
  kRngSiteData = 6,           // synthetic data
  kRngSiteSampling = 7,       // generation
};

DELTRON_HOST_DEVICE inline std::uint64_t mix64(std::uint64_t value) {  // SplitMix64's finaliser
  value += 0x9E3779B97F4A7C15ull;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

DELTRON_HOST_DEVICE inline std::uint64_t rng_key(const RngSite& site) {
  return mix64(site.seed ^ mix64((static_cast<std::uint64_t>(site.layer) << 32) | site.site));
}

// Four words for element block `block` of the row (sample, position). Dropout uses word i for element 4*block+i.
DELTRON_HOST_DEVICE inline Philox4 rng_words(std::uint64_t key, std::uint64_t sample, std::uint32_t position, std::uint32_t block) {
  return philox4x32(key, (static_cast<std::uint64_t>(position) << 32) | block, sample);
}

// Uniform in [0,1) with 24 bits: exact in fp32.
DELTRON_HOST_DEVICE inline float uniform_from_word(std::uint32_t word) { return static_cast<float>(word >> 8) * (1.0f / 16777216.0f); }

// Keep decision of dropout with drop probability p: word >= threshold(p).
DELTRON_HOST_DEVICE inline std::uint32_t dropout_threshold(double p) {
  const double scaled = p * 4294967296.0;
  return scaled >= 4294967295.0 ? 0xffffffffu : static_cast<std::uint32_t>(scaled);
}

// Sequential view for host code (initialisation, synthetic data): draws from one site, one stream.
class RngStream {
 public:
  RngStream(const RngSite& site, std::uint64_t stream) : key_(rng_key(site)), stream_(stream) {}
  std::uint32_t next_u32() {
    if (used_ == 4) {
      block_ = philox4x32(key_, counter_++, stream_);
      used_ = 0;
    }
    return block_.word[used_++];
  }
  std::uint64_t next_u64() {
    const std::uint64_t high = next_u32();
    return (high << 32) | next_u32();
  }
  double uniform() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }  // [0,1)
  double normal() {  // Box-Muller, one of the pair
    const double u = 1.0 - uniform();
    const double v = uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925 * v);
  }
  // Uniform integer in [0, bound), unbiased.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t limit = ~std::uint64_t{0} - (~std::uint64_t{0} % bound + 1) % bound;
    std::uint64_t draw = next_u64();
    while (draw > limit) draw = next_u64();
    return draw % bound;
  }

 private:
  std::uint64_t key_;
  std::uint64_t stream_;
  std::uint64_t counter_ = 0;
  Philox4 block_{};
  int used_ = 4;
};

}  // namespace deltron
