// The back end whose kernels a test calls: kernels::cpu, or, in the binaries built with DELTRON_TEST_ON_CUDA, kernels::cuda. There every
// call waits for the device, and the test's own vectors are memory that both sides see (pinned_heap.cpp). Knows no test.
#pragma once

#include <cstdlib>

#include "kernels/multi_tensor.h"
#include "kernels/attention.h"
#include "kernels/attention_decode.h"
#include "kernels/causal_conv1d.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/gdn_pre_rule.h"
#include "kernels/l2_norm.h"
#include "kernels/matmul.h"
#include "kernels/reduce.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

#ifndef DELTRON_TEST_ON_CUDA
#define DELTRON_TEST_ON_CUDA 0
#endif

namespace deltron::test {

inline constexpr bool kOnCuda = DELTRON_TEST_ON_CUDA != 0;

// GPU tests run twice: with buffers laid out for 16-byte accesses, and as the CPU's tests lay them out, which is for none.
inline std::int64_t laid_out(std::int64_t elements) {
  return kOnCuda && std::getenv("DELTRON_TEST_ALIGNED") != nullptr ? (elements + 15) / 16 * 16 : elements;
}

#if DELTRON_TEST_ON_CUDA
StreamHandle device_stream(const StreamHandle& stream);  // gpu_main.cpp
void finish_device();
#endif

}  // namespace deltron::test

namespace deltron::under_test {

#if DELTRON_TEST_ON_CUDA
#define DELTRON_UNDER_TEST(kernel, Args)                                      \
  inline void kernel(const kernels::Args& args, const StreamHandle& stream) { \
    kernels::cuda::kernel(args, test::device_stream(stream));                 \
    test::finish_device();                                                    \
  }
#define DELTRON_UNDER_TEST_WITH_WORKSPACE(kernel, Args)                                               \
  DELTRON_UNDER_TEST(kernel, Args)                                                                    \
  inline std::int64_t kernel##_workspace_bytes(const kernels::Args& args, const StreamHandle& stream) { \
    return kernels::cuda::kernel##_workspace_bytes(args, test::device_stream(stream));                \
  }
DELTRON_UNDER_TEST(multi_tensor_adamw, MultiTensorAdamwArgs)
DELTRON_UNDER_TEST(multi_tensor_norm, MultiTensorNormArgs)
DELTRON_UNDER_TEST(multi_tensor_sgd, MultiTensorSgdArgs)
DELTRON_UNDER_TEST_WITH_WORKSPACE(attention_forward, AttentionForwardArgs)
DELTRON_UNDER_TEST_WITH_WORKSPACE(attention_backward, AttentionBackwardArgs)
DELTRON_UNDER_TEST_WITH_WORKSPACE(attention_decode, AttentionDecodeArgs)
DELTRON_UNDER_TEST(causal_conv1d_forward, CausalConv1dForwardArgs)
DELTRON_UNDER_TEST_WITH_WORKSPACE(causal_conv1d_backward, CausalConv1dBackwardArgs)
DELTRON_UNDER_TEST(cross_entropy_forward, CrossEntropyForwardArgs)
DELTRON_UNDER_TEST(cross_entropy_backward, CrossEntropyBackwardArgs)
DELTRON_UNDER_TEST(cross_entropy_join, CrossEntropyJoinArgs)
DELTRON_UNDER_TEST(convert, ConvertArgs)
DELTRON_UNDER_TEST(fill, FillArgs)
DELTRON_UNDER_TEST(add, AddArgs)
DELTRON_UNDER_TEST(accumulate, AccumulateArgs)
DELTRON_UNDER_TEST(scale, ScaleArgs)
DELTRON_UNDER_TEST(dropout_add, DropoutAddArgs)
DELTRON_UNDER_TEST(sigmoid_gate_forward, SigmoidGateForwardArgs)
DELTRON_UNDER_TEST(sigmoid_gate_backward, SigmoidGateBackwardArgs)
DELTRON_UNDER_TEST(embedding_forward, EmbeddingForwardArgs)
DELTRON_UNDER_TEST_WITH_WORKSPACE(embedding_backward, EmbeddingBackwardArgs)
DELTRON_UNDER_TEST(gated_rms_norm_forward, GatedRmsNormForwardArgs)
DELTRON_UNDER_TEST_WITH_WORKSPACE(gated_rms_norm_backward, GatedRmsNormBackwardArgs)
DELTRON_UNDER_TEST_WITH_WORKSPACE(gdn_pre_rule_forward, GdnPreRuleForwardArgs)
DELTRON_UNDER_TEST_WITH_WORKSPACE(gdn_pre_rule_backward, GdnPreRuleBackwardArgs)
DELTRON_UNDER_TEST(l2_norm_forward, L2NormForwardArgs)
DELTRON_UNDER_TEST(l2_norm_backward, L2NormBackwardArgs)
DELTRON_UNDER_TEST_WITH_WORKSPACE(matmul, MatmulArgs)
DELTRON_UNDER_TEST(squared_norm, SquaredNormArgs)
DELTRON_UNDER_TEST(ordered_sum, OrderedSumArgs)
DELTRON_UNDER_TEST(sum, SumArgs)
DELTRON_UNDER_TEST(clip_scale, ClipScaleArgs)
DELTRON_UNDER_TEST(rms_norm_forward, RmsNormForwardArgs)
DELTRON_UNDER_TEST_WITH_WORKSPACE(rms_norm_backward, RmsNormBackwardArgs)
DELTRON_UNDER_TEST(rope, RopeArgs)
DELTRON_UNDER_TEST(swiglu_forward, SwigluForwardArgs)
DELTRON_UNDER_TEST(swiglu_backward, SwigluBackwardArgs)
#undef DELTRON_UNDER_TEST
#undef DELTRON_UNDER_TEST_WITH_WORKSPACE
#else
using namespace kernels::cpu;
#endif

}  // namespace deltron::under_test
