// Differentiable exchanges of context parallelism by heads: a mixer needs whole documents, and the ranks that share them have each some of
// their tokens. Before it, a rank gives every other rank that one's heads of its own tokens and gets its own heads of all tokens; after it,
// the way back. One context-parallel rank: everything hands on what it gets.
#pragma once

#include <vector>

#include "distributed/parallel_state.h"
#include "src/autograd/functions_basic.h"

namespace deltron {

// A run of columns that is cut by heads: every rank gets heads/cp of them; where there are fewer heads than ranks, cp/heads ranks, one after
// the other, get the same one, and backward sums over them.
struct HeadSection {
  std::int64_t width = 0;  // columns
  std::int64_t heads = 0;
};

// The layout that mixers see: of all tokens.
inline LayoutPtr whole_layout(const LayoutPtr& layout) { return layout->whole() ? layout->whole() : layout; }

// x [T/cp, sum of widths] of this rank's rows -> [T, ...]: its part of every section, side by side, for all tokens in their order.
Tensor rows_to_heads(Context& ctx, const Tensor& x, const std::vector<HeadSection>& sections, const LayoutPtr& layout, const char* what);
// x [T, W]: this rank's heads, all tokens -> [T/cp, W*cp]: all heads, this rank's rows.
Tensor heads_to_rows(Context& ctx, const Tensor& x, const LayoutPtr& layout, const char* what);

// This rank's heads of a parameter whose rows are the sections, as a tensor of the compute type, so that its gradient reaches the main
// gradient unrounded. Gradients of other heads are zero here; the sum over data and context ranks assembles them.
Tensor heads_of_parameter(Context& ctx, const Tensor& parameter, const std::vector<std::int64_t>& sections, const char* what);

}  // namespace deltron
