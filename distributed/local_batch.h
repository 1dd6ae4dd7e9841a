// What of a micro-batch this rank gets: the trainer's way from whole batches to a rank's rows.
#pragma once

#include "distributed/parallel_state.h"
#include "src/autograd/functions_basic.h"
#include "src/base/sequence_cut.h"

namespace deltron {

// The layout of this rank's share of these documents; arguments and errors as for SequenceLayout::shared.
LayoutPtr local_layout(Context& ctx, const std::vector<std::int64_t>& cu_seqlens, const std::vector<std::int32_t>& positions = {},
                       const std::vector<std::int64_t>& token_sample = {}, const std::vector<std::int32_t>& token_offset = {});

// One value a token (ids, labels) of the whole micro-batch -> those of this rank's rows. Ranks that share rows by sequence parallelism
// get the same: embedding and loss want all of them.
std::vector<std::int32_t> local_tokens(Context& ctx, const std::vector<std::int64_t>& cu_seqlens, const std::vector<std::int32_t>& values);

}  // namespace deltron
