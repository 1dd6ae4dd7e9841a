// See delta_rule_plan.h.
#include "kernels/cpu/delta_rule_plan.h"

#include <algorithm>
#include <numeric>

#include "src/base/check.h"

namespace deltron::kernels::cpu {

ChunkPlan make_chunk_plan(const DeltaRuleInputs& in, int threads) {
  DELTRON_CHECK(in.key_heads > 0 && in.value_heads > 0 && in.value_heads % in.key_heads == 0, "value heads ", in.value_heads,
                " must be a multiple of key heads ", in.key_heads);
  DELTRON_CHECK(in.gate_heads == in.key_heads || in.gate_heads == in.value_heads, "gate heads ", in.gate_heads,
                " must be the key heads or the value heads");
  DELTRON_CHECK(in.key_dim > 0 && in.value_dim > 0, "head dims ", in.key_dim, " and ", in.value_dim);
  const std::int64_t* offsets = in.documents.host();
  const std::int64_t documents = in.documents.count;
  DELTRON_CHECK(documents == 0 || offsets != nullptr, "documents need offsets");
  ChunkPlan plan;
  plan.document_chunk.push_back(0);
  for (std::int64_t document = 0; document < documents; ++document) {
    const std::int64_t length = offsets[document + 1] - offsets[document];
    DELTRON_CHECK_GE(length, 0, "cu_seqlens must not decrease (document ", document, ")");
    for (std::int64_t begin = 0; begin < length; begin += kDeltaRuleChunk) {
      plan.chunks.push_back(Chunk{document, begin, std::min(kDeltaRuleChunk, length - begin)});
    }
    plan.document_chunk.push_back(plan.chunk_count());
    plan.longest = std::max(plan.longest, plan.document_chunk[document + 1] - plan.document_chunk[document]);
  }
  DELTRON_CHECK_EQ(documents == 0 ? 0 : offsets[0], 0, "cu_seqlens must start at 0");
  DELTRON_CHECK_EQ(documents == 0 ? 0 : offsets[documents], in.tokens, "cu_seqlens must end at the number of tokens");
  plan.longest_first.resize(static_cast<std::size_t>(documents));
  std::iota(plan.longest_first.begin(), plan.longest_first.end(), std::int64_t{0});
  std::stable_sort(plan.longest_first.begin(), plan.longest_first.end(), [&](std::int64_t a, std::int64_t b) {
    return plan.document_chunk[a + 1] - plan.document_chunk[a] > plan.document_chunk[b + 1] - plan.document_chunk[b];
  });
  // The last item to finish is late by at most the longest one: worth splitting once that is half of a thread's share.
  plan.split = threads > 1 && plan.longest * threads * 2 > plan.chunk_count() * in.key_heads;
  return plan;
}

}  // namespace deltron::kernels::cpu
