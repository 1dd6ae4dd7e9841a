// The one order of sums over ranks of our own back ends: fp32 (fp64 and integers in their own type), rank by rank, rounded once.
#pragma once

#include <vector>

#include "distributed/communicator.h"

namespace deltron {

// out[i] = operands[0][i] (op) operands[1][i] ... in host memory; `out` may be none of the operands.
void ordered_reduce(const std::vector<const void*>& operands, DType dtype, ReduceOp op, std::int64_t count, void* out);

}  // namespace deltron
