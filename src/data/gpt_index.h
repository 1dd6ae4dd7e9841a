// Megatron's GPT sample index: which tokens make up sample k, bit-exact with the reference (docs/data_format.md).
// Pure arithmetic on document lengths; knows nothing of files.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace deltron {

struct GptIndexPlan {
  std::int64_t tokens_per_epoch = 0;
  std::int64_t epochs = 0;
  std::int64_t samples = 0;                    // whole samples in all epochs, drop-last
  bool last_epoch_separate = false;            // shuffled on its own
  std::int64_t samples_before_last_epoch = 0;  // 0 with a single epoch
};

// `samples_wanted` < 0: one epoch.
GptIndexPlan plan_gpt_index(std::int64_t tokens_per_epoch, std::int64_t seq_length, std::int64_t samples_wanted);

struct GptIndex {
  std::vector<std::int32_t> documents;     // document order of all epochs
  std::vector<std::int64_t> sample_start;  // [samples+1][2]: position in `documents`, token offset in that document
  std::vector<std::int64_t> shuffle;       // [samples]
};

// `first_document`: number of the split's first document; lengths[i] belongs to document first_document + i.
// `progress` (may be empty) gets a share in [0,1] now and then. Polls stop requests.
GptIndex build_gpt_index(const std::vector<std::int32_t>& lengths, std::int32_t first_document, std::int64_t seq_length,
                         std::int64_t samples_wanted, std::uint32_t seed, const std::function<void(double)>& progress = {});

}  // namespace deltron
