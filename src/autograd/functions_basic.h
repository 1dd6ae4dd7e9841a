// Differentiable splitting, residual sums with dropout, the sigmoid output gate, embedding and the training loss.
#pragma once

#include <functional>
#include <vector>

#include "src/autograd/node.h"
#include "src/tensor/sequence_layout.h"

namespace deltron {

using LayoutPtr = std::shared_ptr<const SequenceLayout>;

struct Piece {
  std::int64_t width = 0;
  std::int64_t heads = 0;  // 0: a [T,width] view; else a [T,heads,width/heads] view
};

// Views of x [T,C] side by side; they cover C. Their gradients are written into slots of one gradient of x, without copies.
std::vector<Tensor> split(Context& ctx, const Tensor& x, const std::vector<Piece>& pieces, const char* name);

// residual + dropout(x), both [T,h]. `site` names the random decisions; drop probability 0 is a plain sum.
Tensor dropout_add(Context& ctx, const Tensor& x, const Tensor& residual, const LayoutPtr& layout, const RngSite& site, double drop_probability,
                   const char* name);

// x * sigmoid(gate): x [T,H*D] contiguous, gate [T,H*D] view.
Tensor sigmoid_gate(Context& ctx, const Tensor& x, const Tensor& gate, const char* name);

// A part of the vocabulary, where it is cut over ranks.
struct VocabularyPart {
  std::int64_t first = 0, whole = 0;  // the first id that is here, and how many there are; whole 0: all are here
  std::int64_t parts = 1;
  // mine [n] of every part, in their order -> [parts * n]. This layer knows no ranks.
  std::function<Tensor(Context& ctx, const Tensor& mine, const char* what)> gather;
};

// Rows of table [vocab,h] for ids [T] (I32 on the device), as `dtype`. Ids of other parts give rows of zeros.
Tensor embedding(Context& ctx, const Tensor& ids, const Tensor& table, DType dtype, const char* name, const VocabularyPart& part = {});

// Sum over valid rows of the cross entropy of logits [T,vocab] against labels [T] (I32; -1 masked), times `scale`, as one value of the
// compute type. Backward overwrites the logits' memory with their gradient. Of a part of the vocabulary the logits are its columns; the
// whole rows are never formed: the parts exchange two numbers a row, and all have the same loss.
Tensor cross_entropy(Context& ctx, const Tensor& logits, const Tensor& labels, double scale, const VocabularyPart& part = {});

// Per-token losses [T] of the compute type, without a graph (evaluation).
Tensor token_losses(Context& ctx, const Tensor& logits, const Tensor& labels, const VocabularyPart& part = {});

}  // namespace deltron
