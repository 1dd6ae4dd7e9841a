// Philox: the published test vectors, and the properties that dropout and initialisation rely on.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "src/base/rng.h"

namespace deltron {
namespace {

TEST(Philox, known_answers) {  // Random123's kat_vectors for philox4x32-10
  const Philox4 zero = philox4x32(0, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const Philox4 ones = philox4x32(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones.word[0], 0x408f276du);
  EXPECT_EQ(ones.word[1], 0x41c83b0eu);
  EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST(RngStream, normal_has_unit_moments) {
  RngStream stream({1234, 0, kRngSiteInit}, 7);
  double sum = 0, squares = 0;
  const int count = 200000;
  for (int i = 0; i < count; ++i) {
    const double draw = stream.normal();
    ASSERT_TRUE(std::isfinite(draw));
    sum += draw;
    squares += draw * draw;
  }
  EXPECT_NEAR(sum / count, 0.0, 0.01);
  EXPECT_NEAR(squares / count, 1.0, 0.02);
}

TEST(RngStream, sites_and_layers_differ) {
  RngStream a({1, 0, kRngSiteInit}, 0), b({1, 1, kRngSiteInit}, 0), c({1, 0, kRngSiteData}, 0), d({1, 0, kRngSiteInit}, 0);
  const std::uint64_t first = a.next_u64();
  EXPECT_NE(first, b.next_u64());
  EXPECT_NE(first, c.next_u64());
  EXPECT_EQ(first, d.next_u64());
}

TEST(RngStream, below_is_uniform_enough) {
  RngStream stream({5, 0, kRngSiteData}, 0);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) counts[stream.below(7)]++;
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);
}

}  // namespace
}  // namespace deltron
