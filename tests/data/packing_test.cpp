// Both packings and the evaluation walk: borders, positions, and that everything is predicted exactly once.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "src/base/rng.h"
#include "src/data/documents_source.h"
#include "src/data/evaluation_source.h"
#include "src/data/windows_source.h"
#include "tests/data/data_test_support.h"

namespace deltron {
namespace {

constexpr std::int32_t kEod = 9999;
using Tokens = std::vector<std::int32_t>;

GptIndexRequest windows(std::int64_t documents, std::int64_t seq_length, std::int64_t samples, std::uint32_t seed = 1234) {
  GptIndexRequest request;
  request.range = {0, documents};
  request.seq_length = seq_length;
  request.samples_wanted = samples;
  request.seed = seed;
  return request;
}

// Documents of numbered_documents: token / 1000 is the document, token % 1000 the place in it.
std::int32_t document_of(std::int32_t token) { return token / 1000; }

TEST(WindowsSource, tokens_are_the_window_and_labels_the_next_ones) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({5, 3, 7, 4}), 10000);
  const WindowsSource source(dataset, -1, windows(4, 4, -1));  // shuffle 1 2 3 0; starts (0,0)(0,4)(2,0)(2,4)(3,1)
  ASSERT_EQ(source.num_samples(), 4);
  Sample sample;
  source.read(0, sample);
  EXPECT_EQ(sample.tokens, (Tokens{4, 1000, 1001, 1002}));
  EXPECT_EQ(sample.labels, (Tokens{kIgnoreLabel, 1001, 1002, kIgnoreLabel}));  // no EOD: a label never crosses a border
  EXPECT_EQ(sample.segment_ends, (std::vector<std::int64_t>{1, 4}));
  source.read(3, sample);
  EXPECT_EQ(sample.tokens, (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(sample.labels, (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(sample.segment_ends, (std::vector<std::int64_t>{4}));
}

TEST(WindowsSource, segments_start_at_the_end_of_document_token) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({2, 3}), 10000, kEod);
  const WindowsSource source(dataset, kEod, windows(2, 6, -1, 1));
  Sample sample;
  source.read(0, sample);
  const bool first_first = sample.tokens[0] == 0;
  const Tokens expected = first_first ? Tokens{0, 1, kEod, 1000, 1001, 1002} : Tokens{1000, 1001, 1002, kEod, 0, 1};
  EXPECT_EQ(sample.tokens, expected);
  Tokens labels(expected.begin() + 1, expected.end());
  labels.push_back(kEod);
  EXPECT_EQ(sample.labels, labels);  // every character is predicted: the first one by EOD, and EOD by the last one
  EXPECT_EQ(sample.segment_ends, (std::vector<std::int64_t>{first_first ? 2 : 3, 6}));
}

TEST(WindowsSource, every_label_of_the_stream_is_used_once_an_epoch) {
  const ScratchFolder folder;
  const std::vector<int> lengths = {17, 1, 30, 2, 8, 25, 3, 3};
  const auto dataset = build_dataset(folder.file("set"), numbered_documents(lengths), 10000, kEod);
  const std::int64_t T = 8, total = 17 + 1 + 30 + 2 + 8 + 25 + 3 + 3 + 8;
  const WindowsSource source(dataset, kEod, windows(8, T, -1));
  ASSERT_EQ(source.num_samples(), (total - 1) / T);
  std::multiset<std::int32_t> seen;
  Sample sample;
  for (std::int64_t k = 0; k < source.num_samples(); ++k) {
    source.read(k, sample);
    ASSERT_EQ(sample.tokens.size(), 8u);
    for (std::size_t i = 0; i < 8; ++i) {
      if (sample.labels[i] != kEod) seen.insert(sample.labels[i]);
      // Inside a segment all text is of one document, and so is the label (EOD apart).
      if (sample.labels[i] != kEod && sample.tokens[i] != kEod) {
        ASSERT_EQ(sample.labels[i], sample.tokens[i] + 1);
      }
    }
  }
  for (const std::int32_t token : seen) EXPECT_EQ(seen.count(token), 1u) << token;
  EXPECT_GE(static_cast<std::int64_t>(seen.size()), source.num_samples() * T - 8);
}

TEST(WindowsSource, segments_never_mix_documents) {
  const ScratchFolder folder;
  for (const std::int32_t eod : {-1, kEod}) {
    const auto dataset = build_dataset(folder.file("set"), numbered_documents({1, 4, 2, 19, 1, 1, 6}), 10000, eod);
    const auto source = std::make_shared<WindowsSource>(dataset, eod, windows(7, 5, 40));
    const BatchLoader loader(source, 3);
    for (std::int64_t first = 0; first + 3 <= 40; first += 3) {
      const HostBatch batch = loader.batch(first);
      ASSERT_EQ(batch.cu_seqlens.front(), 0);
      ASSERT_EQ(batch.cu_seqlens.back(), 15);
      for (std::size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
        std::set<std::int32_t> documents;
        for (std::int64_t i = batch.cu_seqlens[s]; i < batch.cu_seqlens[s + 1]; ++i) {
          const std::size_t at = static_cast<std::size_t>(i);
          ASSERT_EQ(batch.positions[at], i - batch.cu_seqlens[s]);
          if (batch.tokens[at] != kEod) documents.insert(document_of(batch.tokens[at]));
          if (batch.labels[at] != kEod && batch.labels[at] != kIgnoreLabel) documents.insert(document_of(batch.labels[at]));
          ASSERT_FALSE(eod >= 0 && batch.tokens[at] == kEod && batch.positions[at] != 0);
        }
        ASSERT_LE(documents.size(), 1u);
      }
      ASSERT_EQ(batch.valid_tokens() < 15, eod < 0 && std::count(batch.labels.begin(), batch.labels.end(), kIgnoreLabel) > 0);
    }
  }
}

TEST(WindowsSource, too_little_text_is_said) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), {{1, 2, 3}});
  expect_error(ErrorCode::DataEmpty, "3 tokens in documents 0 to 1, seq_length 3",
               [&] { WindowsSource(dataset, -1, windows(1, 3, -1)); });
  EXPECT_EQ(WindowsSource(dataset, -1, windows(1, 2, -1)).num_samples(), 1);
}

