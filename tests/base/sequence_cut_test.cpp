// The cut of documents over context-parallel ranks, by hand and as a permutation.
#include "src/base/sequence_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "src/base/error.h"

namespace deltron {
namespace {

using Tokens = std::vector<std::int64_t>;

TEST(SequenceCut, a_rank_has_an_early_and_a_late_piece_of_every_document) {
  // Three ranks, six pieces of two tokens, and a second document of pieces of one.
  EXPECT_EQ(tokens_of_rank({0, 12, 18}, 3, 0), (Tokens{0, 1, 10, 11, 12, 17}));
  EXPECT_EQ(tokens_of_rank({0, 12, 18}, 3, 1), (Tokens{2, 3, 8, 9, 13, 16}));
  EXPECT_EQ(tokens_of_rank({0, 12, 18}, 3, 2), (Tokens{4, 5, 6, 7, 14, 15}));
  EXPECT_EQ(tokens_of_rank({0, 3, 4}, 1, 0), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(tokens_of_rank({0, 4, 4, 8}, 2, 1), (Tokens{1, 2, 5, 6})) << "an empty document is passed over";
}

TEST(SequenceCut, the_ranks_together_have_every_token_once) {
  for (const std::int64_t ranks : {1, 2, 3, 4}) {
    const Tokens offsets = {0, 4 * ranks, 4 * ranks, 10 * ranks, 12 * ranks};
    Tokens tokens = tokens_by_rank(offsets, ranks), all(static_cast<std::size_t>(offsets.back()));
    std::iota(all.begin(), all.end(), 0);
    std::sort(tokens.begin(), tokens.end());
    EXPECT_EQ(tokens, all) << ranks << " ranks";
  }
}

// The row of a token among the rows of all ranks, in closed form: piece n of a document is half m of a rank's rows of it.
TEST(SequenceCut, rows_are_where_the_closed_form_says) {
  const std::int64_t ranks = 3;
  const Tokens offsets = {0, 12, 30, 36}, tokens = tokens_by_rank(offsets, ranks);
  for (std::size_t d = 0; d + 1 < offsets.size(); ++d) {
    const std::int64_t begin = offsets[d], half = (offsets[d + 1] - begin) / (2 * ranks);
    for (std::int64_t p = begin; p < offsets[d + 1]; ++p) {
      const std::int64_t n = (p - begin) / half, o = (p - begin) % half, m = n < ranks ? 2 * n : 4 * ranks - 2 * n - 1;
      const std::int64_t row = m / 2 * (offsets.back() / ranks) + begin / ranks + m % 2 * half + o;
      EXPECT_EQ(tokens[static_cast<std::size_t>(row)], p);
    }
  }
}

TEST(SequenceCut, a_length_that_cannot_be_cut_is_refused_with_the_next_that_can) {
  try {
    tokens_of_rank({0, 8, 45}, 2, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidOffsets);
    for (const char* part : {"document 1", "37 tokens", "4 pieces", "40 tokens"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(SequenceCut, values_follow_their_tokens) {
  EXPECT_EQ(take_tokens(std::vector<int>{10, 11, 12, 13}, tokens_of_rank({0, 4}, 2, 1)), (std::vector<int>{11, 12}));
}

}  // namespace
}  // namespace deltron
