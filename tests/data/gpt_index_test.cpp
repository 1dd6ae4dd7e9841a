// The sample index against published vectors and against the plain definition; splits and blends.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <numeric>

#include "src/base/rng.h"
#include "src/base/signals.h"
#include "src/data/blend.h"
#include "src/data/gpt_index.h"
#include "src/data/numpy_shuffle.h"
#include "src/data/split.h"
#include "tests/data/data_test_support.h"

namespace deltron {
namespace {

TEST(NumpyShuffle, equals_numpys_random_state) {
  std::vector<std::int32_t> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  NumpyRandomState random(1234);
  random.shuffle(values.data(), 20);
  EXPECT_EQ(values, (std::vector<std::int32_t>{3, 3, 2, 6, 4, 5, 4, 0, 8, 8, 7, 1, 0, 9, 7, 1, 9, 2, 6, 5}));
}

TEST(NumpyShuffle, bounds_beyond_32_bits_take_two_words) {
  std::mt19937 words(7);
  const std::uint64_t high = words(), low = words();
  NumpyRandomState random(7);
  EXPECT_EQ(random.interval(~std::uint64_t{0}), (high << 32) | low);
  EXPECT_EQ(random.interval(0), 0u);
}

struct IndexCase {
  std::int64_t samples;
  std::vector<std::int32_t> documents;
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> shuffle;
};

TEST(GptIndex, equals_megatrons_published_cases) {
  const IndexCase cases[] = {
      {-1, {0, 1, 2, 3}, {0, 0, 0, 4, 2, 0, 2, 4, 3, 1}, {1, 2, 3, 0}},
      {6, {0, 1, 2, 3, 1, 2, 3, 0}, {0, 0, 0, 4, 2, 0, 2, 4, 3, 1, 4, 1, 5, 2, 5, 6, 6, 3, 7, 3}, {0, 2, 3, 1, 4, 8, 7, 6, 5}},
      {9, {2, 1, 2, 0, 0, 1, 3, 3}, {0, 0, 0, 4, 1, 1, 2, 2, 2, 6, 3, 3, 4, 2, 5, 1, 6, 2, 7, 2}, {6, 4, 0, 5, 3, 2, 8, 7, 1}},
  };
  for (const IndexCase& item : cases) {
    const GptIndex index = build_gpt_index({5, 3, 7, 4}, 0, 4, item.samples, 1234);
    EXPECT_EQ(index.documents, item.documents) << item.samples;
    EXPECT_EQ(index.sample_start, item.starts) << item.samples;
    EXPECT_EQ(index.shuffle, item.shuffle) << item.samples;
  }
}

TEST(GptIndex, windows_tile_the_stream_with_one_token_of_overlap) {
  RngStream random({99, 0, kRngSiteData}, 0);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int32_t> lengths;
    const std::int32_t first = static_cast<std::int32_t>(random.below(5));
    for (std::uint64_t i = 0, n = 1 + random.below(12); i < n; ++i) lengths.push_back(static_cast<std::int32_t>(random.below(9)));
    lengths.push_back(3);
    const std::int64_t T = 1 + static_cast<std::int64_t>(random.below(7));
    const std::int64_t wanted = static_cast<std::int64_t>(random.below(60)) - 1;
    const GptIndex index = build_gpt_index(lengths, first, T, wanted, static_cast<std::uint32_t>(random.next_u32()));
    // The plain definition: sample i starts at token i*T of the concatenation.
    std::vector<std::pair<std::int64_t, std::int64_t>> stream;
    for (std::size_t p = 0; p < index.documents.size(); ++p) {
      for (std::int64_t o = 0; o < lengths[static_cast<std::size_t>(index.documents[p] - first)]; ++o) {
        stream.emplace_back(static_cast<std::int64_t>(p), o);
      }
    }
    const std::int64_t samples = static_cast<std::int64_t>(index.shuffle.size());
    ASSERT_EQ(samples, (static_cast<std::int64_t>(stream.size()) - 1) / T);
    ASSERT_GE(samples, wanted);
    for (std::int64_t i = 1; i <= samples; ++i) {
      ASSERT_EQ(index.sample_start[static_cast<std::size_t>(2 * i)], stream[static_cast<std::size_t>(i * T)].first);
      ASSERT_EQ(index.sample_start[static_cast<std::size_t>(2 * i + 1)], stream[static_cast<std::size_t>(i * T)].second);
    }
    std::vector<std::int64_t> sorted = index.shuffle;
    std::sort(sorted.begin(), sorted.end());
    for (std::int64_t i = 0; i < samples; ++i) ASSERT_EQ(sorted[static_cast<std::size_t>(i)], i);
    std::vector<int> uses(lengths.size(), 0);
    for (const std::int32_t document : index.documents) ++uses[static_cast<std::size_t>(document - first)];
    ASSERT_EQ(*std::min_element(uses.begin(), uses.end()), *std::max_element(uses.begin(), uses.end()));
  }
}

TEST(GptIndex, last_epoch_is_shuffled_alone_below_four_fifths) {
  // 100 tokens, T 9: 11 samples an epoch, 11 before the second. floor(0.8 * 11) = 8.
  EXPECT_TRUE(plan_gpt_index(100, 9, 18).last_epoch_separate);   // 7 from the last epoch
  EXPECT_FALSE(plan_gpt_index(100, 9, 19).last_epoch_separate);  // 8
  EXPECT_FALSE(plan_gpt_index(100, 9, 11).last_epoch_separate);  // one epoch
  EXPECT_EQ(plan_gpt_index(100, 9, 11).epochs, 1);
  EXPECT_EQ(plan_gpt_index(100, 9, 12).epochs, 2);
}

TEST(GptIndex, counts_need_64_bits_and_have_them) {
  const GptIndexPlan plan = plan_gpt_index(std::int64_t{15} << 40, 4096, std::int64_t{1} << 34);
  EXPECT_EQ(plan.epochs, 5);
  EXPECT_EQ(plan.samples, (5 * (std::int64_t{15} << 40) - 1) / 4096);
}

TEST(GptIndex, building_stops_on_request) {
  install_stop_signals();
  std::raise(SIGTERM);
  EXPECT_THROW(build_gpt_index({5, 3, 7, 4}, 0, 4, 1000, 1234), StopRequested);
  clear_stop_signal();
}

TEST(Split, rounds_half_to_even_as_megatron_does) {
  auto range = [](const char* text, Split split, std::int64_t n) {
    const DocumentRange r = split_range(text, split, n);
    return std::pair<std::int64_t, std::int64_t>(r.begin, r.end);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(range("90,10,0", Split::Train, 1189), Pair(0, 1070));
  EXPECT_EQ(range("90,10,0", Split::Valid, 1189), Pair(1070, 1189));
  EXPECT_EQ(range("90,10,0", Split::Test, 1189), Pair(1189, 1189));
  EXPECT_EQ(range("99,1,0", Split::Train, 50), Pair(0, 50));  // 49.5 -> 50
  EXPECT_EQ(range("1,1", Split::Train, 5), Pair(0, 2));       // 2.5 -> 2
  EXPECT_EQ(range("1", Split::Train, 5), Pair(0, 5));
  EXPECT_EQ(range("969, 30, 1", Split::Test, 1000), Pair(999, 1000));
}

TEST(Split, bad_text_is_refused) {
  for (const char* text : {"", "90,ten", "90,,10", "-1,2", "0,0,0", "1,2,3,4", "nan", "inf", "90;10"}) {
    expect_error(ErrorCode::DataOptionInvalid, "data.split", [&] { parse_split(text); });
  }
  expect_error(ErrorCode::DataOptionInvalid, "train, valid or test", [] { parse_split_name("validation"); });
  EXPECT_EQ(parse_split_name("valid"), Split::Valid);
}

TEST(Blend, equals_the_published_orders) {
  const Blend uneven = build_blend({0.3, 0.7}, 12);
  EXPECT_EQ(uneven.source, (std::vector<std::int16_t>{1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(uneven.sample, (std::vector<std::int64_t>{0, 0, 1, 2, 1, 3, 4, 2, 5, 6, 3, 7}));
  EXPECT_EQ(build_blend({2, 1, 1}, 8).source, (std::vector<std::int16_t>{0, 1, 2, 0, 0, 1, 2, 0}));
}

TEST(Blend, never_asks_a_source_for_more_than_it_was_built_for) {
  RngStream random({5, 0, kRngSiteData}, 3);
  for (int round = 0; round < 100; ++round) {
    std::vector<double> weights;
    for (std::uint64_t i = 0, n = 1 + random.below(6); i < n; ++i) weights.push_back(0.001 + random.uniform());
    const std::int64_t samples = 1 + static_cast<std::int64_t>(random.below(3000));
    const Blend blend = build_blend(weights, samples);
    const std::vector<double> shares = normalise_weights(weights);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto count = std::count(blend.source.begin(), blend.source.end(), static_cast<std::int16_t>(i));
      ASSERT_LE(count, blend_source_samples(shares[i], samples)) << "weight " << shares[i] << " of " << samples;
    }
  }
}

TEST(Blend, paths_and_weights_pair_up) {
  EXPECT_EQ(parse_data_path({"data/a"})[0].prefix, "data/a");
  const auto equal = parse_data_path({"a", "b", "c"});
  ASSERT_EQ(equal.size(), 3u);
  EXPECT_EQ(equal[2].weight, equal[0].weight);
  const auto pair = parse_data_path({"0.3", "a", "0.7", "b"});
  ASSERT_EQ(pair.size(), 2u);
  EXPECT_EQ(pair[1].prefix, "b");
  EXPECT_EQ(pair[1].weight, 0.7);
  expect_error(ErrorCode::DataOptionInvalid, "no data set", [] { parse_data_path({}); });
  expect_error(ErrorCode::DataOptionInvalid, "do not pair up", [] { parse_data_path({"0.3", "a", "b"}); });
  expect_error(ErrorCode::DataOptionInvalid, "not a weight", [] { parse_data_path({"a", "0.5"}); });
  expect_error(ErrorCode::DataOptionInvalid, "out of range", [] { parse_data_path({"0", "a", "1", "b"}); });
  expect_error(ErrorCode::DataOptionInvalid, "out of range", [] { parse_data_path({"nan", "a", "1", "b"}); });
}

}  // namespace
}  // namespace deltron
