// See gpt_index.h. The order in which the generator is consumed (documents, then samples) is part of the format.
#include "src/data/gpt_index.h"

#include <limits>
#include <numeric>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/signals.h"
#include "src/data/numpy_shuffle.h"

namespace deltron {
namespace {

constexpr std::int64_t kExtraToken = 1;  // a sample reads one token more than its length: the last label
constexpr std::int64_t kPollEvery = 1 << 16;

void append_epochs(std::vector<std::int32_t>& documents, std::int64_t epochs, std::int32_t first, std::size_t count,
                   NumpyRandomState& random) {
  const std::size_t begin = documents.size();
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (std::size_t i = 0; i < count; ++i) documents.push_back(first + static_cast<std::int32_t>(i));
  }
  random.shuffle(documents.data() + begin, static_cast<std::int64_t>(documents.size() - begin));
}

}  // namespace

GptIndexPlan plan_gpt_index(std::int64_t tokens_per_epoch, std::int64_t seq_length, std::int64_t samples_wanted) {
  DELTRON_CHECK_GE(seq_length, 1, "sequence length");
  GptIndexPlan plan;
  plan.tokens_per_epoch = tokens_per_epoch;
  plan.epochs = 1;
  if (tokens_per_epoch == 0) return plan;
  if (samples_wanted >= 0) {
    DELTRON_CHECK_LE(samples_wanted, (std::numeric_limits<std::int64_t>::max() - kExtraToken - tokens_per_epoch) / seq_length,
                     "samples of ", seq_length, " tokens");
    const std::int64_t needed = samples_wanted * seq_length + kExtraToken;
    plan.epochs = (needed + tokens_per_epoch - 1) / tokens_per_epoch;
  }
  plan.samples = (plan.epochs * tokens_per_epoch - kExtraToken) / seq_length;
  if (plan.epochs > 1) {
    plan.samples_before_last_epoch = ((plan.epochs - 1) * tokens_per_epoch - kExtraToken) / seq_length;
    const std::int64_t from_last = samples_wanted - plan.samples_before_last_epoch;
    const std::int64_t per_epoch = (tokens_per_epoch - kExtraToken) / seq_length;
    plan.last_epoch_separate = from_last < per_epoch * 4 / 5;
  }
  return plan;
}

GptIndex build_gpt_index(const std::vector<std::int32_t>& lengths, std::int32_t first_document, std::int64_t seq_length,
                         std::int64_t samples_wanted, std::uint32_t seed, const std::function<void(double)>& progress) {
  const std::int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const GptIndexPlan plan = plan_gpt_index(tokens, seq_length, samples_wanted);
  GptIndex index;
  NumpyRandomState random(seed);
  index.documents.reserve(lengths.size() * static_cast<std::size_t>(plan.epochs));
  if (plan.last_epoch_separate) {
    append_epochs(index.documents, plan.epochs - 1, first_document, lengths.size(), random);
    append_epochs(index.documents, 1, first_document, lengths.size(), random);
  } else {
    append_epochs(index.documents, plan.epochs, first_document, lengths.size(), random);
  }

  // Walk seq_length+1 tokens a sample; the next one starts at the last token read.
  index.sample_start.reserve(2 * static_cast<std::size_t>(plan.samples + 1));
  std::size_t position = 0;
  std::int64_t offset = 0;
  index.sample_start.push_back(0);
  index.sample_start.push_back(0);
  for (std::int64_t sample = 0; sample < plan.samples; ++sample) {
    if (sample % kPollEvery == 0) {
      poll_stop("building a sample index");
      if (progress) progress(static_cast<double>(sample) / static_cast<double>(plan.samples));
    }
    std::int64_t remaining = seq_length + kExtraToken;
    for (;;) {
      DELTRON_CHECK_LT(position, index.documents.size(), "sample index ran out of documents at sample ", sample);
      const std::int64_t left = lengths[static_cast<std::size_t>(index.documents[position] - first_document)] - offset;
      if (left >= remaining) {
        offset += remaining - kExtraToken;
        break;
      }
      remaining -= left;
      ++position;
      offset = 0;
    }
    index.sample_start.push_back(static_cast<std::int64_t>(position));
    index.sample_start.push_back(offset);
  }

  index.shuffle.resize(static_cast<std::size_t>(plan.samples));
  std::iota(index.shuffle.begin(), index.shuffle.end(), std::int64_t{0});
  const std::int64_t head = plan.last_epoch_separate ? plan.samples_before_last_epoch : plan.samples;
  random.shuffle(index.shuffle.data(), head);
  random.shuffle(index.shuffle.data() + head, plan.samples - head);
  return index;
}

}  // namespace deltron
