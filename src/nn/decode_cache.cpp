// See decode_cache.h.
#include "src/nn/decode_cache.h"

#include "src/tensor/ops.h"

namespace deltron {

Tensor LayerCache::with_earlier_inputs(Context& ctx, const Tensor& inputs, std::int64_t earlier) {
  if (earlier == 0) return inputs;
  if (!conv_inputs.defined()) conv_inputs = Tensor::zeros(ctx, {earlier, inputs.size(1)}, inputs.dtype(), "conv inputs");
  const Tensor all = Tensor::empty(ctx, {earlier + inputs.size(0), inputs.size(1)}, inputs.dtype(), "conv inputs");
  convert(ctx, conv_inputs, all.slice(0, 0, earlier));
  convert(ctx, inputs, all.slice(0, earlier, inputs.size(0)));
  convert(ctx, all.slice(0, inputs.size(0), earlier), conv_inputs);
  return all;
}

}  // namespace deltron
