// The free functions of attention_cudnn.h: what is the same whether the build has cuDNN's headers or not.
#include "kernels/cuda/attention_cudnn.h"

#include <algorithm>

#include "src/base/check.h"

namespace deltron::kernels::cuda {
namespace {

template <class Args>
std::int64_t estimate(const Args& args, bool backward) {
  const FusedAttentionSchedule schedule = fused_attention_schedule(args.documents, args.query_heads, args.kv_heads, backward);
  return fused_workspace_estimate(schedule, args.query_heads / args.kv_heads, args.dim, backward);
}

template <class Args>
void check_call(const Args& args, const StreamHandle& stream) {
  const std::string refusal = fused_attention_refusal(args);
  DELTRON_CHECK(refusal.empty(), "fused attention: ", refusal);
  DELTRON_CHECK(stream.attention != nullptr, "fused attention needs a context's library object");
}

}  // namespace

// The estimate bounds what is asked for, so that a plan on meta and the run count the same bytes; a library that asks for more gets
// it.
std::int64_t fused_attention_forward_workspace_bytes(const AttentionForwardArgs& args, const StreamHandle& stream) {
  const std::int64_t bound = estimate(args, false);
  return stream.attention != nullptr ? std::max(bound, stream.attention->forward_workspace_bytes(args)) : bound;
}

void fused_attention_forward(const AttentionForwardArgs& args, const StreamHandle& stream) {
  check_call(args, stream);
  if (args.tokens > 0) stream.attention->forward(args, stream.native);
}

std::int64_t fused_attention_backward_workspace_bytes(const AttentionBackwardArgs& args, const StreamHandle& stream) {
  const std::int64_t bound = estimate(args, true);
  return stream.attention != nullptr ? std::max(bound, stream.attention->backward_workspace_bytes(args)) : bound;
}

void fused_attention_backward(const AttentionBackwardArgs& args, const StreamHandle& stream) {
  check_call(args, stream);
  if (args.tokens > 0) stream.attention->backward(args, stream.native);
}

}  // namespace deltron::kernels::cuda