TEST(FirstFitDecreasing, equals_the_plain_definition) {
  RngStream random({3, 0, kRngSiteData}, 1);
  for (int round = 0; round < 100; ++round) {
    const std::int32_t capacity = 1 + static_cast<std::int32_t>(random.below(40));
    std::vector<std::int32_t> lengths;
    for (std::uint64_t i = 0, n = random.below(60); i < n; ++i) {
      lengths.push_back(1 + static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(capacity))));
    }
    std::vector<std::int32_t> order(lengths.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      const auto x = lengths[static_cast<std::size_t>(a)], y = lengths[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    std::vector<std::vector<std::int32_t>> expected;
    std::vector<std::int32_t> left;
    for (const std::int32_t item : order) {
      std::size_t bin = 0;
      while (bin < left.size() && left[bin] < lengths[static_cast<std::size_t>(item)]) ++bin;
      if (bin == left.size()) {
        left.push_back(capacity);
        expected.emplace_back();
      }
      left[bin] -= lengths[static_cast<std::size_t>(item)];
      expected[bin].push_back(item);
    }
    ASSERT_EQ(pack_first_fit_decreasing(lengths, capacity), expected);
  }
}

// (document, place) pairs that one epoch predicts, with their number.
std::map<std::int32_t, int> predictions_of_epoch(const DocumentsSource& source, std::int64_t epoch, int* end_predictions) {
  std::map<std::int32_t, int> seen;
  *end_predictions = 0;
  Sample sample;
  const std::int64_t n = source.samples_per_epoch();
  for (std::int64_t k = epoch * n; k < (epoch + 1) * n; ++k) {
    source.read(k, sample);
    for (const std::int32_t label : sample.labels) {
      if (label == kEod) {
        ++*end_predictions;
      } else if (label != kIgnoreLabel) {
        ++seen[label];
      }
    }
  }
  return seen;
}

TEST(DocumentsSource, every_character_and_every_end_is_predicted_once_an_epoch) {
  const ScratchFolder folder;
  const std::vector<int> lengths = {17, 1, 30, 2, 8, 25, 3, 0, 3, 7, 16};
  const auto dataset = build_dataset(folder.file("set"), numbered_documents(lengths), 20000, kEod);
  const DocumentsSource source(dataset, kEod, {0, 11}, 8, 1);
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    int ends = 0;
    const auto seen = predictions_of_epoch(source, epoch, &ends);
    EXPECT_EQ(ends, 11);
    EXPECT_EQ(seen.size(), 112u);
    for (const auto& [token, count] : seen) EXPECT_EQ(count, 1) << token;
  }
}

TEST(DocumentsSource, without_an_end_token_the_first_character_is_given) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({5, 1, 0, 12}), 20000);
  const DocumentsSource source(dataset, -1, {0, 4}, 6, 1);
  int ends = 0;
  const auto seen = predictions_of_epoch(source, 0, &ends);
  EXPECT_EQ(ends, 0);
  EXPECT_EQ(seen.size(), 4u + 11u);
  for (const auto& [token, count] : seen) {
    EXPECT_EQ(count, 1);
    EXPECT_NE(token % 1000, 0);
  }
}

TEST(DocumentsSource, segments_are_documents_and_padding_is_masked) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents({4, 2, 5, 1, 13}), 10000, kEod);
  const auto source = std::make_shared<DocumentsSource>(dataset, kEod, DocumentRange{0, 5}, 8, 7);
  const HostBatch batch = BatchLoader(source, source->samples_per_epoch()).batch(0);
  ASSERT_EQ(batch.num_tokens() % 8, 0);
  std::int64_t padding = 0;
  for (std::size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    const std::size_t begin = static_cast<std::size_t>(batch.cu_seqlens[s]),
                      end = static_cast<std::size_t>(batch.cu_seqlens[s + 1]);
    ASSERT_LT(begin, end);
    std::int32_t document = -1;
    for (std::size_t i = begin; i < end; ++i) {
      if (batch.labels[i] == kIgnoreLabel) {
        ++padding;
        EXPECT_EQ(batch.tokens[i], kEod);
        continue;
      }
      EXPECT_TRUE(batch.labels[i] == kEod || document < 0 || document_of(batch.labels[i]) == document);
      if (batch.labels[i] != kEod) document = document_of(batch.labels[i]);
      EXPECT_EQ(batch.tokens[i] == kEod && i != begin, false);  // the end token is the first token of its document
    }
  }
  EXPECT_EQ(batch.valid_tokens(), 4 + 2 + 5 + 1 + 13 + 5);
  EXPECT_EQ(padding, batch.num_tokens() - batch.valid_tokens());
  EXPECT_DOUBLE_EQ(source->fill(), static_cast<double>(batch.valid_tokens()) / static_cast<double>(batch.num_tokens()));
}

