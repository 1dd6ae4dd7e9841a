// The one definition of how the tokens of documents are cut over context-parallel ranks: every document in 2n equal pieces, of which rank r
// of n has pieces r and 2n-1-r, so that causal attention costs every rank the same. Loader, positions, exchanges and loss follow from it.
#pragma once

#include <cstdint>
#include <vector>

namespace deltron {

// Documents by their offsets, each a multiple of 2n tokens long, or empty (else ErrorCode::InvalidOffsets). The tokens of `rank`, as places in
// the whole buffer, in the order of the rank's rows: document by document, the early piece before the late one.
std::vector<std::int64_t> tokens_of_rank(const std::vector<std::int64_t>& cu_seqlens, std::int64_t ranks, std::int64_t rank);

// The tokens of all ranks, one rank after the other: where row i of the ranks' rows belongs. A permutation.
std::vector<std::int64_t> tokens_by_rank(const std::vector<std::int64_t>& cu_seqlens, std::int64_t ranks);

// values[i] for the tokens of a rank.
template <class T>
std::vector<T> take_tokens(const std::vector<T>& values, const std::vector<std::int64_t>& tokens) {
  std::vector<T> taken;
  taken.reserve(tokens.size());
  for (const std::int64_t token : tokens) taken.push_back(values[static_cast<std::size_t>(token)]);
  return taken;
}

}  // namespace deltron
