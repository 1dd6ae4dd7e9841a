// Which kernels serve a softmax attention layer on a context: cuDNN's fused ones or our own, and why. The choice is a pure function
// of what is asked and of what the machine has, so that a run, its replay and its plan agree.
#pragma once

#include <string>

#include "kernels/attention_fused.h"
#include "src/base/attention_backend.h"
#include "src/tensor/context.h"

namespace deltron {

struct AttentionChoice {
  bool fused = false;
  std::string kernels;  // "cuDNN 9.19.0" or "own kernels"
  std::string reason;   // why the own ones were chosen, or what a plan assumes; may be empty
  std::string text() const { return kernels + (reason.empty() ? "" : " (" + reason + ")"); }
};

// The library's version is filled in here. ErrorCode::ConfigInconsistent or DeviceUnavailable where `backend` is Fused and the
// fused kernels cannot serve.
AttentionChoice choose_attention(Context& ctx, AttentionBackend backend, kernels::FusedAttentionQuestion question);

// `fused`: as chosen. Launch with the workspace leased; on meta only the lease.
void launch_attention(Context& ctx, bool fused, kernels::AttentionForwardArgs& args);
void launch_attention(Context& ctx, bool fused, kernels::AttentionBackwardArgs& args);

// The two halves of it: what to lease, and the launch in a workspace that the arguments hold already.
std::int64_t attention_workspace_bytes(Context& ctx, bool fused, const kernels::AttentionForwardArgs& args);
std::int64_t attention_workspace_bytes(Context& ctx, bool fused, const kernels::AttentionBackwardArgs& args);
void launch_attention_in(Context& ctx, bool fused, const kernels::AttentionForwardArgs& args);
void launch_attention_in(Context& ctx, bool fused, const kernels::AttentionBackwardArgs& args);

}  // namespace deltron
