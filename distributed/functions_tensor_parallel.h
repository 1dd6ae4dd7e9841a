// Differentiable exchanges of tensor and sequence parallelism. Tensor-parallel ranks hold other parts of the same weights; with sequence
// parallelism each also has its own rows of the residual stream, else all of them. One rank: everything hands on what it gets.
#pragma once

#include "distributed/parallel_state.h"
#include "src/autograd/functions_basic.h"
#include "src/autograd/functions_linear.h"

namespace deltron {

Tensor copy_to_tensor_parallel(Context& ctx, const Tensor& x, const char* what);      // x; backward sums over the ranks
Tensor reduce_from_tensor_parallel(Context& ctx, const Tensor& x, const char* what);  // sum over the ranks; backward hands on
Tensor gather_tokens(Context& ctx, const Tensor& rows, const char* what);   // [T/tp,C] -> [T,C]; backward sums and scatters
Tensor scatter_tokens(Context& ctx, const Tensor& part, const char* what);  // [T,C] -> sum, of which this rank's [T/tp,C]; backward gathers

// What parts of the residual stream add up to, as this rank holds it: reduced, or with sequence parallelism scattered.
Tensor sum_into_residual(Context& ctx, const Tensor& part, const char* what);

// The same inside products (functions_linear.h). Null on one rank.
RowExchangePtr tensor_parallel_exchange(Context& ctx);

// Entry r of n things that tp ranks share as evenly as whole things permit.
struct VocabularyShare {
  std::int64_t first = 0, count = 0;
};
VocabularyShare vocabulary_share(std::int64_t vocabulary, int ranks, int rank);
// This rank's part of a vocabulary. The ranks' parts need no equal sizes: they exchange numbers of rows, never columns.
VocabularyPart vocabulary_part(Context& ctx, std::int64_t vocabulary);

}  // namespace deltron
