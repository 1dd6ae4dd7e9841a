// attention_cudnn.h where cuDNN's headers or its front end's were not found when this was built: it says so.
#include "kernels/cuda/attention_cudnn.h"

namespace deltron::kernels::cuda {

FusedAttentionInfo fused_attention_info() {
  FusedAttentionInfo info;
  info.problem = "this build has no cuDNN attention (scripts/setup.sh fetches what it is built with)";
  return info;
}

std::shared_ptr<FusedAttention> make_fused_attention() { return nullptr; }

}  // namespace deltron::kernels::cuda
