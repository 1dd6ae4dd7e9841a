// See sequence_cut.h.
#include "src/base/sequence_cut.h"

#include <string>

#include "src/base/error.h"

namespace deltron {

std::vector<std::int64_t> tokens_of_rank(const std::vector<std::int64_t>& cu_seqlens, std::int64_t ranks, std::int64_t rank) {
  std::vector<std::int64_t> tokens;
  for (std::size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    const std::int64_t begin = cu_seqlens[n], length = cu_seqlens[n + 1] - begin, pieces = 2 * ranks;
    if (ranks > 1 && length % pieces != 0) {
      throw Error(ErrorCode::InvalidOffsets,
                  ErrorText{"document " + std::to_string(n) + " cannot be cut over the context-parallel ranks", "cu_seqlens",
                            std::to_string(length) + " tokens and " + std::to_string(pieces) + " pieces",
                            "with context parallelism a document's length is a multiple of 2 x context_parallel_size",
                            "pad the document to " + std::to_string((length + pieces - 1) / pieces * pieces) + " tokens"});
    }
    if (ranks == 1) {
      for (std::int64_t i = 0; i < length; ++i) tokens.push_back(begin + i);
      continue;
    }
    const std::int64_t piece = length / pieces;
    for (const std::int64_t which : {rank, pieces - 1 - rank}) {
      for (std::int64_t i = 0; i < piece; ++i) tokens.push_back(begin + which * piece + i);
    }
  }
  return tokens;
}

std::vector<std::int64_t> tokens_by_rank(const std::vector<std::int64_t>& cu_seqlens, std::int64_t ranks) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::vector<std::int64_t> mine = tokens_of_rank(cu_seqlens, ranks, rank);
    tokens.insert(tokens.end(), mine.begin(), mine.end());
  }
  return tokens;
}

}  // namespace deltron
