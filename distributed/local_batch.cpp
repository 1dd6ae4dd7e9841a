// See local_batch.h.
#include "distributed/local_batch.h"

namespace deltron {

LayoutPtr local_layout(Context& ctx, const std::vector<std::int64_t>& cu_seqlens, const std::vector<std::int32_t>& positions,
                       const std::vector<std::int64_t>& token_sample, const std::vector<std::int32_t>& token_offset) {
  const ParallelState& ranks = parallel_state(ctx);
  TokenShare share;
  share.context_ranks = ranks.cp();
  share.context_rank = ranks.cp_rank();
  if (ranks.sequence_parallel) {
    share.row_ranks = ranks.tp();
    share.row_rank = ranks.tp_rank();
  }
  return SequenceLayout::shared(ctx, share, cu_seqlens, cu_seqlens.empty() ? 0 : cu_seqlens.back(), positions, token_sample, token_offset);
}

std::vector<std::int32_t> local_tokens(Context& ctx, const std::vector<std::int64_t>& cu_seqlens, const std::vector<std::int32_t>& values) {
  const ParallelState& ranks = parallel_state(ctx);
  return ranks.cp() == 1 ? values : take_tokens(values, tokens_of_rank(cu_seqlens, ranks.cp(), ranks.cp_rank()));
}

}  // namespace deltron
