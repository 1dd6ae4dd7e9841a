// Softmax attention by cuDNN's fused kernels. The library is opened at run time, when first asked for, so that a binary starts
// where it is absent; plans are the library's first answer for a shape, never timed, and are kept. Host code only; one object a
// context. A build without cuDNN's headers has the same functions and says so (attention_cudnn_absent.cpp). Knows no tensors.
#pragma once

#include <memory>
#include <string>

#include "kernels/attention_fused.h"

namespace deltron::kernels::cuda {

// Where the library was found and its version, or why it cannot be used; for reports.
struct FusedAttentionInfo {
  bool built = false;  // this binary has the code
  bool found = false;
  std::string path, version, problem;
  std::int64_t number = 0;  // 91900 is 9.19.0
};
// Looks; needs no GPU and never throws.
FusedAttentionInfo fused_attention_info();

class FusedAttention {
 public:
  virtual ~FusedAttention() = default;
  // Chooses the plans of every call, so that the workspace is known.
  virtual std::int64_t forward_workspace_bytes(const AttentionForwardArgs& args) = 0;
  virtual std::int64_t backward_workspace_bytes(const AttentionBackwardArgs& args) = 0;
  virtual void forward(const AttentionForwardArgs& args, void* stream) = 0;
  virtual void backward(const AttentionBackwardArgs& args, void* stream) = 0;
  virtual std::int64_t plans() const = 0;  // chosen so far
};
std::shared_ptr<FusedAttention> make_fused_attention();

// The caller has asked fused_attention_refusal. log_sum_exp is laid out as fused_log_sum_exp_place says. Without a library object
// in `stream` (a plan on meta) the workspace is an upper bound from sizes.
std::int64_t fused_attention_forward_workspace_bytes(const AttentionForwardArgs& args, const StreamHandle& stream);
void fused_attention_forward(const AttentionForwardArgs& args, const StreamHandle& stream);
std::int64_t fused_attention_backward_workspace_bytes(const AttentionBackwardArgs& args, const StreamHandle& stream);
void fused_attention_backward(const AttentionBackwardArgs& args, const StreamHandle& stream);

}  // namespace deltron::kernels::cuda