TEST(DocumentsSource, order_changes_with_epoch_and_seed_and_is_a_pure_function) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), numbered_documents(std::vector<int>(40, 5)), 50000, kEod);
  const DocumentsSource a(dataset, kEod, {0, 40}, 6, 1), b(dataset, kEod, {0, 40}, 6, 2), c(dataset, kEod, {0, 40}, 6, 1);
  ASSERT_EQ(a.samples_per_epoch(), 40);
  auto order = [](const DocumentsSource& source, std::int64_t epoch) {
    Tokens firsts;
    Sample sample;
    for (std::int64_t k = 0; k < 40; ++k) {
      source.read(epoch * 40 + k, sample);
      firsts.push_back(sample.labels[0]);
    }
    return firsts;
  };
  const Tokens first = order(a, 0);
  EXPECT_NE(first, order(a, 1));
  EXPECT_NE(first, order(b, 0));
  EXPECT_EQ(order(a, 5), order(c, 5));
  EXPECT_EQ(first, order(a, 0));  // epoch 0 again after others
}

TEST(DocumentsSource, an_empty_split_is_said) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), {{1}});
  expect_error(ErrorCode::DataEmpty, "no document to pack", [&] { DocumentsSource(dataset, -1, {0, 1}, 8, 1); });
}

TEST(EvaluationSource, every_character_and_every_end_is_predicted_once_in_order) {
  const ScratchFolder folder;
  const std::vector<int> lengths = {9, 17, 1, 0, 30, 2};
  const auto dataset = build_dataset(folder.file("set"), numbered_documents(lengths), 20000, kEod);
  for (const std::int64_t max_tokens : {1, 8, 20, 1000}) {
    const EvaluationSource source(dataset, kEod, {1, 6}, 8, max_tokens);
    Tokens labels;
    std::int64_t windows_seen = 0;
    for (std::int64_t b = 0; b < source.num_batches(); ++b) {
      const HostBatch batch = source.batch(b);
      EXPECT_TRUE(batch.num_tokens() <= max_tokens || batch.num_segments() == 1);
      EXPECT_EQ(batch.valid_tokens(), batch.num_tokens());  // ragged: no padding
      labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
      for (std::int64_t s = 0; s < batch.num_segments(); ++s) {
        const std::size_t begin = static_cast<std::size_t>(batch.cu_seqlens[static_cast<std::size_t>(s)]);
        EXPECT_LE(batch.cu_seqlens[static_cast<std::size_t>(s + 1)] - batch.cu_seqlens[static_cast<std::size_t>(s)], 8);
        EXPECT_EQ(batch.positions[begin], 0);
        EXPECT_EQ(batch.sample_ids[static_cast<std::size_t>(s)], windows_seen);
        if (batch.tokens[begin] != kEod) {
          EXPECT_EQ(document_of(batch.tokens[begin]), source.document_of_window(windows_seen));
        }
        ++windows_seen;
      }
    }
    Tokens expected;
    for (std::int64_t d = 1; d < 6; ++d) {
      const Tokens document = dataset->read_all(d);
      expected.insert(expected.end(), document.begin(), document.end());
    }
    EXPECT_EQ(labels, expected);
    EXPECT_EQ(source.num_predictions(), static_cast<std::int64_t>(expected.size()));
    EXPECT_EQ(source.num_windows(), windows_seen);
  }
}

TEST(EvaluationSource, a_window_ends_with_the_label_that_starts_the_next) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), {{1, 2, 3, 4, 5}}, 257, 256);
  const EvaluationSource source(dataset, 256, {0, 1}, 4, 4);
  ASSERT_EQ(source.num_batches(), 2);
  EXPECT_EQ(source.batch(0).tokens, (Tokens{256, 1, 2, 3}));
  EXPECT_EQ(source.batch(0).labels, (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(source.batch(1).tokens, (Tokens{4, 5}));
  EXPECT_EQ(source.batch(1).labels, (Tokens{5, 256}));
}

TEST(EvaluationSource, an_empty_split_is_said) {
  const ScratchFolder folder;
  const auto dataset = build_dataset(folder.file("set"), {{1, 2}});
  expect_error(ErrorCode::DataEmpty, "nothing to evaluate on", [&] { EvaluationSource(dataset, -1, {1, 1}, 8, 8); });
}

}  // namespace
}  // namespace deltron
