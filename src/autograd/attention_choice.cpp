// See attention_choice.h.
#include "src/autograd/attention_choice.h"

#include "src/base/build_options.h"
#include "src/base/check.h"
#include "src/tensor/cuda_device.h"
#include "src/tensor/launch.h"
#if DELTRON_HAVE_CUDA
#include "kernels/cuda/attention_cudnn.h"
#endif

namespace deltron {
namespace {

// What this context has, looked up once.
struct FusedKernels {
  bool known = false;
  bool cuda = false;    // the kernels are a GPU's
  std::string missing;  // why there are none; empty: there are
  std::string name, assumption;
  std::int64_t version = 0;
};

FusedKernels& fused_kernels(Context& ctx) {
  FusedKernels& have = ctx.slot<FusedKernels>();
  if (have.known) return have;
  have.known = true;
  have.cuda = ctx.kernel_device() == DeviceKind::Cuda;
  if (!have.cuda) {
    have.missing = "device " + std::string(device_name(ctx.kernel_device()));
    return have;
  }
#if DELTRON_HAVE_CUDA
  const kernels::cuda::FusedAttentionInfo info = kernels::cuda::fused_attention_info();
  have.name = "cuDNN " + info.version;
  have.version = info.number;
  if (info.found) return have;
  if (info.built && ctx.is_meta() && !cuda_status().usable) {  // a plan for another machine
    have.name = "cuDNN";
    have.assumption = "assumed: this machine has neither GPU nor cuDNN";
    return have;
  }
  have.missing = info.problem;
#else
  have.missing = "this build has no CUDA code";
#endif
  return have;
}

}  // namespace

AttentionChoice choose_attention(Context& ctx, AttentionBackend backend, kernels::FusedAttentionQuestion question) {
  AttentionChoice own{false, "own kernels", ""};
  if (backend == AttentionBackend::Local) {
    own.reason = "attention_backend: local";
    return own;
  }
  const FusedKernels& have = fused_kernels(ctx);
  question.library_version = have.version;
  const std::string refusal = have.missing.empty() ? kernels::fused_attention_refusal(question) : std::string();
  if (have.missing.empty() && refusal.empty()) return {true, have.name, have.assumption};
  if (backend == AttentionBackend::Auto) {
    if (have.cuda) own.reason = (have.missing.empty() ? "cuDNN cannot: " + refusal : have.missing);
    return own;
  }
  if (!have.missing.empty()) {
    throw Error(
        ErrorCode::DeviceUnavailable,
        ErrorText{"fused attention cannot be had", "model.attention_backend", have.missing, "fused attention is cuDNN's, on cuda",
                  "install cuDNN 9 or name its file in DELTRON_CUDNN; or attention_backend: auto or local"});
  }
  throw Error(ErrorCode::ConfigInconsistent,
              ErrorText{"fused attention cannot serve this model", "model.attention_backend", refusal,
                        "attention_backend: fused never falls back", "attention_backend: auto or local"});
}

std::int64_t attention_workspace_bytes(Context& ctx, bool fused, const kernels::AttentionForwardArgs& args) {
#if DELTRON_HAVE_CUDA
  if (fused) return kernels::cuda::fused_attention_forward_workspace_bytes(args, ctx.stream());
#endif
  DELTRON_CHECK(!fused, "a build without CUDA has no fused attention");
  return DELTRON_WORKSPACE_BYTES(ctx, attention_forward, args);
}

void launch_attention_in(Context& ctx, bool fused, const kernels::AttentionForwardArgs& args) {
#if DELTRON_HAVE_CUDA
  if (fused && !ctx.is_meta()) return kernels::cuda::fused_attention_forward(args, ctx.stream());
#endif
  if (!fused) DELTRON_LAUNCH(ctx, attention_forward, args);
}

void launch_attention(Context& ctx, bool fused, kernels::AttentionForwardArgs& args) {
  const WorkspaceLease lease(ctx, attention_workspace_bytes(ctx, fused, args));
  args.workspace = lease.workspace();
  launch_attention_in(ctx, fused, args);
}

std::int64_t attention_workspace_bytes(Context& ctx, bool fused, const kernels::AttentionBackwardArgs& args) {
#if DELTRON_HAVE_CUDA
  if (fused) return kernels::cuda::fused_attention_backward_workspace_bytes(args, ctx.stream());
#endif
  DELTRON_CHECK(!fused, "a build without CUDA has no fused attention");
  return DELTRON_WORKSPACE_BYTES(ctx, attention_backward, args);
}

void launch_attention_in(Context& ctx, bool fused, const kernels::AttentionBackwardArgs& args) {
#if DELTRON_HAVE_CUDA
  if (fused && !ctx.is_meta()) return kernels::cuda::fused_attention_backward(args, ctx.stream());
#endif
  if (!fused) DELTRON_LAUNCH(ctx, attention_backward, args);
}

void launch_attention(Context& ctx, bool fused, kernels::AttentionBackwardArgs& args) {
  const WorkspaceLease lease(ctx, attention_workspace_bytes(ctx, fused, args));
  args.workspace = lease.workspace();
  launch_attention_in(ctx, fused, args);
}

}  // namespace deltron
