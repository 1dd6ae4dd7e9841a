// Documents of a packed batch do not see each other: each one's outputs and the gradient of its inputs are, to the bit, those that it has
// alone, and no parameter's gradient depends on a neighbour. Borders at every position of a chunk, lengths that fit no block, one token.
#include "tests/support/tiny_model.h"

namespace deltron::test {
namespace {

constexpr std::int64_t kVocab = 300;

TransformerConfig packed_config(ExperimentalAttentionVariant variant) {
  TransformerConfig config = tiny_config();
  config.experimental_attention_variant = variant;
  config.vocab_size = kVocab;
  config.hidden_size = 6;
  config.hidden_dropout = 0.2;
  config.attention_dropout = 0.3;
  return config;
}

// Every token of the batch has an id of its own, so that the rows of the embedding's gradient are the gradient of the decoder's input.
// A changed document has other ids, which no other document has.
Batch packed(const std::vector<std::int64_t>& lengths, std::size_t changed = ~std::size_t{0}) {
  Batch batch = packed_batch(lengths, kVocab);
  const std::int64_t tokens = batch.offsets.back();
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    batch.samples.push_back(static_cast<std::int64_t>(d));
    for (std::int64_t t = batch.offsets[d]; t < batch.offsets[d + 1]; ++t) {
      batch.ids[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t + (d == changed ? tokens : 0));
      batch.labels[static_cast<std::size_t>(t)] = static_cast<std::int32_t>((5 * t + 1) % kVocab);
    }
  }
  EXPECT_LE(2 * tokens, kVocab);
  return batch;
}

Batch alone(const Batch& batch, std::size_t document) {
  Batch one;
  const auto begin = batch.offsets[document], end = batch.offsets[document + 1];
  one.offsets = {0, end - begin};
  one.ids.assign(batch.ids.begin() + begin, batch.ids.begin() + end);
  one.labels.assign(batch.labels.begin() + begin, batch.labels.begin() + end);
  one.samples = {static_cast<std::int64_t>(document)};
  return one;
}

// Only this document's labels count.
Batch judged(Batch batch, std::size_t document) {
  for (std::int64_t t = 0; t < batch.offsets.back(); ++t) {
    if (t < batch.offsets[document] || t >= batch.offsets[document + 1]) batch.labels[static_cast<std::size_t>(t)] = -1;
  }
  return batch;
}

struct Kind {
  ExperimentalAttentionVariant variant;
  DType dtype;
};

class Documents : public testing::TestWithParam<Kind> {
 protected:
  Documents() : run_(packed_config(GetParam().variant), GetParam().dtype) {}

  std::vector<std::uint64_t> outputs(const Batch& batch, std::size_t document) {
    const Tensor scores = run_.logits(batch);
    return bits_of(run_.ctx, scores.slice(0, batch.offsets[document], batch.offsets[document + 1] - batch.offsets[document]));
  }
  // Loss and every gradient, when this document alone is judged.
  std::vector<std::uint64_t> gradients(const Batch& batch, std::size_t document) {
    return bits_of(run_.loss_and_gradients(judged(batch, document)));
  }
  // Rows of the embedding's gradient, after `gradients`.
  std::vector<std::uint64_t> input_gradient(const Batch& batch, std::size_t document) {
    for (const ParameterPtr& parameter : run_.model.parameters().all()) {
      if (parameter->spec.name != "embedding.word_embeddings.weight") continue;
      const std::int64_t first = batch.ids[static_cast<std::size_t>(batch.offsets[document])];
      return bits_of(run_.ctx, parameter->main_gradient.slice(0, first, batch.offsets[document + 1] - batch.offsets[document]));
    }
    return {};
  }

  // One document among others against the same one alone, and against the same neighbours with other content.
  void expect_isolated(const std::vector<std::int64_t>& lengths, std::size_t document, std::size_t neighbour) {
    const Batch batch = packed(lengths), other = packed(lengths, neighbour), one = alone(batch, document);
    const std::vector<std::uint64_t> own = outputs(one, 0);
    ASSERT_EQ(outputs(batch, document), own);
    ASSERT_EQ(outputs(other, document), own);
    ASSERT_NE(outputs(other, neighbour), outputs(batch, neighbour)) << "the neighbour has changed";
    const std::vector<std::uint64_t> all = gradients(batch, document), rows = input_gradient(batch, document);
    ASSERT_EQ(gradients(other, document), all);
    ASSERT_EQ(input_gradient(other, document), rows);
    gradients(one, 0);
    ASSERT_EQ(input_gradient(one, 0), rows);
    ASSERT_GT(largest(run_.loss_and_gradients(judged(batch, document))), 0);
  }

  ModelRun run_;
};

TEST_P(Documents, a_border_at_any_position_of_a_chunk_lets_nothing_through) {
  for (std::int64_t border = 1; border <= 64; ++border) {
    SCOPED_TRACE("border behind token " + std::to_string(border));
    expect_isolated({border, 66}, 1, 0);  // nothing flows forward: state, convolution, attention
    expect_isolated({border, 5}, 0, 1);   // nothing flows back: gradients
    if (HasFatalFailure()) return;
  }
}

TEST_P(Documents, lengths_that_fit_no_block_and_a_document_of_one_token_stay_apart) {
  const std::vector<std::vector<std::int64_t>> batches = {{37, 51, 40}, {37, 51, 1, 40}, {1, 37, 51, 40}, {37, 51, 40, 1}, {1, 1, 1}};
  for (const std::vector<std::int64_t>& lengths : batches) {
    for (std::size_t document = 0; document < lengths.size(); ++document) {
      for (std::size_t neighbour = 0; neighbour < lengths.size(); ++neighbour) {
        if (neighbour == document) continue;
        SCOPED_TRACE("document " + std::to_string(document) + " of " + ::testing::PrintToString(lengths) + ", changed " + std::to_string(neighbour));
        expect_isolated(lengths, document, neighbour);
        if (HasFatalFailure()) return;
      }
    }
  }
}

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (ExperimentalAttentionVariant variant : {ExperimentalAttentionVariant::Gdn, ExperimentalAttentionVariant::Gdn2}) {
    for (DType dtype : {DType::F32, DType::BF16}) all.push_back({variant, dtype});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Kinds, Documents, testing::ValuesIn(kinds()), [](const auto& kind) {
  return std::string(kind.param.variant == ExperimentalAttentionVariant::Gdn2 ? "gdn2_" : "gdn_") + dtype_name(kind.param.dtype);
});

}  // namespace
}  // namespace deltron::test
