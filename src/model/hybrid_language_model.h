// The hybrid language model: embedding, decoder layers of Gated DeltaNet and softmax attention, final norm, output projection.
// Knows nothing of training loops or files. On several ranks (distributed/parallel_state.h in the context) each has its part of the weights, and
// its rows of every micro-batch (distributed/local_batch.h).
#pragma once

#include <vector>

#include "src/nn/block.h"

namespace deltron {

class HybridLanguageModel {
 public:
  // Declares and allocates all parameters; `trainable` adds main gradients. `seed` addresses dropout decisions.
  HybridLanguageModel(Context& ctx, const TransformerConfig& config, DType dtype, bool trainable, std::uint64_t seed);

  // ids [T] I32, each below vocab_size; with context parallelism those of this rank's rows. All calls return tensors on the context's device.
  Tensor logits(Context& ctx, const Tensor& ids, const LayoutPtr& layout, const ForwardMode& mode) const;  // [T, this rank's part of vocab]
  // The cross entropy of each row from such logits, [T] of the compute type; 0 where the label is masked. No graph.
  Tensor token_losses(Context& ctx, const Tensor& logits, const Tensor& labels) const;
  // Sum of the cross entropy over valid labels times `scale`, one F64 value: over this rank's rows. The job's loss is the sum over data and
  // context ranks; tensor-parallel ranks have the same.
  Tensor loss(Context& ctx, const Tensor& ids, const Tensor& labels, const LayoutPtr& layout, const ForwardMode& mode, double scale) const;

  // Generation with memory: logits [1, vocab] of the last of the next tokens of one sequence. `cache` is empty (default) before the
  // first call, which takes the whole prompt; later calls take one token or more. Nothing is kept for gradients.
  Tensor next_logits(Context& ctx, const std::vector<std::int32_t>& ids, DecodeCache& cache) const;

  ParameterStore& parameters() { return store_; }
  const ParameterStore& parameters() const { return store_; }
  const TransformerConfig& config() const { return config_; }
  DType dtype() const { return dtype_; }

 private:
  Tensor decoder(Context& ctx, const Tensor& x, const LayoutPtr& layout, const ForwardMode& mode) const;

  TransformerConfig config_;
  DType dtype_;
  ParameterStore store_;
  ParameterPtr embedding_, final_norm_, output_;
  std::vector<TransformerBlock> blocks_;
};

}  // namespace deltron
